"""What every ceiling policy guarantees."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.adaptive import AdaptiveHoldbackConfig
from extproc.core.ceilings import CeilingConfig, build_ceilings
from extproc.core.concurrency import ConcurrencyDetector, ConcurrencyDetectorConfig
from extproc.core.demand import DemandTracker
from extproc.core.footprint import Footprint
from extproc.core.holdback import (
    CeilingPolicy,
    ExplicitCeilingsConfig,
    PriorityHoldbackConfig,
    SoftReflectiveConfig,
    StaticCeilingConfig,
)
from extproc.core.inflight import InflightLedger
from extproc.core.pool import Pool
from extproc.core.types import Endpoint, EndpointId, Request, RequestId

PRIORITIES = (-3, -1, 0, 7)
ONE = Footprint(1, 100, 128)

CONFIGS: dict[str, CeilingConfig] = {
    "static": StaticCeilingConfig(threshold=0.9),
    "explicit": ExplicitCeilingsConfig(ceilings={7: 1.0, 0: 0.9, -1: 0.5}),
    "rank": PriorityHoldbackConfig(min_ceiling=0.6),
    "value": PriorityHoldbackConfig(min_ceiling=0.6, domain="value"),
    "declared": PriorityHoldbackConfig(min_ceiling=0.6, rank_over="declared"),
    "soft-reflective": SoftReflectiveConfig(),
    "adaptive": AdaptiveHoldbackConfig(),
}


class Rig:
    """A policy over one endpoint with 32 slots, and time."""

    def __init__(self, config: CeilingConfig) -> None:
        self.demand, pool, self.ledger = DemandTracker(), Pool(), InflightLedger()
        detector = ConcurrencyDetector(ConcurrencyDetectorConfig(max_concurrency=32))
        self.state = pool.put(Endpoint(id=EndpointId("e"), name="e", address="e:80"))
        detector.endpoint_changed(self.state, 0.0)
        self.detector = detector
        self.policy: CeilingPolicy = build_ceilings(
            config, PRIORITIES, self.demand, detector, pool, self.ledger
        )
        self.now = 1000.25
        self.serial = 0

    def arrive(self, priority: int) -> RequestId:
        self.serial += 1
        request = Request(id=RequestId(self.serial), priority=priority)
        self.demand.enter(priority)
        self.ledger.book(request, self.state, ONE, self.now)
        self.policy.booked(priority, ONE, self.now)
        self.detector.endpoint_changed(self.state, self.now)
        return request.id

    def leave(self, request_id: RequestId) -> None:
        entry = self.ledger.release(request_id)
        assert entry is not None
        self.policy.released(entry.request.priority, ONE, self.now)
        self.demand.leave(entry.request.priority, self.now)
        self.detector.endpoint_changed(self.state, self.now)


@given(
    name=st.sampled_from(sorted(CONFIGS)),
    moves=st.lists(
        st.tuples(st.sampled_from(PRIORITIES), st.booleans(), st.sampled_from((0.0, 0.01, 0.7, 40.0))),
        max_size=60,
    ),
)
def test_ceilings_never_rise_towards_lower_bands(name: str, moves: list[tuple[int, bool, float]]) -> None:
    rig = Rig(CONFIGS[name])
    present: list[RequestId] = []
    for priority, is_arrival, pause_s in moves:
        rig.now += pause_s
        if is_arrival:
            present.append(rig.arrive(priority))
        elif present:
            rig.leave(present.pop(0))
        ceilings = [rig.policy.ceiling(p, rig.now) for p in sorted(PRIORITIES, reverse=True)]
        for higher, lower in pairwise(ceilings):
            assert lower.requests <= higher.requests + 1e-9
            assert lower.tokens <= higher.tokens + 1e-9
        assert all(0 <= ceiling.lowest <= 1 for ceiling in ceilings)


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_asking_for_a_view_changes_no_later_answer(name: str) -> None:
    asked, unasked = Rig(CONFIGS[name]), Rig(CONFIGS[name])
    for step in range(60):
        for rig in (asked, unasked):
            rig.now += 0.17
            rig.arrive(PRIORITIES[step % 4])
        for priority in (*PRIORITIES, 99):
            asked.policy.shown(priority, asked.now)
        assert asked.policy.ceiling(-1, asked.now) == unasked.policy.ceiling(-1, unasked.now)


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_a_held_band_is_looked_at_again_or_never_needs_it(name: str) -> None:
    """If time alone raises a ceiling, `next_change` has announced a moment before that."""
    rig = Rig(CONFIGS[name])
    for _ in range(8):
        rig.arrive(7)
    for request_id in range(1, 6):
        rig.now += 1.0
        rig.leave(RequestId(request_id))
    before = rig.policy.ceiling(-3, rig.now)
    announced = rig.policy.next_change(rig.now)
    for _ in range(4000):
        rig.now += 0.1
        if rig.policy.ceiling(-3, rig.now).lowest > before.lowest + 1e-9:
            assert announced is not None
            assert announced <= rig.now
            return
    assert before.lowest == rig.policy.ceiling(-3, rig.now).lowest
