"""The capacity detector: sequence slots and KV cache per endpoint, seen ahead and corrected by samples.

It decides from the ledger, so a dispatch counts the moment it is made; samples only correct it. Per open
endpoint and resource

    usage = correction x booked + foreign

`foreign` is load the ledger doesn't know of (what samples show beyond it, the least of the last three),
`correction` (KV only) follows measured / predicted KV tokens slowly and within bounds. A request fits under
ceiling c if usage + footprint <= c x capacity for both resources; an endpoint that is idle takes any
request. Saturation of an endpoint is the larger of its two usages over capacity, of the pool that of its
best endpoint.

Capacities, first hit: the endpoint's own, the config's, what its samples report (KV) or have taught
(slots: the running count at which requests waited although KV was free; probed upwards slowly).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from extproc.core.capacity_model import NO_LOAD, EndpointModel, Row, ratio
from extproc.core.ceiling import TOLERANCE, Ceiling
from extproc.core.checks import FieldChecks
from extproc.core.footprint import Footprint
from extproc.core.heap import Entry, RemovableHeap
from extproc.core.inflight import InflightRequest
from extproc.core.pool import Candidates, EndpointState


@dataclass(frozen=True, kw_only=True, slots=True)
class CapacityDetectorConfig:
    """`max_num_seqs` None learns the slots, starting at `assumed_max_num_seqs`; `kv_tokens` "auto" takes
    what the endpoint reports (unlimited until it does). `kv_overcommit` scales the KV capacity: 1.05 was safe
    in simulation, 1.15 collapsed into preemptions. `correction_memory_s` is the time constant of the KV
    correction. Samples older than `staleness_s` are counted as stale; decisions go on from the ledger."""

    type: Literal["capacity-detector"] = "capacity-detector"
    max_num_seqs: int | None = None
    assumed_max_num_seqs: int = 256
    kv_tokens: int | Literal["auto"] = "auto"
    kv_overcommit: float = 1.0
    min_correction: float = 0.8
    max_correction: float = 1.5
    correction_memory_s: float = 30.0
    staleness_s: float = 5.0

    def __post_init__(self) -> None:
        checks = FieldChecks(self).at_least("max_num_seqs", 1, 1_000_000)
        checks.at_least("assumed_max_num_seqs", 1, 1_000_000).above("kv_overcommit", 0, 4)
        if self.kv_tokens != "auto":
            checks.at_least("kv_tokens", 1, 1e12)
        checks.above("min_correction", 0, 1).at_least("max_correction", 1, 10)
        checks.above("correction_memory_s", 0, 3600).above("staleness_s", 0, 3600).finish()


class CapacityDetector:
    """Heaps keep endpoints ordered by the usage of each resource, so that "nobody fits" is O(log n)."""

    is_measured = False
    counts_kv = True

    def __init__(self, config: CapacityDetectorConfig) -> None:
        self._config = config
        self._models: dict[EndpointState, EndpointModel] = {}
        self._by_saturation: RemovableHeap[EndpointState] = RemovableHeap()
        self._by_slots: RemovableHeap[EndpointState] = RemovableHeap()
        self._by_kv: RemovableHeap[EndpointState] = RemovableHeap()
        self._entries: dict[EndpointState, tuple[Entry[EndpointState], Entry[EndpointState]]] = {}
        self._ranks: dict[EndpointState, Entry[EndpointState]] = {}
        self._unranked: set[EndpointState] = set()
        """Endpoints whose place in `_by_saturation` is out of date: few decisions ask for it."""
        self._sums = [0.0] * 6
        self._changes = 0
        self._largest = (1.0, 1.0)

    def endpoint_changed(self, endpoint: EndpointState, now: float) -> None:
        model = self._models.get(endpoint)
        if model is None:
            model = self._models[endpoint] = EndpointModel(self._config, endpoint)
        else:
            self._take_out(endpoint)
        before = model.row
        model.refresh()
        self._replace(before, model.row)
        if model.slots > self._largest[0] or model.kv_tokens > self._largest[1]:
            self._grow_largest(model)
        self._entries[endpoint] = (
            self._by_slots.push((model.slots_ratio,), endpoint),
            self._by_kv.push((model.kv_ratio,), endpoint),
        )
        self._unranked.add(endpoint)

    def endpoint_sampled(self, endpoint: EndpointState, now: float) -> None:
        model = self._models.get(endpoint)
        if model is not None:
            model.learn_from_sample(now)

    def endpoint_closed(self, endpoint: EndpointState) -> None:
        model = self._models.pop(endpoint, None)
        if model is not None:
            self._unranked.discard(endpoint)
            ranked = self._ranks.pop(endpoint, None)
            if ranked is not None:
                self._by_saturation.remove(ranked)
            self._take_out(endpoint)
            self._replace(model.row, NO_LOAD)
            self._largest = (1.0, 1.0)
            for other in self._models.values():
                self._grow_largest(other)

    def request_ended(self, entry: InflightRequest, output_tokens: int | None, now: float) -> None:
        model = self._models.get(entry.endpoint)
        if model is not None and output_tokens:
            model.learn_decode_rate(output_tokens, now - entry.dispatched_at)

    def saturation(self, candidates: Candidates, now: float) -> float:
        if candidates.is_whole_pool:
            self._rank()
            best = self._by_saturation.peek()
            return 1.0 if best is None else best.key[0]
        models = [self._models[e] for e in candidates if e in self._models]
        return min((max(model.slots_ratio, model.kv_ratio) for model in models), default=1.0)

    def resources(self, now: float) -> Mapping[str, float]:
        slots_used, kv_used, slots, kv_tokens = self._sums[:4]
        return {"requests": ratio(slots_used, slots), "tokens": ratio(kv_used, kv_tokens)}

    def endpoint_resources(self, endpoint: EndpointState, now: float) -> Mapping[str, float]:
        model = self._models.get(endpoint)
        if model is None:
            return {}
        return {"requests": model.slots_ratio, "tokens": model.kv_ratio}

    def capacity(self, now: float) -> Footprint:
        return Footprint(int(self._sums[2]), int(self._sums[3]), int(self._sums[3]))

    def whole_capacity(self, endpoint: EndpointState) -> Footprint | None:
        model = self._models.get(endpoint)
        if model is None:
            return None
        kv_tokens = int(model.whole_kv_tokens)
        return Footprint(int(model.whole_slots), kv_tokens, kv_tokens)

    def stale_endpoints(self, now: float) -> int:
        horizon = now - self._config.staleness_s
        return sum(1 for e in self._models if e.sample is None or e.sample.sampled_at < horizon)

    def admits(
        self,
        candidates: Candidates,
        footprint: Footprint,
        ceiling: Ceiling,
        promised: Footprint | None,
        now: float,
    ) -> bool:
        if promised is not None or not candidates.is_whole_pool:
            return len(candidates) > 0
        slots, kv = self._by_slots.peek(), self._by_kv.peek()
        if slots is None or kv is None:
            return False
        if max(slots.key[0], kv.key[0]) == 0:
            return True
        # What every endpoint that fits must satisfy, tested on the best of each resource.
        largest_slots, largest_kv = self._largest
        least_kv = footprint.kv_tokens * self._config.min_correction
        return (
            slots.key[0] <= ceiling.requests - 1 / largest_slots + TOLERANCE
            and kv.key[0] <= ceiling.tokens - least_kv / largest_kv + TOLERANCE
        )

    def fits(
        self,
        endpoint: EndpointState,
        footprint: Footprint,
        ceiling: Ceiling,
        promised: Footprint | None,
        now: float,
    ) -> bool:
        model = self._models.get(endpoint)
        if model is None or ceiling.lowest <= 0:
            return False
        return model.takes(footprint, ceiling, promised)

    def holds_all(
        self, candidates: Candidates, need: Footprint, ceiling: Ceiling, freed: Footprint, now: float
    ) -> bool:
        if candidates.is_whole_pool:
            slots_used, kv_used, slots, kv_tokens, revoked, revoked_kv = self._sums
        else:
            rows = [self._models[e].row for e in candidates if e in self._models]
            slots_used, kv_used, slots, kv_tokens, revoked, revoked_kv = (
                (sum(column) for column in zip(*rows, strict=True)) if rows else [0.0] * 6
            )
        slots_left = ceiling.requests * slots - slots_used + revoked + freed.requests
        kv_left = ceiling.tokens * kv_tokens - kv_used + revoked_kv + freed.kv_tokens
        return need.requests <= slots_left + TOLERANCE and need.kv_tokens <= kv_left + TOLERANCE

    def next_change(self, now: float) -> float | None:
        return None

    def _rank(self) -> None:
        for endpoint in self._unranked:
            old = self._ranks.get(endpoint)
            if old is not None:
                self._by_saturation.remove(old)
            model = self._models[endpoint]
            self._ranks[endpoint] = self._by_saturation.push(
                (max(model.slots_ratio, model.kv_ratio),), endpoint
            )
        self._unranked.clear()

    def _grow_largest(self, model: EndpointModel) -> None:
        self._largest = max(self._largest[0], model.slots), max(self._largest[1], model.kv_tokens)

    def _take_out(self, endpoint: EndpointState) -> None:
        slots, kv = self._entries.pop(endpoint)
        self._by_slots.remove(slots)
        self._by_kv.remove(kv)

    def _replace(self, old: Row, new: Row) -> None:
        sums = self._sums
        sums[0] += new[0] - old[0]
        sums[1] += new[1] - old[1]
        sums[2] += new[2] - old[2]
        sums[3] += new[3] - old[3]
        sums[4] += new[4] - old[4]
        sums[5] += new[5] - old[5]
        self._changes += 1
        if self._changes > len(self._models) + 64:
            # Float sums drift; summing afresh once per pool's worth of changes keeps that O(1) each.
            self._changes = 0
            columns = zip(*(model.row for model in self._models.values()), strict=True)
            self._sums = [math.fsum(column) for column in columns]
