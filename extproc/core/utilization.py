"""The utilization detector: saturation from what endpoints report of their own queue and KV cache.

    score(e) = max(waiting_e / queue_depth_threshold, kv_usage_e / kv_cache_util_threshold)
    S        = mean of score over the open endpoints

Missing or stale samples count as full (1.0), as the peer's do; `when_stale: accounting` takes instead what
is in flight there over `accounting_max_concurrency`. `count_unsampled` adds the requests in flight that the
sample doesn't show to `waiting`, so that a burst can't hide behind an old reading (the peer doesn't).

The endpoint filter needs a fresh sample and both figures below threshold x (1 + burst_fraction). With
nothing fresh it lets all pass: the gate has decided.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from extproc.core.ceiling import TOLERANCE, Ceiling
from extproc.core.checks import FieldChecks
from extproc.core.footprint import NO_FOOTPRINT, Footprint
from extproc.core.heap import Entry, RemovableHeap
from extproc.core.inflight import InflightRequest
from extproc.core.pool import Candidates, EndpointState
from extproc.core.types import EndpointSample


@dataclass(frozen=True, kw_only=True, slots=True)
class UtilizationDetectorConfig:
    """Thresholds at which an endpoint is full; `staleness_s` must exceed the scrape interval."""

    type: Literal["utilization-detector"] = "utilization-detector"
    queue_depth_threshold: int = 5
    kv_cache_util_threshold: float = 0.8
    staleness_s: float = 0.2
    burst_fraction: float = 0.0
    when_stale: Literal["full", "accounting"] = "full"
    accounting_max_concurrency: int = 100
    count_unsampled: bool = False

    def __post_init__(self) -> None:
        checks = FieldChecks(self).at_least("queue_depth_threshold", 1, 1_000_000)
        checks.above("kv_cache_util_threshold", 0, 1).above("staleness_s", 0, 3600)
        checks.at_least("burst_fraction", 0, 100).at_least("accounting_max_concurrency", 1, 1_000_000)
        checks.finish()


class _Reading:
    """One endpoint's part of the mean."""

    __slots__ = ("ended_unseen", "is_fresh", "kv_fraction", "net_score", "score", "timer", "waiting")

    def __init__(self) -> None:
        self.is_fresh = False
        self.waiting = 0.0
        self.kv_fraction = 0.0
        self.score = 1.0
        self.net_score = 1.0
        self.ended_unseen = NO_FOOTPRINT
        self.timer: Entry[EndpointState] | None = None


class UtilizationDetector:
    """Keeps the sum of scores; a heap of sample ages turns readings stale in time."""

    is_measured = True
    counts_kv = False

    def __init__(self, config: UtilizationDetectorConfig) -> None:
        self._config = config
        self._readings: dict[EndpointState, _Reading] = {}
        self._ages: RemovableHeap[EndpointState] = RemovableHeap()
        self._scores = [0.0, 0.0]
        self._fresh = 0
        self._changes = 0

    def endpoint_changed(self, endpoint: EndpointState, now: float) -> None:
        reading = self._readings.get(endpoint)
        if reading is None:
            reading = self._readings[endpoint] = _Reading()
            self._restart_age(endpoint, reading)
        else:
            self._count(reading, -1)
        self._evaluate(endpoint, reading, now)
        self._count(reading, 1)

    def endpoint_sampled(self, endpoint: EndpointState, now: float) -> None:
        reading = self._readings.get(endpoint)
        if reading is not None:
            self._restart_age(endpoint, reading)
            reading.ended_unseen = NO_FOOTPRINT

    def endpoint_closed(self, endpoint: EndpointState) -> None:
        reading = self._readings.pop(endpoint, None)
        if reading is not None:
            self._count(reading, -1)
            if reading.timer is not None:
                self._ages.remove(reading.timer)

    def request_ended(self, entry: InflightRequest, output_tokens: int | None, now: float) -> None:
        """A victim that is gone stays a promise until a sample shows the room it left."""
        reading = self._readings.get(entry.endpoint)
        if reading is not None and entry.revoked_at is not None:
            reading.ended_unseen = reading.ended_unseen.plus(entry.footprint)

    def saturation(self, candidates: Candidates, now: float) -> float:
        return self._mean(candidates, 0, now)

    def resources(self, now: float) -> Mapping[str, float]:
        self._age(now)
        queue_depth, kv_util = self._config.queue_depth_threshold, self._config.kv_cache_util_threshold
        rows = [
            (r.waiting, r.kv_fraction) if r.is_fresh else (queue_depth, kv_util)
            for r in self._readings.values()
        ]
        if not rows:
            return {"requests": 1.0, "tokens": 1.0}
        waiting, kv_fraction = (math.fsum(column) / len(rows) for column in zip(*rows, strict=True))
        return {"requests": waiting / queue_depth, "tokens": kv_fraction / kv_util}

    def endpoint_resources(self, endpoint: EndpointState, now: float) -> Mapping[str, float]:
        self._age(now)
        reading = self._readings.get(endpoint)
        if reading is None or not reading.is_fresh:
            return {"requests": 1.0, "tokens": 1.0}
        return {
            "requests": reading.waiting / self._config.queue_depth_threshold,
            "tokens": reading.kv_fraction / self._config.kv_cache_util_threshold,
        }

    def capacity(self, now: float) -> Footprint | None:
        return None

    def whole_capacity(self, endpoint: EndpointState) -> Footprint | None:
        return None

    def stale_endpoints(self, now: float) -> int:
        self._age(now)
        return len(self._readings) - self._fresh

    def admits(
        self,
        candidates: Candidates,
        footprint: Footprint,
        ceiling: Ceiling,
        promised: Footprint | None,
        now: float,
    ) -> bool:
        saturation = self._mean(candidates, 0 if promised is None else 1, now)
        if promised is not None and len(candidates):
            saturation -= self._relief(candidates, promised) / len(candidates)
        return saturation < ceiling.lowest - TOLERANCE

    def fits(
        self,
        endpoint: EndpointState,
        footprint: Footprint,
        ceiling: Ceiling,
        promised: Footprint | None,
        now: float,
    ) -> bool:
        reading = self._readings.get(endpoint)
        if reading is None:
            return False
        if promised is not None:
            return True
        if not reading.is_fresh:
            is_accounted = self._config.when_stale == "accounting"
            return reading.score < 1 - TOLERANCE if is_accounted else not self._fresh
        slack = 1 + self._config.burst_fraction
        return (
            reading.waiting < self._config.queue_depth_threshold * slack
            and reading.kv_fraction < self._config.kv_cache_util_threshold * slack
        )

    def holds_all(
        self, candidates: Candidates, need: Footprint, ceiling: Ceiling, freed: Footprint, now: float
    ) -> bool:
        before_last = Footprint(need.requests - 1, need.tokens, need.kv_tokens)
        return self.admits(candidates, need, ceiling, freed.minus(before_last), now)

    def next_change(self, now: float) -> float | None:
        """A reading that turns stale falls back to accounting, which may be lower."""
        oldest = self._ages.peek()
        if self._config.when_stale == "full" or oldest is None:
            return None
        return math.nextafter(oldest.key[0], math.inf)

    def _mean(self, candidates: Candidates, column: int, now: float) -> float:
        self._age(now)
        if candidates.is_whole_pool:
            return self._scores[column] / len(self._readings) if self._readings else 1.0
        rows = [self._readings[e] for e in candidates if e in self._readings]
        scores = [row.net_score if column else row.score for row in rows]
        return math.fsum(scores) / len(scores) if scores else 1.0

    def _relief(self, candidates: Candidates, promised: Footprint) -> float:
        """What freeing so much takes off the sum of scores, if it is spread where it helps."""
        if not self._fresh and self._config.when_stale == "accounting":
            return promised.requests / self._config.accounting_max_concurrency
        known = [e.sample.kv_capacity_tokens or 0 for e in candidates if e.sample is not None]
        kv_capacity = sum(known) / max(1, len(known))
        by_queue = promised.requests / self._config.queue_depth_threshold
        if not kv_capacity:
            return by_queue
        return max(by_queue, promised.kv_tokens / kv_capacity / self._config.kv_cache_util_threshold)

    def _evaluate(self, endpoint: EndpointState, reading: _Reading, now: float) -> None:
        config, sample = self._config, endpoint.sample
        reading.is_fresh = sample is not None and now <= sample.sampled_at + config.staleness_s
        if sample is None or not reading.is_fresh:
            reading.score = reading.net_score = 1.0
            if config.when_stale == "accounting":
                capacity = config.accounting_max_concurrency
                reading.score = endpoint.requests / capacity
                reading.net_score = (endpoint.requests - endpoint.revoked_requests) / capacity
            return
        reading.waiting = float(sample.waiting_requests or 0)
        unsampled = self._unsampled(endpoint, sample, reading.ended_unseen.requests)
        if config.count_unsampled:
            reading.waiting += unsampled
        reading.kv_fraction = sample.kv_usage_fraction or 0.0
        reading.score = self._score(reading.waiting, reading.kv_fraction)
        freed = endpoint.revoked.plus(reading.ended_unseen)
        kv_freed = freed.kv_tokens / sample.kv_capacity_tokens if sample.kv_capacity_tokens else 0.0
        # Who was sent on a promise has used it up, though no sample shows that yet.
        taken = 0 if config.count_unsampled else unsampled
        reading.net_score = self._score(
            max(0.0, reading.waiting + taken - freed.requests), max(0.0, reading.kv_fraction - kv_freed)
        )

    def _score(self, waiting: float, kv_fraction: float) -> float:
        config = self._config
        return max(waiting / config.queue_depth_threshold, kv_fraction / config.kv_cache_util_threshold)

    def _unsampled(self, endpoint: EndpointState, sample: EndpointSample, ended: int) -> int:
        """Requests in flight that the sample doesn't show: newer than it, or the engine's gauges lag."""
        seen = (sample.running_requests or 0) + (sample.waiting_requests or 0)
        return max(0, endpoint.requests + ended - seen)

    def _restart_age(self, endpoint: EndpointState, reading: _Reading) -> None:
        if reading.timer is not None:
            self._ages.remove(reading.timer)
        reading.timer = None
        if endpoint.sample is not None:
            due = endpoint.sample.sampled_at + self._config.staleness_s
            reading.timer = self._ages.push((due,), endpoint)

    def _age(self, now: float) -> None:
        while (entry := self._ages.peek()) is not None and entry.key[0] < now:
            endpoint = self._ages.pop()
            assert endpoint is not None
            reading = self._readings[endpoint]
            reading.timer = None
            self._count(reading, -1)
            self._evaluate(endpoint, reading, now)
            self._count(reading, 1)

    def _count(self, reading: _Reading, sign: int) -> None:
        self._scores[0] += sign * reading.score
        self._scores[1] += sign * reading.net_score
        self._fresh += sign * reading.is_fresh
        self._changes += 1
        if sign > 0 and self._changes > 2 * len(self._readings) + 64:
            # Float sums drift; summing afresh once per pool's worth of changes keeps that O(1) each.
            self._changes = 0
            rows = self._readings.values()
            self._scores = [math.fsum(r.score for r in rows), math.fsum(r.net_score for r in rows)]
