"""Mode observe holds nothing back, and what it counts adds up, whatever happens in whatever order."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.core.band import BandConfig
from extproc.core.commands import Dispatch
from extproc.core.concurrency import ConcurrencyDetectorConfig
from extproc.core.config import FlowControlConfig
from extproc.core.controller import FlowController
from extproc.core.events import (
    EndpointAdded,
    EndpointHealthChanged,
    Event,
    RequestArrived,
    RequestCancelled,
    RequestFinished,
    TimerFired,
)
from extproc.core.eviction import EvictionConfig
from extproc.core.holdback import PriorityHoldbackConfig
from extproc.core.outcomes import EndReason
from extproc.core.shadow import Shadow, WouldHave
from extproc.core.types import Request, RequestId
from tests.support.core import START_S, endpoint

ENDPOINTS = [endpoint("a"), endpoint("b")]
PRIORITIES = (-1, 0, 10)

CONFIGS = st.builds(
    FlowControlConfig,
    mode=st.just("observe"),
    detector=st.builds(
        ConcurrencyDetectorConfig, mode=st.just("requests"), max_concurrency=st.integers(1, 4)
    ),
    default_band=st.builds(
        BandConfig, priority=st.just(0), max_requests=st.integers(1, 6), ttl_s=st.sampled_from([None, 1.5])
    ),
    ceilings=st.builds(PriorityHoldbackConfig, min_ceiling=st.sampled_from([0.5, 0.9])),
    max_requests=st.sampled_from([None, 4]),
    eviction=st.builds(EvictionConfig, enabled=st.booleans()),
)

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("arrive"), st.sampled_from(PRIORITIES)),
        st.tuples(st.just("finish"), st.integers(0, 50)),
        st.tuples(st.just("leave"), st.integers(0, 50)),
        st.tuples(st.just("wait"), st.sampled_from([0.25, 1.0, 3.0])),
        st.tuples(st.just("reconfigure"), CONFIGS),
        st.tuples(st.just("health"), st.booleans()),
    ),
    max_size=60,
)


class Run:
    """A controller that observes, two endpoints, its shadow, and what was sent."""

    def __init__(self, config: FlowControlConfig) -> None:
        self.controller = FlowController(config, random.Random(1))
        self.counts: dict[int, WouldHave] = {}
        self.now = START_S
        self.shadow = Shadow.beside(self.controller, self.counts, self.now)
        self.running: list[RequestId] = []
        self.arrived = dict.fromkeys(PRIORITIES, 0)
        for one in ENDPOINTS:
            self.send(EndpointAdded(one))

    def send(self, event: Event) -> None:
        commands = self.controller.handle(event, self.now)
        assert all(type(command) is Dispatch for command in commands)
        self.shadow.follow(event, commands, self.now)

    def step(self, kind: str, value: object) -> None:
        match kind, value:
            case "arrive", int(priority):
                self._arrive(priority)
            case (("finish" | "leave"), int(number)) if self.running:
                request_id = self.running.pop(number % len(self.running))
                left = kind == "leave"
                self.send(RequestCancelled(request_id) if left else RequestFinished(request_id))
            case "wait", float(seconds):
                self._wait(seconds)
            case "reconfigure", FlowControlConfig() as config:
                assert self.controller.reconfigure(config, self.now) == []
                self.shadow.reconfigure(config, self.now)
            case "health", bool(is_healthy):
                self.send(EndpointHealthChanged(ENDPOINTS[1].id, is_healthy))

    def _arrive(self, priority: int) -> None:
        request = Request(id=RequestId(sum(self.arrived.values())), priority=priority)
        self.arrived[priority] += 1
        commands = self.controller.handle(RequestArrived(request), self.now)
        assert [(type(command), command.request_id) for command in commands] == [(Dispatch, request.id)]
        self.shadow.follow(RequestArrived(request), commands, self.now)
        self.running.append(request.id)

    def _wait(self, seconds: float) -> None:
        end = self.now + seconds
        while (due := self.shadow.next_wakeup()) is not None and due <= end:
            self.now = max(self.now, due)
            self.send(TimerFired())
            after = self.shadow.next_wakeup()
            assert after is None or after > due or self.now > due
        self.now = end

    def end(self) -> None:
        """All answers end, then all that could still expire has."""
        while self.running:
            self.send(RequestFinished(self.running.pop(), EndReason.COMPLETED))


@settings(max_examples=200, deadline=None)
@given(CONFIGS, STEPS)
def test_observing_never_holds_a_request_and_its_counts_add_up(
    config: FlowControlConfig, steps: list[tuple[str, object]]
) -> None:
    run = Run(config)
    for kind, value in steps:
        run.step(kind, value)
        check(run)
    run.end()
    check(run)
    assert run.shadow.is_idle
    kept = ("_served_at", "_served", "_places", "_places_at", "_waiting", "_stands_for", "_ends_with")
    assert not any(getattr(run.shadow, name) for name in kept), "nothing is kept of what is over"
    statistics = run.controller.statistics()
    assert (statistics.queued_requests, statistics.inflight_requests) == (0, 0)


def check(run: Run) -> None:
    assert run.controller.statistics().queued_requests == 0
    for priority, arrived in run.arrived.items():
        counts = run.counts.get(priority, WouldHave())
        assert counts.passed + counts.held + counts.rejected == arrived
        assert counts.expired + counts.displaced <= counts.held
        assert counts.evicted <= counts.passed + counts.held
        assert counts.held_s >= 0.0


@settings(max_examples=200, deadline=None)
@given(CONFIGS, st.lists(st.sampled_from(PRIORITIES), max_size=30))
def test_arrivals_alone_are_counted_as_enforcing_decides_them(
    config: FlowControlConfig, priorities: list[int]
) -> None:
    run = Run(config)
    enforcing = FlowController(replace(config, mode="enforce"), random.Random(1))
    for one in ENDPOINTS:
        enforcing.handle(EndpointAdded(one), run.now)
    decided = dict.fromkeys(("Dispatch", "Reject", "Displace", "Revoke"), 0)
    for number, priority in enumerate(priorities):
        run.step("arrive", priority)
        events: list[Event] = [RequestArrived(Request(id=RequestId(number), priority=priority))]
        while events:
            for command in enforcing.handle(events.pop(0), run.now):
                decided[type(command).__name__] += 1
                if type(command).__name__ == "Revoke":
                    events.append(RequestFinished(command.request_id, EndReason.EVICTED))
    rows = run.counts.values()
    assert sum(row.rejected for row in rows) == decided["Reject"]
    assert sum(row.displaced for row in rows) == decided["Displace"]
    assert sum(row.evicted for row in rows) == decided["Revoke"]
    waiting = enforcing.statistics().queued_requests
    assert sum(row.held - row.displaced for row in rows) >= waiting
    assert sum(row.passed + row.held for row in rows) == len(priorities) - decided["Reject"]
