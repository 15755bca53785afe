"""A hypothesis state machine that plays random events against the controller and checks an own model.

The model counts requests and endpoints by itself, from the events it sends and the commands it gets back;
it looks into the controller only through `statistics()`.
"""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from extproc.core.adaptive import AdaptiveHoldbackConfig
from extproc.core.ageing import AgeingConfig
from extproc.core.band import BandConfig
from extproc.core.capacity import CapacityDetectorConfig
from extproc.core.ceilings import CeilingConfig
from extproc.core.commands import Command, Dispatch, Displace, Expire, Reject, Revoke
from extproc.core.concurrency import ConcurrencyDetectorConfig
from extproc.core.config import FlowControlConfig
from extproc.core.controller import FlowController
from extproc.core.detectors import DetectorConfig
from extproc.core.events import (
    CapacityLeased,
    DrainStarted,
    EndpointAdded,
    EndpointHealthChanged,
    EndpointRemoved,
    EndpointSampled,
    Event,
    OutputObserved,
    ReclaimRequested,
    RequestArrived,
    RequestCancelled,
    RequestFinished,
    ResponseStarted,
    TimerFired,
)
from extproc.core.eviction import DeficitSizingConfig, DemandSizingConfig, EvictionConfig
from extproc.core.fairness import (
    GlobalStrictFairnessConfig,
    RoundRobinFairnessConfig,
    WeightedFairFairnessConfig,
)
from extproc.core.footprint import FootprintConfig
from extproc.core.holdback import (
    ExplicitCeilingsConfig,
    PriorityHoldbackConfig,
    SoftReflectiveConfig,
    StaticCeilingConfig,
)
from extproc.core.ordering import EdfOrderingConfig, FcfsOrderingConfig, SloDeadlineOrderingConfig
from extproc.core.outcomes import EndReason
from extproc.core.pacing import PrefillPacingConfig
from extproc.core.statistics import Statistics
from extproc.core.types import (
    Endpoint,
    EndpointId,
    EndpointSample,
    FairnessId,
    Request,
    RequestId,
    Usage,
)

PRIORITIES = (-2, -1, 0, 5)

DETECTORS: tuple[DetectorConfig, ...] = (
    ConcurrencyDetectorConfig(max_concurrency=3),
    ConcurrencyDetectorConfig(mode="tokens", max_token_concurrency=300),
    ConcurrencyDetectorConfig(mode="hybrid", max_concurrency=3, max_token_concurrency=300),
    CapacityDetectorConfig(max_num_seqs=3, kv_tokens=640),
    CapacityDetectorConfig(assumed_max_num_seqs=4),
)
CEILINGS: tuple[CeilingConfig, ...] = (
    StaticCeilingConfig(),
    StaticCeilingConfig(threshold=0.7),
    PriorityHoldbackConfig(min_ceiling=0.5),
    PriorityHoldbackConfig(min_ceiling=0.0, domain="value", demand_window_s=2.0),
    ExplicitCeilingsConfig(ceilings={0: 1.0, -1: 0.6, -2: 0.0}),
    SoftReflectiveConfig(),
    AdaptiveHoldbackConfig(memory_s=5, idle_after_s=5),
)
EVICTIONS = (
    EvictionConfig(),
    EvictionConfig(enabled=True),
    EvictionConfig(enabled=True, order="most-freed", evictable_below=6),
    EvictionConfig(enabled=True, order="least-work-lost", sizing=DemandSizingConfig(promise="wait")),
    EvictionConfig(enabled=True, sizing=DeficitSizingConfig(), confirm_timeout_s=2.0),
)
CONFIGS = st.builds(
    FlowControlConfig,
    detector=st.sampled_from(DETECTORS),
    ceilings=st.sampled_from(CEILINGS),
    eviction=st.sampled_from(EVICTIONS),
    footprint=st.sampled_from((FootprintConfig(), FootprintConfig(release_at_first_output=True))),
    ageing=st.sampled_from((None, AgeingConfig(after_s=0.5, share=0.5))),
    pacing=st.sampled_from((PrefillPacingConfig(enabled=False), PrefillPacingConfig(budget_tokens=100))),
    default_band=st.builds(
        BandConfig,
        max_requests=st.sampled_from((3, 5000, 0)),
        missed_deadlines=st.sampled_from(("drop", "demote")),
        max_requests_per_flow=st.sampled_from((None, 2)),
        ttl_s=st.sampled_from((None, 3.0)),
        borrow=st.booleans(),
        ordering=st.sampled_from((FcfsOrderingConfig(), EdfOrderingConfig(), SloDeadlineOrderingConfig())),
        fairness=st.sampled_from(
            (GlobalStrictFairnessConfig(), RoundRobinFairnessConfig(), WeightedFairFairnessConfig())
        ),
    ),
    max_requests=st.sampled_from((None, 4)),
    max_bytes=st.sampled_from((None, 300)),
    default_ttl_s=st.sampled_from((None, 6.0)),
    no_endpoint_ttl_s=st.sampled_from((None, 0, 4.0)),
)
REQUESTS = st.fixed_dictionaries(
    {
        "priority": st.sampled_from(PRIORITIES),
        "fairness_id": st.sampled_from((FairnessId("a"), FairnessId("b"), FairnessId("c"))),
        "prompt_tokens": st.sampled_from((0, 10, 90, 1000)),
        "expected_output_tokens": st.sampled_from((None, 0, 50)),
        "size_bytes": st.sampled_from((0, 100)),
        "model": st.sampled_from(("", "m1", "m2")),
        "is_resumable": st.booleans(),
        "is_streaming": st.booleans(),
        "ttft_target_s": st.sampled_from((None, -1.0, 0.5)),
        "ttl_s": st.sampled_from((None, 0.0, 1.5)),
    }
)


def make_endpoint(index: int, incarnation: int) -> Endpoint:
    """One of a few addresses; a higher incarnation is a new server at the same address."""
    address = f"e{index}:80"
    return Endpoint(id=EndpointId(f"{address}|{incarnation}"), name=f"e{index}", address=address)


class ControllerMachine(RuleBasedStateMachine):
    """Rules are events; every command is checked when it comes."""

    requests: Bundle[RequestId] = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.25
        self.next_id = 0
        self.history: list[tuple[Event | FlowControlConfig, float]] = []
        self.answers: list[list[Command]] = []
        self.queued: dict[RequestId, Request] = {}
        self.inflight: dict[RequestId, EndpointId] = {}
        self.known: dict[RequestId, Request] = {}
        self.revoked: set[RequestId] = set()
        self.finished: set[RequestId] = set()
        self.listed: dict[int, Endpoint] = {}
        self.incarnations = 0
        self.unhealthy: set[EndpointId] = set()
        self.leases: dict[EndpointId, int] = {}
        self.last_in_flow: dict[tuple[object, ...], RequestId] = {}
        self.is_reconfigured = False

    @initialize(config=CONFIGS, endpoints=st.integers(0, 3))
    def start(self, config: FlowControlConfig, endpoints: int) -> None:
        self.config = self.first_config = config
        self.controller = FlowController(config, random.Random(7))
        for index in range(endpoints):
            self.add_endpoint(index)

    def send(self, event: Event) -> None:
        commands = self.controller.handle(event, self.now)
        self.history.append((event, self.now))
        self.answers.append(commands)
        self.check_all(event, commands)

    def check_all(self, event: Event | FlowControlConfig, commands: list[Command]) -> None:
        demanded = {request.priority for request in self.queued.values()}
        if isinstance(event, ReclaimRequested):
            demanded.add(event.priority)
        for command in commands:
            self.check(command, demanded)

    def check(self, command: Command, demanded: set[int]) -> None:
        """Every command concerns a request in the right state, and moves it on exactly once."""
        match command:
            case Dispatch(request_id, endpoint_id):
                request = self.queued.pop(request_id)
                self.check_order(request)
                self.check_ceiling(request, demanded)
                assert request_id not in self.finished
                assert endpoint_id in {endpoint.id for endpoint in self.listed.values()}
                assert command.queued_s >= 0
                self.inflight[request_id] = endpoint_id
                demanded.add(request.priority)
            case Reject(request_id, _, retry_after_s) | Expire(request_id, _, retry_after_s):
                del self.queued[request_id]
                self.finished.add(request_id)
                assert retry_after_s is None or 1 <= retry_after_s <= 60
            case Displace(request_id):
                gone = self.queued.pop(request_id)
                self.finished.add(request_id)
                assert gone.priority < max(demanded)
            case Revoke(request_id):
                assert request_id in self.inflight
                assert request_id not in self.revoked
                victim = self.known[request_id]
                assert victim.priority < self.config.eviction.evictable_below
                assert victim.priority < max(demanded)
                self.revoked.add(request_id)

    def check_order(self, request: Request) -> None:
        """First come, first served within a flow, among requests that may go to the same endpoints."""
        if self.is_reconfigured or self.config.default_band.ordering.type != "fcfs":
            return
        key = (request.priority, request.fairness_id, request.model, request.endpoint_subset)
        assert self.last_in_flow.get(key, 0) < request.id
        self.last_in_flow[key] = request.id

    def check_ceiling(self, request: Request, demanded: set[int]) -> None:
        """Requests counted by hand: what isn't being revoked stays below ceiling x capacity.

        An aged request goes under the ceiling of the highest that waits.
        """
        detector, ceilings = self.config.detector, self.config.ceilings
        if not isinstance(detector, ConcurrencyDetectorConfig) or detector.mode != "requests":
            return
        if request.endpoint_subset is not None or request.model:
            return
        if isinstance(ceilings, StaticCeilingConfig):
            ceiling = ceilings.threshold
        elif isinstance(ceilings, ExplicitCeilingsConfig):
            ages = self.config.ageing is not None
            priority = max(request.priority, *demanded) if ages else request.priority
            ceiling = ceilings.ceilings[max(p for p in ceilings.ceilings if p <= priority)]
        else:
            return
        opened = {e.id for e in self.listed.values()} - self.unhealthy
        capacity = sum(min(detector.max_concurrency, self.leases.get(e, 99)) for e in opened)
        load = sum(1 for i, where in self.inflight.items() if where in opened and i not in self.revoked)
        assert load < ceiling * capacity

    @rule(target=requests, count=st.integers(1, 5), shape=REQUESTS)
    def arrive(self, count: int, shape: dict[str, object]) -> object:
        made = []
        for _ in range(count):
            self.next_id += 1
            request = Request(id=RequestId(self.next_id), **shape)  # type: ignore[arg-type]
            self.queued[request.id] = self.known[request.id] = request
            made.append(request.id)
            self.send(RequestArrived(request))
        return multiple(*made)

    @rule(
        target=requests,
        shape=REQUESTS,
        in_s=st.sampled_from((-1.0, 0.0, 0.7)),
        subset=st.sampled_from((None, frozenset[str](), frozenset({"e0:80"}), frozenset({"e0:80", "e1:80"}))),
    )
    def arrive_constrained(
        self, shape: dict[str, object], in_s: float, subset: frozenset[str] | None
    ) -> RequestId:
        self.next_id += 1
        request = Request(
            id=RequestId(self.next_id),
            deadline_s=self.now + in_s,
            endpoint_subset=subset,
            **shape,  # type: ignore[arg-type]
        )
        self.queued[request.id] = self.known[request.id] = request
        self.send(RequestArrived(request))
        return request.id

    @rule(request_id=requests)
    def arrive_again(self, request_id: RequestId) -> None:
        """An id that is still in use is ignored."""
        due = self.controller.next_wakeup()
        is_due = due is not None and due <= self.now
        is_running = request_id in self.inflight and request_id not in self.revoked
        if is_running or (request_id in self.queued and not is_due):
            self.send(RequestArrived(self.known[request_id]))

    @rule(request_id=requests, reason=st.sampled_from(EndReason), output=st.sampled_from((None, 0, 40)))
    def finish(self, request_id: RequestId, reason: EndReason, output: int | None) -> None:
        """Also of requests that are queued or over: such events are ignored."""
        if self.inflight.pop(request_id, None) is not None:
            self.finished.add(request_id)
        self.send(RequestFinished(request_id, reason, Usage(output_tokens=output)))

    @rule(request_id=consumes(requests))
    def cancel(self, request_id: RequestId) -> None:
        if self.inflight.pop(request_id, None) is not None:
            self.finished.add(request_id)
        self.send(RequestCancelled(request_id))
        if self.queued.pop(request_id, None) is not None:  # else it expired at this very moment
            self.finished.add(request_id)

    @rule(request_id=requests, address=st.sampled_from((None, "e0:80", "e1:80", "gone:80")))
    def respond(self, request_id: RequestId, address: str | None) -> None:
        self.send(ResponseStarted(request_id, address))
        by_address = {endpoint.address: endpoint.id for endpoint in self.listed.values()}
        booked = self.inflight.get(request_id)
        if booked is not None and address in by_address and not booked.startswith(f"{address}|"):
            self.inflight[request_id] = by_address[address]

    @rule(request_id=requests)
    def output(self, request_id: RequestId) -> None:
        self.send(OutputObserved(request_id, 1))

    @rule(index=st.integers(0, 2))
    def add_endpoint(self, index: int) -> None:
        if index not in self.listed:
            self.incarnations += 1
            self.listed[index] = make_endpoint(index, self.incarnations)
        self.send(EndpointAdded(self.listed[index]))

    @rule(index=st.integers(0, 2))
    def remove_endpoint(self, index: int) -> None:
        gone = self.listed.pop(index, None)
        if gone is not None:
            self.unhealthy.discard(gone.id)
            self.leases.pop(gone.id, None)
            self.send(EndpointRemoved(gone.id))
        else:
            self.send(EndpointRemoved(EndpointId("never seen")))

    @rule(index=st.integers(0, 2), is_healthy=st.booleans(), is_probing=st.booleans())
    def change_health(self, index: int, is_healthy: bool, is_probing: bool) -> None:
        if index in self.listed:
            endpoint_id = self.listed[index].id
            (self.unhealthy.discard if is_healthy else self.unhealthy.add)(endpoint_id)
            self.send(EndpointHealthChanged(endpoint_id, is_healthy, is_healthy and is_probing))

    @rule(
        index=st.integers(0, 2),
        running=st.sampled_from((None, 0, 3)),
        waiting=st.sampled_from((None, 0, 2)),
        kv=st.sampled_from((None, 0.1, 0.9)),
        prompts=st.sampled_from((None, 0, 5000)),
        models=st.sampled_from((None, frozenset({"m1"}), frozenset({"m1", "m2"}))),
        age=st.sampled_from((0.0, 0.1, 3.0)),
    )
    def sample(
        self,
        index: int,
        running: int | None,
        waiting: int | None,
        kv: float | None,
        prompts: int | None,
        models: frozenset[str] | None,
        age: float,
    ) -> None:
        if index in self.listed:
            sample = EndpointSample(
                endpoint_id=self.listed[index].id,
                sampled_at=self.now - age,
                running_requests=running,
                waiting_requests=waiting,
                kv_usage_fraction=kv,
                kv_capacity_tokens=None if kv is None else 640,
                prompt_tokens_total=prompts,
                models=models,
            )
            self.send(EndpointSampled(sample))

    @rule(index=st.integers(0, 2), slots=st.sampled_from((None, 0, 2)), kv=st.sampled_from((None, 0, 320)))
    def lease(self, index: int, slots: int | None, kv: int | None) -> None:
        if index in self.listed:
            endpoint_id = self.listed[index].id
            self.leases[endpoint_id] = 99 if slots is None else slots
            self.send(CapacityLeased(endpoint_id, slots, kv))

    @rule(index=st.integers(0, 2), priority=st.sampled_from(PRIORITIES))
    def reclaim(self, index: int, priority: int) -> None:
        if index in self.listed:
            endpoint_id = self.listed[index].id
            self.send(ReclaimRequested(endpoint_id, priority, 1, 100))
            given_up = sum(isinstance(command, Revoke) for command in self.answers[-1])
            if self.leases.get(endpoint_id, 99) < 99:
                self.leases[endpoint_id] = max(0, self.leases[endpoint_id] - given_up)

    @rule(seconds=st.sampled_from((0.05, 0.3, 1.0, 4.0, 11.0)))
    def wait(self, seconds: float) -> None:
        """Time passes, with every wake-up served at its exact time; there are never endlessly many."""
        end = self.now + seconds
        for _ in range(400):
            due = self.controller.next_wakeup()
            if due is None or due > end:
                break
            self.now = max(self.now, due)
            self.send(TimerFired())
        else:
            raise AssertionError("the controller asks to be woken again and again")
        self.now = end

    @rule(config=CONFIGS)
    def reconfigure(self, config: FlowControlConfig) -> None:
        self.config = config
        self.is_reconfigured = True
        commands = self.controller.reconfigure(config, self.now)
        self.history.append((config, self.now))
        self.answers.append(commands)
        self.check_all(config, commands)

    @rule(reject_queued=st.booleans())
    def drain(self, reject_queued: bool) -> None:
        self.send(DrainStarted(reject_queued))
        if reject_queued:
            assert not self.queued

    @invariant()
    def books_agree_with_the_model(self) -> None:
        """Ended revocations that timed out are the only bookings the controller may give up by itself."""
        if not hasattr(self, "controller"):
            return
        statistics = self.controller.statistics()
        assert statistics.queued_requests == len(self.queued)
        assert statistics.queued_bytes == sum(request.size_bytes for request in self.queued.values())
        given_up = statistics.revocations_timed_out
        assert len(self.inflight) - given_up <= statistics.inflight_requests <= len(self.inflight)
        for endpoint in statistics.endpoints:
            mine = [i for i, where in self.inflight.items() if where == endpoint.endpoint_id]
            assert 0 <= endpoint.inflight_requests <= len(mine)
            assert 0 <= endpoint.revoked_requests <= endpoint.inflight_requests
            assert endpoint.inflight_tokens >= 0
            assert endpoint.inflight_kv_tokens >= 0
            if not given_up:
                assert endpoint.inflight_requests == len(mine)
        self.saturation_agrees(statistics)
        self.report_agrees_with_the_bookings()
        outcomes = sum(count for band in statistics.bands for count in band.outcomes.values())
        assert outcomes == len(self.known) - len(self.queued)

    def report_agrees_with_the_bookings(self) -> None:
        """What other replicas are told is what a walk over the bookings gives."""
        books = self.controller._books
        counts_kv = books.policies.detector.counts_kv
        expected: Counter[tuple[int, str, str]] = Counter()
        for entry in books.ledger:
            tokens = entry.footprint.kv_tokens if counts_kv else entry.footprint.tokens
            expected[entry.request.priority, entry.endpoint.address, "slots"] += 1
            expected[entry.request.priority, entry.endpoint.address, "tokens"] += tokens
        demand = self.controller.replica_demand()
        told: Counter[tuple[int, str, str]] = Counter()
        for priority, use in demand.in_use.items():
            for address, slots, tokens in zip(demand.addresses, use.slots, use.tokens, strict=True):
                told[priority, address, "slots"] += slots
                told[priority, address, "tokens"] += tokens
        assert +told == +expected

    def saturation_agrees(self, statistics: Statistics) -> None:
        """The running sums of the concurrency detector equal its formula, and never drift from it."""
        detector = self.config.detector
        opened = [endpoint for endpoint in statistics.endpoints if endpoint.is_open]
        if not isinstance(detector, ConcurrencyDetectorConfig) or not opened:
            return
        if detector.mode == "hybrid":
            expected = sum(max(e.saturation.values()) for e in opened) / len(opened)
        elif detector.mode == "requests":
            slots = sum(min(detector.max_concurrency, self.leases.get(e.endpoint_id, 99)) for e in opened)
            load = sum(e.inflight_requests for e in opened)
            expected = load / slots if slots else 1.0
        else:
            return
        assert abs(statistics.saturation - expected) < 1e-9

    def teardown(self) -> None:
        """When every stream has ended and every wait is over, nothing is left; a replay answers the same."""
        if not hasattr(self, "controller"):
            return
        for request_id in [*self.queued, *self.inflight]:
            self.cancel(request_id)
        for request_id in list(self.inflight):  # dispatched by the cancellation of others
            self.cancel(request_id)
        statistics = self.controller.statistics()
        assert statistics.queued_requests == statistics.queued_bytes == statistics.inflight_requests == 0
        for endpoint in statistics.endpoints:
            assert endpoint.inflight_requests == endpoint.inflight_tokens == endpoint.inflight_kv_tokens == 0
            assert endpoint.revoked_requests == endpoint.revoked_kv_tokens == 0
        for always_queues in (False, True):
            twin = FlowController(self.first_config, random.Random(7))
            if always_queues:
                # Passing the queue by is a short cut: through the queue, everything must come out the same.
                twin._dispatcher.pass_by = lambda *_: False  # type: ignore[method-assign]
            for (event, now), answer in zip(self.history, self.answers, strict=True):
                if isinstance(event, FlowControlConfig):
                    assert twin.reconfigure(event, now) == answer
                else:
                    assert twin.handle(event, now) == answer
