"""Scores of the few endpoints that a particular request has a tie to: its prefix, its session, its adapter.

An affinity names only endpoints that differ from the rest (`boosts`, added to the load's score), so a pick
looks closely at a handful of endpoints however large the pool is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

from extproc.core.picker.prefix_index import PrefixIndex
from extproc.core.picker.scorers import check_weight
from extproc.core.pool import EndpointState
from extproc.core.types import Request

STICKY = 1e6
"""A boost above every sum of weights."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PrefixScorerConfig:
    """The part of the prompt's blocks that the endpoint probably has in its cache. An endpoint whose requests
    in flight exceed `max_load_factor` x the pool's mean + 1 gets nothing, so a popular prefix spreads."""

    type: Literal["prefix-cache"] = "prefix-cache"
    weight: float = 1.0
    max_load_factor: float = 1.5

    def __post_init__(self) -> None:
        check_weight(self).at_least("max_load_factor", 1, 1000).finish()


@dataclass(frozen=True, kw_only=True, slots=True)
class LoraScorerConfig:
    """Against an endpoint that could load the adapter: 0.2 more where it runs, 0.2 less where it waits for
    its turn already (1, 0.8 and 0.6 in llm-d-router's terms; endpoints without room are no candidates)."""

    type: Literal["lora-affinity"] = "lora-affinity"
    weight: float = 1.0

    def __post_init__(self) -> None:
        check_weight(self).finish()


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionScorerConfig:
    """The endpoint that served the session last. `sticky`: it goes before all others whenever it takes the
    request, whatever they score. The `max_sessions` most recent sessions are remembered."""

    type: Literal["session"] = "session"
    weight: float = 1.0
    sticky: bool = False
    max_sessions: int = 100_000

    def __post_init__(self) -> None:
        check_weight(self).at_least("max_sessions", 1, 10_000_000).finish()


AffinityConfig = PrefixScorerConfig | LoraScorerConfig | SessionScorerConfig


class PoolLoad:
    """Requests in flight over the whole pool, kept up to date change by change."""

    __slots__ = ("_requests", "total")

    def __init__(self) -> None:
        self._requests: dict[EndpointState, int] = {}
        self.total = 0

    def put(self, endpoint: EndpointState) -> None:
        self.total += endpoint.requests - self._requests.get(endpoint, 0)
        self._requests[endpoint] = endpoint.requests

    def discard(self, endpoint: EndpointState) -> None:
        self.total -= self._requests.pop(endpoint, 0)

    @property
    def mean(self) -> float:
        return self.total / len(self._requests) if self._requests else 0.0


class Affinity(Protocol):
    """One kind of tie."""

    def boosts(self, request: Request) -> Mapping[EndpointState, float]:
        """Weighted; endpoints that are left out have 0. The mapping must not be changed."""
        ...

    def changed(self, endpoint: EndpointState) -> None: ...

    def closed(self, endpoint: EndpointState) -> None: ...

    def dispatched(self, request: Request, endpoint: EndpointState) -> None: ...


_NOBODY: Mapping[EndpointState, float] = {}


class PrefixAffinity:
    """Reads the index that all profiles share; the picker feeds it."""

    def __init__(self, config: PrefixScorerConfig, index: PrefixIndex, load: PoolLoad) -> None:
        self._config = config
        self._index = index
        self._load = load

    def boosts(self, request: Request) -> Mapping[EndpointState, float]:
        hashes = request.prefix_hashes
        if not hashes:
            return _NOBODY
        matched = self._index.match(hashes)
        if not matched:
            return _NOBODY
        bound = self._config.max_load_factor * self._load.mean + 1
        per_block = self._config.weight / len(hashes)
        return {
            endpoint: per_block * blocks for endpoint, blocks in matched.items() if endpoint.requests <= bound
        }

    def changed(self, endpoint: EndpointState) -> None:
        return

    def closed(self, endpoint: EndpointState) -> None:
        return

    def dispatched(self, request: Request, endpoint: EndpointState) -> None:
        return


class LoraAffinity:
    """Follows the adapters that samples report; a model name that is an adapter's counts as one."""

    def __init__(self, config: LoraScorerConfig) -> None:
        self._weight = config.weight
        self._seen: dict[EndpointState, tuple[frozenset[str], frozenset[str]]] = {}
        self._by_adapter: dict[str, dict[EndpointState, float]] = {}

    def boosts(self, request: Request) -> Mapping[EndpointState, float]:
        return self._by_adapter.get(request.lora or request.model, _NOBODY)

    def changed(self, endpoint: EndpointState) -> None:
        sample = endpoint.sample
        empty: frozenset[str] = frozenset()
        now = (empty, empty)
        if sample is not None:
            now = (sample.running_loras or empty, sample.waiting_loras or empty)
        before = self._seen.get(endpoint, (empty, empty))
        if now == before:
            return
        self._seen[endpoint] = now
        for adapter in before[0] | before[1]:
            self._forget(adapter, endpoint)
        for adapters, difference in ((now[1], -0.2), (now[0], 0.2)):
            for adapter in adapters:
                self._by_adapter.setdefault(adapter, {})[endpoint] = self._weight * difference

    def closed(self, endpoint: EndpointState) -> None:
        for adapters in self._seen.pop(endpoint, ()):
            for adapter in adapters:
                self._forget(adapter, endpoint)

    def dispatched(self, request: Request, endpoint: EndpointState) -> None:
        return

    def _forget(self, adapter: str, endpoint: EndpointState) -> None:
        holders = self._by_adapter.get(adapter)
        if holders is not None and holders.pop(endpoint, None) is not None and not holders:
            del self._by_adapter[adapter]


class SessionAffinity:
    """Remembers where each session went last."""

    def __init__(self, config: SessionScorerConfig) -> None:
        self._boost = STICKY if config.sticky else config.weight
        self._max_sessions = config.max_sessions
        self._last: OrderedDict[str, EndpointState] = OrderedDict()

    def boosts(self, request: Request) -> Mapping[EndpointState, float]:
        endpoint = self._last.get(request.session_id) if request.session_id is not None else None
        return _NOBODY if endpoint is None else {endpoint: self._boost}

    def changed(self, endpoint: EndpointState) -> None:
        return

    def closed(self, endpoint: EndpointState) -> None:
        return  # it may come back; until then it is no candidate

    def dispatched(self, request: Request, endpoint: EndpointState) -> None:
        if request.session_id is None:
            return
        self._last[request.session_id] = endpoint
        self._last.move_to_end(request.session_id)
        if len(self._last) > self._max_sessions:
            self._last.popitem(last=False)


def build_affinity(config: AffinityConfig, index: PrefixIndex, load: PoolLoad) -> Affinity:
    match config:
        case PrefixScorerConfig():
            return PrefixAffinity(config, index, load)
        case LoraScorerConfig():
            return LoraAffinity(config)
        case SessionScorerConfig():
            return SessionAffinity(config)
