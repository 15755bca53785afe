"""Which flow of a band is served next: policies give each flow a rank, the lowest is served first.

| policy | rank of a flow | effect |
|---|---|---|
| global-strict | its head's place in the ordering | one queue for all, no isolation |
| round-robin | the turn at which it was last served | one request a turn |
| weighted-fair | start tag: max(virtual time, last finish) | tokens are shared by weight |

With weighted-fair a request finishes at its start tag + tokens / weight.

A flow exists only while it has requests; weighted-fair remembers the finish tags of flows that ran empty
(as long as they matter, at most `max_idle_flows`), so that leaving and coming back wins nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from extproc.core.checks import FieldChecks
from extproc.core.heap import Key
from extproc.core.types import FairnessId


class FairnessPolicy(Protocol):
    """Ranks are finite tuples; `activated` and `served` are called by the band, in that order."""

    def activated(self, fairness_id: FairnessId) -> None:
        """The flow got its first queued request."""
        ...

    def served(self, fairness_id: FairnessId, cost_tokens: int) -> None:
        """A request of the flow was dispatched."""
        ...

    def deactivated(self, fairness_id: FairnessId) -> None:
        """The flow ran empty."""
        ...

    def rank(self, fairness_id: FairnessId, head_key: Key) -> Key: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class GlobalStrictFairnessConfig:
    """The best head over all flows, as if the band were one queue."""

    type: Literal["global-strict"] = "global-strict"


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundRobinFairnessConfig:
    """Flows take turns, one request each."""

    type: Literal["round-robin"] = "round-robin"


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightedFairFairnessConfig:
    """Tokens are shared in proportion to `weights` (fairness id to weight, others `default_weight`)."""

    type: Literal["weighted-fair"] = "weighted-fair"
    weights: Mapping[str, float] = field(default_factory=dict)
    default_weight: float = 1.0
    max_idle_flows: int = 4096

    def __post_init__(self) -> None:
        checks = FieldChecks(self).above("default_weight", 0, 1e6).at_least("max_idle_flows", 0, 1e7)
        for name, weight in self.weights.items():
            checks.require(0 < weight <= 1e6, f"weights[{name}]: must be above 0 and at most 1e6")
        checks.finish()


FairnessConfig = GlobalStrictFairnessConfig | RoundRobinFairnessConfig | WeightedFairFairnessConfig


class GlobalStrictFairness:
    def activated(self, fairness_id: FairnessId) -> None:
        return

    def served(self, fairness_id: FairnessId, cost_tokens: int) -> None:
        return

    def deactivated(self, fairness_id: FairnessId) -> None:
        return

    def rank(self, fairness_id: FairnessId, head_key: Key) -> Key:
        return head_key


class RoundRobinFairness:
    """A flow goes to the end of the round when it appears and each time it is served."""

    def __init__(self) -> None:
        self._turns: dict[FairnessId, int] = {}
        self._turn = 0

    def activated(self, fairness_id: FairnessId) -> None:
        self._turn += 1
        self._turns[fairness_id] = self._turn

    def served(self, fairness_id: FairnessId, cost_tokens: int) -> None:
        self._turn += 1
        self._turns[fairness_id] = self._turn

    def deactivated(self, fairness_id: FairnessId) -> None:
        self._turns.pop(fairness_id, None)

    def rank(self, fairness_id: FairnessId, head_key: Key) -> Key:
        return (self._turns[fairness_id],)


class WeightedFairFairness:
    """Start-time fair queuing (Goyal, Vin, Cheng 1996) over expected tokens."""

    def __init__(self, config: WeightedFairFairnessConfig) -> None:
        self._config = config
        self._virtual_time = 0.0
        self._starts: dict[FairnessId, float] = {}
        self._idle_finishes: dict[FairnessId, float] = {}

    def activated(self, fairness_id: FairnessId) -> None:
        finish = self._idle_finishes.pop(fairness_id, 0.0)
        self._starts[fairness_id] = max(self._virtual_time, finish)

    def served(self, fairness_id: FairnessId, cost_tokens: int) -> None:
        start = self._starts[fairness_id]
        self._virtual_time = max(self._virtual_time, start)
        weight = self._config.weights.get(fairness_id, self._config.default_weight)
        self._starts[fairness_id] = start + max(1, cost_tokens) / weight

    def deactivated(self, fairness_id: FairnessId) -> None:
        finish = self._starts.pop(fairness_id, 0.0)
        if not self._starts:
            # The band ran empty: no one is owed anything, the next busy period starts level.
            self._idle_finishes.clear()
        elif finish > self._virtual_time and self._config.max_idle_flows:
            if len(self._idle_finishes) >= self._config.max_idle_flows:
                del self._idle_finishes[next(iter(self._idle_finishes))]
            self._idle_finishes[fairness_id] = finish

    def rank(self, fairness_id: FairnessId, head_key: Key) -> Key:
        return (self._starts[fairness_id],)


def build_fairness(config: FairnessConfig) -> FairnessPolicy:
    match config:
        case GlobalStrictFairnessConfig():
            return GlobalStrictFairness()
        case RoundRobinFairnessConfig():
            return RoundRobinFairness()
        case WeightedFairFairnessConfig():
            return WeightedFairFairness(config)
