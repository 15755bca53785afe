"""A controller on leased credits never dispatches beyond them, whatever comes in whatever order."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.core.capacity import CapacityDetectorConfig
from extproc.core.commands import Command, Dispatch, Revoke
from extproc.core.concurrency import ConcurrencyDetectorConfig
from extproc.core.config import FlowControlConfig
from extproc.core.controller import FlowController
from extproc.core.credits import Credits, Reclaim
from extproc.core.detectors import DetectorConfig
from extproc.core.events import EndpointAdded, EndpointRemoved, Event, RequestArrived, RequestFinished
from extproc.core.eviction import EvictionConfig
from extproc.core.leased_controller import LeasedController
from extproc.core.outcomes import EndReason
from extproc.core.types import Request, RequestId
from tests.support.core import endpoint

SLOTS, KV_TOKENS, PROMPT = 8, 4000, 100
DETECTORS: dict[str, DetectorConfig] = {
    "requests": ConcurrencyDetectorConfig(mode="requests", max_concurrency=SLOTS),
    "capacity": CapacityDetectorConfig(max_num_seqs=SLOTS, kv_tokens=KV_TOKENS),
}


class Leased:
    """A controller of two endpoints and its lease; `open` are the requests whose streams have not ended."""

    def __init__(self, detector: DetectorConfig) -> None:
        config = FlowControlConfig(
            detector=detector, eviction=EvictionConfig(enabled=True), default_ttl_s=None
        )
        self.controller = FlowController(config, random.Random(1), is_leased=True)
        self.now = 100.25
        self.open: dict[RequestId, None] = {}
        self.revoked: set[RequestId] = set()
        self.pool = LeasedController(self.controller, self.post, lambda: self.now, fresh_s=1.0)
        self.endpoints = [endpoint("a"), endpoint("b")]
        for each in self.endpoints:
            self.post(EndpointAdded(each))

    def post(self, event: Event) -> None:
        for command in self.controller.handle(event, self.now):
            self.perform(command)

    def perform(self, command: Command) -> None:
        if isinstance(command, Dispatch):
            self.open[command.request_id] = None
            self.check(command)
        elif isinstance(command, Revoke):
            self.revoked.add(command.request_id)

    def check(self, command: Dispatch) -> None:
        """Victims whose streams end may stand beside what was dispatched in their place, nothing else."""
        state = self.controller._pool.states[command.endpoint_id]
        assert state.leased_slots is not None
        assert state.requests - state.revoked_requests <= state.leased_slots
        counts_kv = isinstance(self.controller.config.detector, CapacityDetectorConfig)
        if counts_kv and state.leased_kv_tokens is not None:
            assert state.kv_tokens - state.revoked_kv_tokens <= state.leased_kv_tokens


@pytest.mark.parametrize("detector", DETECTORS)
@settings(max_examples=25, deadline=None)
@given(rng=st.randoms(use_true_random=False))
def test_nothing_is_dispatched_beyond_the_lease(detector: str, rng: random.Random) -> None:
    leased = Leased(DETECTORS[detector])
    addresses = [each.address for each in leased.endpoints]
    for number in range(1, 120):
        leased.now += rng.random() * 0.2
        match rng.randrange(6):
            case 0 | 1 | 2:
                request = Request(
                    id=RequestId(number), priority=rng.choice((-1, 0, 10)), prompt_tokens=rng.randrange(400)
                )
                leased.post(RequestArrived(request))
            case 3 if leased.open:
                ended = rng.choice(list(leased.open))
                del leased.open[ended]
                reason = EndReason.EVICTED if ended in leased.revoked else EndReason.COMPLETED
                leased.post(RequestFinished(ended, reason))
            case 4:
                credits = {
                    address: Credits(rng.randrange(SLOTS + 1), rng.randrange(KV_TOKENS + 1))
                    for address in rng.sample(addresses, rng.randrange(3))
                }
                leased.pool.lease(credits, hold_sheddable=rng.random() < 0.2)
            case 5:
                leased.pool.reclaim([Reclaim("me", rng.choice(addresses), 10, rng.randrange(4), 0)])


def test_without_a_first_grant_nothing_is_dispatched() -> None:
    leased = Leased(DETECTORS["requests"])
    leased.post(RequestArrived(Request(id=RequestId(1), priority=10)))
    assert not leased.open
    leased.pool.lease({"a:8000": Credits(1, 1 << 40)}, hold_sheddable=False)
    assert list(leased.open) == [RequestId(1)]


def test_reclaimed_places_are_given_up_at_once() -> None:
    """The victims' streams still run; nothing of ours may take their places meanwhile."""
    leased = Leased(DETECTORS["requests"])
    leased.pool.lease({"a:8000": Credits(2, 1 << 40)}, hold_sheddable=False)
    for number in (1, 2, 3):
        leased.post(RequestArrived(Request(id=RequestId(number), priority=-1)))
    leased.pool.reclaim([Reclaim("me", "a:8000", 10, 2, 0)])
    assert leased.revoked == {RequestId(1), RequestId(2)}
    for number in (1, 2):
        leased.post(RequestFinished(RequestId(number), EndReason.EVICTED))
    assert RequestId(3) not in leased.open


def test_held_sheddable_work_waits_and_goes_on() -> None:
    leased = Leased(DETECTORS["requests"])
    leased.pool.lease({"a:8000": Credits(4, 1 << 40)}, hold_sheddable=True)
    leased.post(RequestArrived(Request(id=RequestId(1), priority=-1)))
    leased.post(RequestArrived(Request(id=RequestId(2), priority=0)))
    assert list(leased.open) == [RequestId(2)]
    leased.pool.lease({"a:8000": Credits(4, 1 << 40)}, hold_sheddable=False)
    assert set(leased.open) == {RequestId(1), RequestId(2)}


def test_what_waits_is_reported_with_what_runs() -> None:
    leased = Leased(DETECTORS["requests"])
    leased.pool.lease({"a:8000": Credits(1, 1 << 40)}, hold_sheddable=False)
    for number in (1, 2):
        leased.post(RequestArrived(Request(id=RequestId(number), priority=10)))
    demand = leased.pool.demand()
    assert demand.in_use[10].slots == [1]
    assert [(row.priority, row.requests) for row in demand.waiting] == [(10, 1)]
    assert leased.pool.need() == (10, 1)
    assert leased.pool.capacity()["b:8000"].slots == SLOTS


def test_field_bug_067_an_endpoint_that_flaps_has_no_credits_until_it_is_leased_again() -> None:
    """A request runs through it; afterwards the counts are those of what runs, never below zero."""
    leased = Leased(DETECTORS["requests"])
    credits = {"a:8000": Credits(2, 1 << 40)}
    leased.pool.lease(credits, hold_sheddable=False)
    leased.post(RequestArrived(Request(id=RequestId(1), priority=10)))
    leased.post(EndpointRemoved(leased.endpoints[0].id))
    leased.post(EndpointAdded(leased.endpoints[0]))
    leased.post(RequestArrived(Request(id=RequestId(2), priority=10)))
    assert list(leased.open) == [RequestId(1)]
    leased.pool.lease(credits, hold_sheddable=False)
    assert list(leased.open) == [RequestId(1), RequestId(2)]
    for number in (1, 2):
        leased.post(RequestFinished(RequestId(number), EndReason.COMPLETED))
    assert leased.controller._pool.states[leased.endpoints[0].id].requests == 0
