"""The concurrency detector: saturation from our own accounting of requests and tokens in flight.

It must not look at measurements. Formulas over the open endpoints e (N of them, capacity C_e requests and
T_e tokens, by default the configured ones):

    requests: sum(requests_e) / sum(C_e)
    tokens:   sum(tokens_e) / sum(T_e)
    hybrid:   mean over e of max(requests_e / C_e, tokens_e / T_e)

The endpoint filter compares the load with capacity x (1 + burst_fraction), before adding the request.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec
from msgspec.structs import astuple

from extproc.core.ceiling import TOLERANCE, Ceiling
from extproc.core.checks import FieldChecks
from extproc.core.credits import UNLIMITED
from extproc.core.footprint import NO_FOOTPRINT, Footprint
from extproc.core.inflight import InflightRequest
from extproc.core.pool import Candidates, EndpointState


@dataclass(frozen=True, kw_only=True, slots=True)
class ConcurrencyDetectorConfig:
    """`max_concurrency` requests and `max_token_concurrency` tokens per endpoint; an endpoint's own
    capacity goes first. `burst_fraction` is the endpoint filter's slack (the peer's `headroom`)."""

    type: Literal["concurrency-detector"] = "concurrency-detector"
    mode: Literal["requests", "tokens", "hybrid"] = "requests"
    max_concurrency: int = 100
    max_token_concurrency: int = 1_000_000
    burst_fraction: float = 0.0

    def __post_init__(self) -> None:
        checks = FieldChecks(self).at_least("max_concurrency", 1, 1_000_000)
        checks.at_least("max_token_concurrency", 1, 1e12).at_least("burst_fraction", 0, 100).finish()


_NET_RATIO, _RATIO = 6, 7


class _Share(msgspec.Struct, frozen=True, gc=False):
    """What one endpoint adds to the pool's sums: six counts, then the ratios of mode hybrid."""

    requests: int
    tokens: int
    revoked_requests: int
    revoked_tokens: int
    max_requests: int
    max_tokens: int
    net_ratio: float = 0.0
    ratio: float = 0.0


_NOTHING = _Share(0, 0, 0, 0, 0, 0)


class ConcurrencyDetector:
    """Needs no endpoint to report anything."""

    is_measured = False
    counts_kv = False

    def __init__(self, config: ConcurrencyDetectorConfig) -> None:
        self._config = config
        self._shares: dict[EndpointState, _Share] = {}
        self._is_hybrid = config.mode == "hybrid"
        self._sums = [0.0] * 8
        self._changes = 0

    def endpoint_changed(self, endpoint: EndpointState, now: float) -> None:
        old = self._shares.get(endpoint, _NOTHING)
        self._shares[endpoint] = new = self._share(endpoint)
        self._replace(old, new)

    def endpoint_sampled(self, endpoint: EndpointState, now: float) -> None:
        return

    def request_ended(self, entry: InflightRequest, output_tokens: int | None, now: float) -> None:
        return

    def endpoint_closed(self, endpoint: EndpointState) -> None:
        old = self._shares.pop(endpoint, None)
        if old is not None:
            self._replace(old, _NOTHING)

    def saturation(self, candidates: Candidates, now: float) -> float:
        return self._saturation(candidates, None)

    def resources(self, now: float) -> Mapping[str, float]:
        sums = self._sums
        return {"requests": _ratio(sums[0], sums[4]), "tokens": _ratio(sums[1], sums[5])}

    def endpoint_resources(self, endpoint: EndpointState, now: float) -> Mapping[str, float]:
        share = self._share(endpoint)
        return {
            "requests": _ratio(share.requests, share.max_requests),
            "tokens": _ratio(share.tokens, share.max_tokens),
        }

    def capacity(self, now: float) -> Footprint:
        return Footprint(int(self._sums[4]), int(self._sums[5]), int(self._sums[5]))

    def whole_capacity(self, endpoint: EndpointState) -> Footprint | None:
        max_requests, max_tokens = self._whole(endpoint)
        mode = self._config.mode
        slots = UNLIMITED if mode == "tokens" else max_requests
        tokens = UNLIMITED if mode == "requests" else max_tokens
        return Footprint(slots, tokens, tokens)

    def stale_endpoints(self, now: float) -> int:
        return 0

    def admits(
        self,
        candidates: Candidates,
        footprint: Footprint,
        ceiling: Ceiling,
        promised: Footprint | None,
        now: float,
    ) -> bool:
        return self._saturation(candidates, promised) < self._limit(ceiling) - TOLERANCE

    def holds_all(
        self, candidates: Candidates, need: Footprint, ceiling: Ceiling, freed: Footprint, now: float
    ) -> bool:
        # The gate looks at the load before the request: the last of them must find it below the ceiling.
        before_last = Footprint(need.requests - 1, need.tokens - 1, need.kv_tokens - 1)
        saturation = self._saturation(candidates, freed.minus(before_last))
        return saturation < self._limit(ceiling) - TOLERANCE

    def fits(
        self,
        endpoint: EndpointState,
        footprint: Footprint,
        ceiling: Ceiling,
        promised: Footprint | None,
        now: float,
    ) -> bool:
        share = self._shares.get(endpoint)
        if share is None:
            return False
        requests, tokens = share.requests, share.tokens
        if promised is not None:
            requests -= share.revoked_requests + promised.requests
            tokens -= share.revoked_tokens + promised.tokens
        slack = 1 + self._config.burst_fraction
        mode = self._config.mode
        if mode != "tokens" and requests >= math.floor(share.max_requests * slack):
            return False
        return mode == "requests" or tokens < math.floor(share.max_tokens * slack)

    def next_change(self, now: float) -> float | None:
        return None

    def _limit(self, ceiling: Ceiling) -> float:
        match self._config.mode:
            case "requests":
                return ceiling.requests
            case "tokens":
                return ceiling.tokens
            case "hybrid":
                return ceiling.lowest

    def _saturation(self, candidates: Candidates, promised: Footprint | None) -> float:
        if candidates.is_whole_pool:
            sums, count = self._sums, len(self._shares)
        else:
            shares = [self._shares[e] for e in candidates if e in self._shares]
            sums, count = _sum(shares), len(shares)
        if not count:
            return 1.0
        is_net = promised is not None
        freed = promised or NO_FOOTPRINT
        if self._config.mode == "requests":
            return _ratio(sums[0] - (sums[2] + freed.requests if is_net else 0), sums[4])
        if self._config.mode == "tokens":
            return _ratio(sums[1] - (sums[3] + freed.tokens if is_net else 0), sums[5])
        if not is_net:
            return sums[_RATIO] / count
        # What is freed comes off the mean at the average endpoint's rate, whichever resource it helps less.
        relief = min(_ratio(freed.requests * count, sums[4]), _ratio(freed.tokens * count, sums[5]))
        return (sums[_NET_RATIO] - relief) / count

    def _whole(self, endpoint: EndpointState) -> tuple[int, int]:
        config, own = self._config, endpoint.endpoint
        max_requests = config.max_concurrency if own.max_requests is None else own.max_requests
        max_tokens = config.max_token_concurrency if own.max_tokens is None else own.max_tokens
        return max_requests, max_tokens

    def _share(self, endpoint: EndpointState) -> _Share:
        max_requests, max_tokens = self._whole(endpoint)
        if endpoint.leased_slots is not None:
            max_requests = min(max_requests, endpoint.leased_slots)
        if endpoint.leased_kv_tokens is not None:
            max_tokens = min(max_tokens, endpoint.leased_kv_tokens)
        requests, tokens = endpoint.requests, endpoint.tokens
        revoked = endpoint.revoked_requests, endpoint.revoked_tokens
        if not self._is_hybrid:
            return _Share(requests, tokens, *revoked, max_requests, max_tokens)
        ratio = max(_ratio(requests, max_requests), _ratio(tokens, max_tokens))
        net = max(_ratio(requests - revoked[0], max_requests), _ratio(tokens - revoked[1], max_tokens))
        return _Share(requests, tokens, *revoked, max_requests, max_tokens, net, ratio)

    def _replace(self, old: _Share, new: _Share) -> None:
        sums = self._sums
        sums[0] += new.requests - old.requests
        sums[1] += new.tokens - old.tokens
        sums[2] += new.revoked_requests - old.revoked_requests
        sums[3] += new.revoked_tokens - old.revoked_tokens
        sums[4] += new.max_requests - old.max_requests
        sums[5] += new.max_tokens - old.max_tokens
        if not self._is_hybrid:
            return
        sums[_NET_RATIO] += new.net_ratio - old.net_ratio
        sums[_RATIO] += new.ratio - old.ratio
        self._changes += 1
        if self._changes > 8 * len(self._shares) + 64:
            # Sums of ratios drift; summing afresh once per pool's worth of changes keeps that O(1) each.
            self._changes = 0
            self._sums = _sum(self._shares.values())


def _ratio(load: float, capacity: float) -> float:
    """Load over capacity; without capacity everything is full."""
    return load / capacity if capacity > 0 else 1.0


def _sum(shares: Iterable[_Share]) -> list[float]:
    columns = list(zip(*(astuple(share) for share in shares), strict=True))
    return [math.fsum(column) for column in columns] if columns else [0.0] * 8
