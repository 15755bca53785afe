"""Ceilings: the saturation at which a band stops dispatching, so that room is held back for higher ones.

It must not know endpoints or queues. For bands p_0 > ... > p_{N-1} with demand, and saturation s:

    static:                    c_i = threshold
    explicit:                  c_i = the configured value of the nearest listed priority at or below p_i
    priority-holdback, rank:   c_i = max - i x (max - min) / (N - 1)
    priority-holdback, value:  c_i = min + (p_i - p_min) / (p_max - p_min) x (max - min)
    soft-reflective:           r_i = 1 - i s / (N - 1); c_i = 1 while s < r_i, 0 from s = 1; between them
                               1 for a part 1 - (s - r_i) / (1 - r_i) of every `period_s`, else 0

One band alone gets the maximum. A band has demand while it has requests queued or in flight and for
`demand_window_s` after; bands listed in the config count always when `rank_over` is `declared`.
(`adaptive-holdback` is in its own module.)
"""

from __future__ import annotations

import bisect
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from extproc.core.ceiling import Ceiling, level
from extproc.core.checks import FieldChecks
from extproc.core.demand import DemandTracker
from extproc.core.footprint import Footprint


class CeilingPolicy(Protocol):
    def ceiling(self, priority: int, now: float) -> Ceiling:
        """The band's ceiling now; 0 closes it."""
        ...

    def shown(self, priority: int, now: float) -> Ceiling:
        """The same for views: asking must not change any later answer."""
        ...

    def booked(self, priority: int, footprint: Footprint, now: float) -> None:
        """A request of this priority was dispatched."""
        ...

    def released(self, priority: int, footprint: Footprint, now: float) -> None:
        """It has ended."""
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
class ExplicitCeilingsConfig:
    """`ceilings` maps priorities to ceilings, never higher for a lower priority. A priority that isn't
    listed takes the value of the next lower listed one, below all of them that of the lowest."""

    type: Literal["explicit"] = "explicit"
    ceilings: Mapping[int, float]

    def __post_init__(self) -> None:
        checks = FieldChecks(self).require(bool(self.ceilings), "ceilings: must list at least one priority")
        rows = sorted(self.ceilings.items())
        for priority, value in rows:
            is_valid = math.isfinite(value) and 0 <= value <= 100
            checks.require(is_valid, f"ceilings[{priority}]: must be from 0 to 100, got {value!r}")
        for (lower, low), (higher, high) in itertools.pairwise(rows):
            message = f"ceilings: priority {lower} ({low}) must not be above priority {higher} ({high})"
            checks.require(not low > high, message)
        checks.finish()


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


@dataclass(frozen=True, kw_only=True, slots=True)
class SoftReflectiveConfig:
    """Lower bands are open for a falling part of the time as saturation rises."""

    type: Literal["soft-reflective"] = "soft-reflective"
    period_s: float = 1.0
    rank_over: Literal["demand", "declared"] = "demand"
    demand_window_s: float = 300.0

    def __post_init__(self) -> None:
        FieldChecks(self).above("period_s", 0, 3600).at_least("demand_window_s", 0, 86_400).finish()


class _Fixed(ABC):
    """What policies that don't learn have in common."""

    @abstractmethod
    def ceiling(self, priority: int, now: float) -> Ceiling: ...

    def shown(self, priority: int, now: float) -> Ceiling:
        return self.ceiling(priority, now)

    def booked(self, priority: int, footprint: Footprint, now: float) -> None:
        return

    def released(self, priority: int, footprint: Footprint, now: float) -> None:
        return

    def next_change(self, now: float) -> float | None:
        return None


class StaticCeiling(_Fixed):
    def __init__(self, config: StaticCeilingConfig) -> None:
        self._ceiling = level(config.threshold)

    def ceiling(self, priority: int, now: float) -> Ceiling:
        return self._ceiling


class ExplicitCeilings(_Fixed):
    def __init__(self, config: ExplicitCeilingsConfig) -> None:
        self._priorities = sorted(config.ceilings)
        self._ceilings = [level(config.ceilings[priority]) for priority in self._priorities]

    def ceiling(self, priority: int, now: float) -> Ceiling:
        index = bisect.bisect_right(self._priorities, priority) - 1
        return self._ceilings[max(0, index)]


class RankedBands:
    """Bands with demand in order, for policies that rank them."""

    def __init__(self, declared: Sequence[int], demand: DemandTracker, window_s: float) -> None:
        self._declared = frozenset(declared)
        self._demand = demand
        self._window_s = window_s

    def lowest_first(self, now: float) -> Sequence[int]:
        """For a decision."""
        self._demand.forget_idle(self._window_s, now)
        return self._with_declared(self._demand.priorities())

    def shown(self, now: float) -> Sequence[int]:
        """The same for somebody who only looks: nothing is forgotten, since a longer window may follow."""
        return self._with_declared(self._demand.seen_within(self._window_s, now))

    def _with_declared(self, priorities: Sequence[int]) -> Sequence[int]:
        return sorted(self._declared.union(priorities)) if self._declared else priorities

    def next_change(self) -> float | None:
        oldest = self._demand.oldest_idle()
        return None if oldest is None else oldest + self._window_s


class PriorityHoldback(_Fixed):
    def __init__(self, config: PriorityHoldbackConfig, bands: RankedBands) -> None:
        self._config = config
        self._bands = bands

    def ceiling(self, priority: int, now: float) -> Ceiling:
        return self._among(self._bands.lowest_first(now), priority)

    def shown(self, priority: int, now: float) -> Ceiling:
        return self._among(self._bands.shown(now), priority)

    def _among(self, bands: Sequence[int], priority: int) -> Ceiling:
        config = self._config
        if len(bands) < 2:
            return level(config.max_ceiling)
        span = config.max_ceiling - config.min_ceiling
        if config.domain == "value":
            share = (priority - bands[0]) / (bands[-1] - bands[0])
            return level(config.min_ceiling + min(1.0, max(0.0, share)) * span)
        return level(config.max_ceiling - _rank(bands, priority) * span / (len(bands) - 1))

    def next_change(self, now: float) -> float | None:
        return self._bands.next_change()


class SoftReflective(_Fixed):
    def __init__(
        self, config: SoftReflectiveConfig, bands: RankedBands, saturation: Callable[[float], float]
    ) -> None:
        self._config = config
        self._bands = bands
        self._saturation = saturation

    def ceiling(self, priority: int, now: float) -> Ceiling:
        return self._among(self._bands.lowest_first(now), priority, now)

    def shown(self, priority: int, now: float) -> Ceiling:
        return self._among(self._bands.shown(now), priority, now)

    def _among(self, bands: Sequence[int], priority: int, now: float) -> Ceiling:
        rank = _rank(bands, priority)
        if len(bands) < 2 or rank == 0:
            return level(1.0)
        saturation = self._saturation(now)
        threshold = 1 - rank * saturation / (len(bands) - 1)
        if saturation < threshold:
            return level(1.0)
        if saturation >= 1:
            return level(0.0)
        duty = 1 - (saturation - threshold) / (1 - threshold)
        phase = math.fmod(now, self._config.period_s) / self._config.period_s
        return level(1.0 if phase < duty else 0.0)

    def next_change(self, now: float) -> float | None:
        period_s = self._config.period_s
        due = (math.floor(now / period_s) + 1) * period_s
        return due if due > now else due + period_s


def _rank(lowest_first: Sequence[int], priority: int) -> int:
    """0 for the highest band."""
    index = bisect.bisect_left(lowest_first, priority)
    return max(0, len(lowest_first) - 1 - index)
