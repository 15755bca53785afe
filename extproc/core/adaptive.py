"""The adaptive-holdback ceiling: room for higher bands, sized to what they have lately had in flight.

For a band, "higher" is all traffic above it. Per resource the reserve is headroom beyond what higher
traffic has in flight now, bounded, and none once higher traffic has been absent for `idle_after_s`:

    slots:  max(0, q - now), q = time-weighted quantile of the higher in-flight count; at most
            `max_slot_fraction` of the capacity, in whole slots, at least one
    KV:     (m + 2 sqrt(m)) x mean footprint, m = max(time-weighted mean count, now); at most `max_fraction`
            of the capacity; only while the pool's KV is fuller than its slots: there an eviction costs
            more than an idle place

    ceiling = 1 - reserve / capacity

Bursts that last less than a quarter of the time reserve no slots, since the batch would pay for them all the
time: the reserve is also bounded by c + 2 sqrt(c), where c is the count's 0.75 quantile.
The reserve shrinks by the passing of time alone; `next_change` makes sure that somebody looks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from extproc.core.ceiling import TOLERANCE, Ceiling, level
from extproc.core.checks import FieldChecks
from extproc.core.footprint import NO_FOOTPRINT, Footprint

_LOOK_AGAIN_S = 0.25
_MEAN_WEIGHT = 0.1
_COMMON_QUANTILE = 0.75
_PAST_WEIGHT = 0.1
"""What the idle time before the first observation counts, as a part of `memory_s`."""
_RESCALE_AT = 1e100


@dataclass(frozen=True, kw_only=True, slots=True)
class AdaptiveHoldbackConfig:
    """`slot_quantile` over `memory_s`; `kv_margin` is the factor of sqrt(m). The first idle slots save most
    evictions, so `max_slot_fraction` is small; `max_fraction` leaves batch at least half of the KV cache.
    `reserve_slots` and `reserve_kv` switch the two reserves."""

    type: Literal["adaptive-holdback"] = "adaptive-holdback"
    slot_quantile: float = 0.95
    memory_s: float = 30.0
    kv_margin: float = 2.0
    max_slot_fraction: float = 0.05
    max_fraction: float = 0.5
    idle_after_s: float = 60.0
    reserve_slots: bool = True
    reserve_kv: bool = True

    def __post_init__(self) -> None:
        checks = FieldChecks(self).fraction("slot_quantile").above("memory_s", 0, 3600)
        checks.at_least("kv_margin", 0, 100).at_least("max_fraction", 0, 0.95)
        checks.at_least("max_slot_fraction", 0, 0.95)
        checks.above("idle_after_s", 0, 86_400).finish()


class CountHistory:
    """Time-weighted quantile and mean of a count, with exponential forgetting.

    Weights grow with time (e^(t / memory)) instead of decaying, so that an update touches one number.
    """

    def __init__(self, memory_s: float, now: float) -> None:
        self._memory_s = memory_s
        self._origin = now
        self._updated_at = now
        self._count = 0
        self._weights: dict[int, float] = {0: _PAST_WEIGHT}

    def set(self, count: int, now: float) -> None:
        self._account(now)
        self._count = count

    def quantile(self, fraction: float, now: float) -> int:
        self._account(now)
        threshold = fraction * sum(self._weights.values())
        below = 0.0
        for count in sorted(self._weights):
            below += self._weights[count]
            if below >= threshold:
                return count
        return max(self._weights)  # the sum fell short of the whole by rounding

    def mean(self, now: float) -> float:
        self._account(now)
        total = sum(self._weights.values())
        return sum(count * weight for count, weight in self._weights.items()) / total

    def _account(self, now: float) -> None:
        elapsed = now - self._updated_at
        if elapsed <= 0:
            return
        if elapsed > 50 * self._memory_s:
            self._weights, self._origin = {self._count: 1.0}, now
        else:
            scale = math.exp((self._updated_at - self._origin) / self._memory_s)
            added = scale * math.expm1(elapsed / self._memory_s)
            self._weights[self._count] = self._weights.get(self._count, 0.0) + added
            if added > _RESCALE_AT or scale > _RESCALE_AT:
                self._rescale(now)
        self._updated_at = now

    def _rescale(self, now: float) -> None:
        factor = math.exp((now - self._origin) / self._memory_s)
        kept = {count: weight / factor for count, weight in self._weights.items()}
        self._weights = {count: weight for count, weight in kept.items() if weight > 1e-9}
        self._origin = now


class _Higher:
    """What one band sees above it."""

    def __init__(self, memory_s: float, now: float) -> None:
        self.history = CountHistory(memory_s, now)
        self.inflight = NO_FOOTPRINT
        self.mean_kv_tokens = 0.0
        self.seen_at = float("-inf")
        self.ceiling = level(1.0)
        self.valid_until = float("-inf")


class AdaptiveHoldback:
    """Learns from bookings; bands that never ask for a ceiling cost nothing."""

    def __init__(
        self,
        config: AdaptiveHoldbackConfig,
        capacity: Callable[[float], Footprint | None],
        resources: Callable[[float], Mapping[str, float]],
        inflight_above: Callable[[int], Footprint],
    ) -> None:
        self._config = config
        self._capacity = capacity
        self._resources = resources
        self._inflight_above = inflight_above
        self._bands: dict[int, _Higher] = {}

    def booked(self, priority: int, footprint: Footprint, now: float) -> None:
        """A request of this priority was dispatched."""
        for band, higher in self._bands.items():
            if band < priority:
                self._update(higher, higher.inflight.plus(footprint), now)
                old = higher.mean_kv_tokens
                weight = _MEAN_WEIGHT if old else 1.0
                higher.mean_kv_tokens = old + weight * (footprint.kv_tokens - old)

    def released(self, priority: int, footprint: Footprint, now: float) -> None:
        """It has ended."""
        for band, higher in self._bands.items():
            if band < priority:
                self._update(higher, higher.inflight.minus(footprint), now)

    def ceiling(self, priority: int, now: float) -> Ceiling:
        higher = self._bands.get(priority)
        if higher is None:
            higher = self._bands[priority] = _Higher(self._config.memory_s, now)
            inflight = self._inflight_above(priority)
            if inflight.requests:
                higher.mean_kv_tokens = inflight.kv_tokens / inflight.requests
                self._update(higher, inflight, now)
        self._refresh(higher, now)
        return self._lowest_down_to(priority, higher, now)

    def _refresh(self, higher: _Higher, now: float) -> None:
        if now >= higher.valid_until:
            higher.ceiling = self._compute(higher, now)
            higher.valid_until = now + _LOOK_AGAIN_S

    def _lowest_down_to(self, priority: int, own: _Higher, now: float) -> Ceiling:
        """What is reserved from a band is reserved from all bands below it, too."""
        requests, tokens = own.ceiling
        for other, higher in self._bands.items():
            if other > priority:
                self._refresh(higher, now)
                requests = min(requests, higher.ceiling.requests)
                tokens = min(tokens, higher.ceiling.tokens)
        return Ceiling(requests, tokens)

    def shown(self, priority: int, now: float) -> Ceiling:
        """What the last decision saw: computing afresh would shift when it is looked at again."""
        known = [higher.ceiling for band, higher in self._bands.items() if band >= priority]
        requests = min((ceiling.requests for ceiling in known), default=1.0)
        return Ceiling(requests, min((ceiling.tokens for ceiling in known), default=1.0))

    def next_change(self, now: float) -> float | None:
        """While a reserve is kept, it is looked at again at short intervals.

        A ceiling that is out of date already wakes nobody: the last pass didn't get down to its band (a
        higher one is blocked), and the next pass that does computes it afresh.
        """
        times = [h.valid_until for h in self._bands.values() if h.ceiling.lowest < 1 and h.valid_until > now]
        return min(times, default=None)

    def _update(self, higher: _Higher, inflight: Footprint, now: float) -> None:
        higher.inflight = inflight
        higher.history.set(inflight.requests, now)
        higher.seen_at = now
        higher.valid_until = now

    def _compute(self, higher: _Higher, now: float) -> Ceiling:
        capacity = self._capacity(now)
        is_idle = not higher.inflight.requests and now - higher.seen_at >= self._config.idle_after_s
        if capacity is None or is_idle:
            return level(1.0)
        config, count = self._config, higher.inflight.requests
        slots = kv_tokens = 0.0
        if config.reserve_slots:
            missing = higher.history.quantile(config.slot_quantile, now) - count
            slots = min(self._most_slots(capacity, higher.history, now), max(0, missing))
        if config.reserve_kv and self._does_kv_bind(now):
            mean = max(higher.history.mean(now), count)
            kv_tokens = (mean + config.kv_margin * math.sqrt(mean)) * higher.mean_kv_tokens
        return Ceiling(
            1 - _bounded(slots, capacity.requests, 1.0),
            1 - _bounded(kv_tokens, capacity.kv_tokens, config.max_fraction),
        )

    def _most_slots(self, capacity: Footprint, history: CountHistory, now: float) -> int:
        """No more than a part of the capacity (at least one), nor than steady traffic can explain."""
        common = history.quantile(_COMMON_QUANTILE, now)
        by_capacity = math.floor(self._config.max_slot_fraction * capacity.requests + TOLERANCE)
        return min(max(1, by_capacity), math.floor(common + 2 * math.sqrt(common)))

    def _does_kv_bind(self, now: float) -> bool:
        resources = self._resources(now)
        return resources.get("tokens", 0.0) > resources.get("requests", 0.0)


def _bounded(reserve: float, capacity: float, max_fraction: float) -> float:
    return min(reserve / capacity, max_fraction) if capacity > 0 else 0.0
