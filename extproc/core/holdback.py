"""Ceilings: the saturation at which a band stops dispatching, so that room is held back for higher ones.

It must not know endpoints or queues. For bands p_0 > ... > p_{N-1} with demand:

    static:                    c_i = threshold
    priority-holdback, rank:   c_i = max - i x (max - min) / (N - 1)
    priority-holdback, value:  c_i = min + (p_i - p_min) / (p_max - p_min) x (max - min)

One band alone gets the maximum. A band has demand while it has requests queued or in flight and for
`demand_window_s` after; bands listed in `bands` count always when `rank_over` is `declared`.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from extproc.core.checks import FieldChecks
from extproc.core.demand import DemandTracker


class CeilingPolicy(Protocol):
    def ceiling(self, priority: int, now: float) -> float:
        """The band's ceiling now; 0 closes it."""
        ...

    def next_change(self, now: float) -> float | None:
        """When a ceiling may rise by the passing of time alone; None: never."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class StaticCeilingConfig:
    """The same ceiling for all bands; above 1 it admits more than the capacity."""

    type: Literal["static"] = "static"
    threshold: float = 1.0

    def __post_init__(self) -> None:
        FieldChecks(self).above("threshold", 0, 100).finish()


@dataclass(frozen=True, kw_only=True, slots=True)
class PriorityHoldbackConfig:
    """Ceilings fall linearly from `max_ceiling` for the highest band to `min_ceiling` for the lowest."""

    type: Literal["priority-holdback"] = "priority-holdback"
    min_ceiling: float
    max_ceiling: float = 1.0
    domain: Literal["rank", "value"] = "rank"
    shape: Literal["linear"] = "linear"
    rank_over: Literal["demand", "declared"] = "demand"
    demand_window_s: float = 300.0

    def __post_init__(self) -> None:
        checks = FieldChecks(self).at_least("min_ceiling", 0, 1).above("max_ceiling", 0, 1)
        checks.at_least("demand_window_s", 0, 86_400)
        checks.require(self.min_ceiling < self.max_ceiling, "min_ceiling: must be below max_ceiling").finish()


CeilingConfig = StaticCeilingConfig | PriorityHoldbackConfig


class StaticCeiling:
    def __init__(self, config: StaticCeilingConfig) -> None:
        self._threshold = config.threshold

    def ceiling(self, priority: int, now: float) -> float:
        return self._threshold

    def next_change(self, now: float) -> float | None:
        return None


class PriorityHoldback:
    def __init__(
        self, config: PriorityHoldbackConfig, declared: Sequence[int], demand: DemandTracker
    ) -> None:
        self._config = config
        self._declared = sorted(declared) if config.rank_over == "declared" else []
        self._demand = demand

    def ceiling(self, priority: int, now: float) -> float:
        self._demand.forget_before(now - self._config.demand_window_s)
        priorities = self._demand.priorities()
        if self._declared:
            priorities = sorted({*priorities, *self._declared})
        config = self._config
        if len(priorities) < 2:
            return config.max_ceiling
        span = config.max_ceiling - config.min_ceiling
        if config.domain == "value":
            lowest, highest = priorities[0], priorities[-1]
            return config.min_ceiling + (priority - lowest) / (highest - lowest) * span
        rank = len(priorities) - 1 - bisect.bisect_left(priorities, priority)
        return config.max_ceiling - rank * span / (len(priorities) - 1)

    def next_change(self, now: float) -> float | None:
        oldest = self._demand.oldest_idle()
        return None if oldest is None else oldest + self._config.demand_window_s


def build_ceilings(config: CeilingConfig, declared: Sequence[int], demand: DemandTracker) -> CeilingPolicy:
    match config:
        case StaticCeilingConfig():
            return StaticCeiling(config)
        case PriorityHoldbackConfig():
            return PriorityHoldback(config, declared, demand)
