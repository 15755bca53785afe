"""What the policy core costs: microseconds and bytes per request, by how much is queued and configured.

One cycle is what one request costs on a saturated pool: a completion frees a place, the head of the queue is
dispatched in the same call, and a new request is queued. Figures are processor time, the least of several
repeats (noise only adds); ratios are what to compare between machines, so a heapq push + pop
pair is timed in the same run, on a heap of 1,000 entries.
"""

from __future__ import annotations

import gc
import heapq
import random
import tracemalloc
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from extproc.core.band import BandConfig
from extproc.core.capacity import CapacityDetectorConfig
from extproc.core.commands import Dispatch
from extproc.core.concurrency import ConcurrencyDetectorConfig
from extproc.core.config import FlowControlConfig
from extproc.core.controller import FlowController
from extproc.core.detectors import DetectorConfig
from extproc.core.events import (
    EndpointAdded,
    EndpointSampled,
    Event,
    RequestArrived,
    RequestCancelled,
    RequestFinished,
)
from extproc.core.fairness import RoundRobinFairnessConfig
from extproc.core.types import Endpoint, EndpointId, EndpointSample, FairnessId, Request, RequestId
from extproc.core.utilization import UtilizationDetectorConfig

SLOTS = 8
"""Requests in flight per endpoint."""

DETECTORS: dict[str, DetectorConfig] = {
    "requests": ConcurrencyDetectorConfig(max_concurrency=SLOTS),
    "tokens": ConcurrencyDetectorConfig(mode="tokens", max_token_concurrency=SLOTS * 100),
    "hybrid": ConcurrencyDetectorConfig(
        mode="hybrid", max_concurrency=SLOTS, max_token_concurrency=SLOTS * 100
    ),
    "utilization": UtilizationDetectorConfig(staleness_s=3600, count_unsampled=True),
    "capacity": CapacityDetectorConfig(max_num_seqs=SLOTS, kv_tokens=SLOTS * 256),
}


class Stopwatch(Protocol):
    """What is timed with: processor time, so that other processes don't count."""

    def now(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One row's pool and queue; flows and bands are used evenly, `idle_*` exist besides and stay empty."""

    queued: int = 1000
    flows: int = 1
    bands: int = 1
    endpoints: int = 1
    detector: str = "requests"
    idle_flows: int = 0
    idle_bands: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """`submit_us` is queueing one request on a full pool, `cycle_us` the cycle of the module's text."""

    shape: Shape
    submit_us: float
    cycle_us: float


class Load:
    """A saturated controller with a queue of constant length."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self._ids = 0
        self.running: deque[RequestId] = deque()
        self._prepared: deque[Request] = deque()
        band = BandConfig(max_requests=1_000_000, fairness=RoundRobinFairnessConfig())
        idle = tuple(BandConfig(priority=1000 + i, max_requests=1_000_000) for i in range(shape.idle_bands))
        config = FlowControlConfig(detector=DETECTORS[shape.detector], default_band=band, bands=idle)
        self.controller = FlowController(config, random.Random(1))
        self.now = 1000.0
        for index in range(shape.endpoints):
            self._add_endpoint(index)
        for _ in range(shape.endpoints * SLOTS):
            self.submit()
        for _ in range(shape.idle_flows):
            self.cancel(self.submit(FairnessId(f"idle-{self._ids}")))

    def _add_endpoint(self, index: int) -> None:
        address = f"10.0.{index // 250}.{index % 250}:8000"
        endpoint = Endpoint(id=EndpointId(address), name=f"e{index}", address=address)
        self.send(EndpointAdded(endpoint))
        sample = EndpointSample(
            endpoint_id=endpoint.id,
            sampled_at=self.now,
            running_requests=0,
            waiting_requests=0,
            kv_usage_fraction=0.0,
        )
        self.send(EndpointSampled(sample))

    def send(self, event: Event) -> None:
        self.now += 1e-5
        for command in self.controller.handle(event, self.now):
            if isinstance(command, Dispatch):
                self.running.append(command.request_id)

    def request(self, flow: FairnessId | None = None) -> Request:
        self._ids += 1
        serial = self._ids
        return Request(
            id=RequestId(serial),
            priority=serial % self.shape.bands,
            fairness_id=flow or FairnessId(f"flow-{serial % self.shape.flows}"),
            prompt_tokens=100,
            expected_output_tokens=100,
            size_bytes=400,
        )

    def submit(self, flow: FairnessId | None = None) -> RequestId:
        request = self.request(flow)
        self.send(RequestArrived(request))
        return request.id

    def cancel(self, request_id: RequestId) -> None:
        self.send(RequestCancelled(request_id))

    def prepare(self, count: int) -> None:
        """Makes the requests of the next cycles, which isn't the core's work."""
        self._prepared.extend(self.request() for _ in range(count))

    def cycle(self) -> None:
        """One completion, with the dispatch it causes, and one arrival that was prepared."""
        self.send(RequestFinished(self.running.popleft()))
        self.send(RequestArrived(self._prepared.popleft()))


def measure(shape: Shape, clock: Stopwatch, *, cycles: int = 100, repeats: int = 40) -> Row:
    """Times one shape in many short stretches, of which the best one was disturbed least."""
    load = Load(shape)
    to_queue = max(0, shape.queued - load.controller.statistics().queued_requests)
    requests = [load.request() for _ in range(to_queue)]
    gc.collect()
    started = clock.now()
    for request in requests:
        load.send(RequestArrived(request))
    submit_us = (clock.now() - started) * 1e6 / max(1, to_queue)
    warm_up = shape.endpoints * SLOTS  # until the longest running request is one that was queued
    load.prepare(warm_up + cycles * repeats)
    for _ in range(warm_up):
        load.cycle()
    gc.collect()
    cycle_us = min(_time(load.cycle, cycles, clock) for _ in range(repeats))
    return Row(shape=shape, submit_us=submit_us, cycle_us=cycle_us)


def measure_memory(shape: Shape) -> float:
    """Bytes per queued request, with the `Request` itself, without the body that it describes."""
    load = Load(shape)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(shape.queued):
            load.submit()
        gc.collect()
        return (tracemalloc.get_traced_memory()[0] - before) / shape.queued
    finally:
        tracemalloc.stop()


def measure_mass_cancellation(queued: int, clock: Stopwatch) -> float:
    """Microseconds per request when everything queued is cancelled at once, in random order."""
    load = Load(Shape(queued=queued, flows=100))
    queued_ids = [load.submit() for _ in range(queued)]
    random.Random(2).shuffle(queued_ids)
    started = clock.now()
    for request_id in queued_ids:
        load.cancel(request_id)
    return (clock.now() - started) * 1e6 / queued


def measure_flow_churn(flows: int, clock: Stopwatch) -> tuple[float, float]:
    """Microseconds and bytes left per flow when each flow sends one request and leaves for ever."""
    load = Load(Shape(queued=0))
    gc.collect()
    started = clock.now()
    for serial in range(flows):
        load.cancel(load.submit(FairnessId(f"churn-{serial}")))
    churn_us = (clock.now() - started) * 1e6 / flows
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for serial in range(flows):
            load.cancel(load.submit(FairnessId(f"more-{serial}")))
        gc.collect()
        return churn_us, (tracemalloc.get_traced_memory()[0] - before) / flows
    finally:
        tracemalloc.stop()


def measure_heap_pair(clock: Stopwatch, *, size: int = 1000, pairs: int = 2000, repeats: int = 60) -> float:
    """Microseconds of one heapq push + pop on a heap of this size: the yardstick of the machine."""
    rng = random.Random(3)
    heap = [(rng.random(), serial) for serial in range(size)]
    heapq.heapify(heap)
    best_s = float("inf")
    for _ in range(repeats):
        keys = [(rng.random(), 0) for _ in range(pairs)]
        started = clock.now()
        for key in keys:
            heapq.heappush(heap, key)
            heapq.heappop(heap)
        best_s = min(best_s, clock.now() - started)
    return best_s * 1e6 / pairs


def shapes(quick: bool) -> list[Shape]:
    """The table's rows: one dimension at a time, the rest at its default."""
    return list(dict.fromkeys(_all_shapes(quick)))


def _all_shapes(quick: bool) -> Iterator[Shape]:
    most = 10_000 if quick else 100_000
    for queued in (100, 1000, 10_000, 100_000):
        if queued <= most:
            yield Shape(queued=queued, flows=min(queued, 1000), bands=8, endpoints=4)
    for flows in (1, 100, 5000):
        yield Shape(queued=5000, flows=flows)
    yield Shape(queued=5000, flows=1, idle_flows=5000)
    for bands in (1, 8, 64):
        yield Shape(queued=1000, bands=bands)
    yield Shape(queued=1000, idle_bands=64)
    for endpoints in (1, 16, 256, 1024):
        yield Shape(queued=10_000, endpoints=endpoints)
    for detector in DETECTORS:
        yield Shape(queued=10_000, endpoints=256, detector=detector)


def _time(action: Callable[[], None], count: int, clock: Stopwatch) -> float:
    """Microseconds per call, without garbage collections inside."""
    gc.disable()
    try:
        started = clock.now()
        for _ in range(count):
            action()
        return (clock.now() - started) * 1e6 / count
    finally:
        gc.enable()
