"""What every saturation detector guarantees, whatever it measures."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from extproc.core.capacity import CapacityDetectorConfig
from extproc.core.ceiling import level
from extproc.core.concurrency import ConcurrencyDetectorConfig
from extproc.core.detectors import DetectorConfig, build_detector
from extproc.core.footprint import NO_FOOTPRINT, Footprint
from extproc.core.inflight import InflightLedger
from extproc.core.pool import ANY_ENDPOINT, EndpointState, LaneKey, Pool
from extproc.core.saturation import SaturationDetector
from extproc.core.types import Endpoint, EndpointId, EndpointSample, Request, RequestId
from extproc.core.utilization import UtilizationDetectorConfig

NOW = 1000.0
ONE = Footprint(1, 100, 128)

CONFIGS: dict[str, DetectorConfig] = {
    "requests": ConcurrencyDetectorConfig(max_concurrency=4),
    "tokens": ConcurrencyDetectorConfig(mode="tokens", max_token_concurrency=400),
    "hybrid": ConcurrencyDetectorConfig(mode="hybrid", max_concurrency=4, max_token_concurrency=400),
    "utilization": UtilizationDetectorConfig(staleness_s=60, count_unsampled=True, queue_depth_threshold=4),
    "utilization, stale": UtilizationDetectorConfig(
        staleness_s=0.001, when_stale="accounting", accounting_max_concurrency=4
    ),
    "capacity": CapacityDetectorConfig(max_num_seqs=4, kv_tokens=512),
}


class Rig:
    """A detector with a pool and a ledger, kept in step as the controller does."""

    def __init__(self, config: DetectorConfig, endpoints: int) -> None:
        self.pool, self.ledger = Pool(), InflightLedger()
        self.detector: SaturationDetector = build_detector(config)
        self.serial = 0
        for index in range(endpoints):
            self.open(index)

    def open(self, index: int) -> EndpointState:
        address = f"e{index}:80"
        state = self.pool.put(Endpoint(id=EndpointId(address), name=f"e{index}", address=address))
        self.pool.set_sample(
            EndpointSample(
                endpoint_id=state.id,
                sampled_at=NOW - 1,
                running_requests=0,
                waiting_requests=0,
                kv_usage_fraction=0.0,
            )
        )
        self.detector.endpoint_changed(state, NOW)
        self.detector.endpoint_sampled(state, NOW)
        self.detector.endpoint_changed(state, NOW)
        return state

    def close(self, state: EndpointState) -> None:
        self.pool.remove(state.id)
        self.detector.endpoint_closed(state)

    def book(self, state: EndpointState) -> RequestId:
        self.serial += 1
        request = Request(id=RequestId(self.serial), prompt_tokens=100)
        self.ledger.book(request, state, ONE, NOW)
        self.detector.endpoint_changed(state, NOW)
        return request.id

    def release(self, request_id: RequestId) -> None:
        entry = self.ledger.release(request_id)
        assert entry is not None
        self.detector.request_ended(entry, None, NOW)
        if entry.endpoint.is_open:
            self.detector.endpoint_changed(entry.endpoint, NOW)

    @property
    def saturation(self) -> float:
        return self.detector.saturation(self.pool.candidates(ANY_ENDPOINT), NOW)

    def takes(self, state: EndpointState, ceiling: float = 1.0, promised: Footprint | None = None) -> bool:
        candidates = self.pool.candidates(ANY_ENDPOINT)
        return self.detector.admits(candidates, ONE, level(ceiling), promised, NOW) and self.detector.fits(
            state, ONE, level(ceiling), promised, NOW
        )


RigMaker = Callable[[int], Rig]


@pytest.fixture(params=CONFIGS)
def rig(request: pytest.FixtureRequest) -> RigMaker:
    return lambda endpoints: Rig(CONFIGS[request.param], endpoints)


def test_a_pool_without_endpoints_is_full(rig: RigMaker) -> None:
    empty = rig(0)
    assert empty.saturation == 1.0
    assert not empty.detector.admits(empty.pool.candidates(ANY_ENDPOINT), ONE, level(1.0), None, NOW)


def test_an_idle_pool_is_empty_and_takes_work(rig: RigMaker) -> None:
    idle = rig(3)
    assert idle.saturation == 0.0
    assert all(idle.takes(state) for state in idle.pool.open.values())


def test_a_full_endpoint_takes_nothing_until_something_ends(rig: RigMaker) -> None:
    one = rig(1)
    (state,) = one.pool.open.values()
    booked = []
    while one.takes(state):
        booked.append(one.book(state))
        assert len(booked) <= 4
    assert len(booked) == 4
    assert one.saturation >= 1.0 - 1e-9
    one.release(booked[0])
    assert one.takes(state)


def test_a_lower_ceiling_never_admits_more(rig: RigMaker) -> None:
    for ceiling in (0.0, 0.3, 0.5, 0.8, 1.0):
        one = rig(1)
        (state,) = one.pool.open.values()
        while one.takes(state, ceiling):
            one.book(state)
        if ceiling == 0.0:
            assert len(one.ledger) == 0
        assert state.requests <= max(1, -(-4 * ceiling // 1))


def test_promises_count_as_room(rig: RigMaker) -> None:
    one = rig(1)
    (state,) = one.pool.open.values()
    ids = [one.book(state) for _ in range(4)]
    assert not one.takes(state)
    assert one.takes(state, promised=ONE)
    entry = one.ledger.get(ids[0])
    assert entry is not None
    one.ledger.mark_revoked(entry, NOW)
    one.detector.endpoint_changed(state, NOW)
    assert one.takes(state, promised=NO_FOOTPRINT)
    assert not one.takes(state)


def test_holds_all_counts_the_whole_need(rig: RigMaker) -> None:
    two = rig(2)
    candidates = two.pool.candidates(ANY_ENDPOINT)

    def holds(count: int) -> bool:
        need = Footprint(count, 100 * count, 128 * count)
        return two.detector.holds_all(candidates, need, level(1.0), NO_FOOTPRINT, NOW)

    assert holds(1)
    assert not holds(50)
    assert sum(holds(count) for count in range(1, 51)) <= 8 + 1


def test_candidates_are_judged_by_themselves(rig: RigMaker) -> None:
    two = rig(2)
    first, second = two.pool.open.values()
    for _ in range(4):
        two.book(first)
    lane = LaneKey(frozenset({first.address}), "", None)
    only_first = two.pool.candidates(lane)
    assert two.detector.saturation(only_first, NOW) >= 1 - 1e-9
    assert not two.detector.fits(first, ONE, level(1.0), None, NOW)
    assert two.takes(second)


def test_a_closed_endpoint_is_forgotten_and_comes_back_with_its_load(rig: RigMaker) -> None:
    two = rig(2)
    first, second = two.pool.open.values()
    held = two.book(first)
    two.close(first)
    two.detector.endpoint_closed(first)
    assert not two.detector.fits(first, ONE, level(1.0), None, NOW)
    assert two.takes(second)
    two.release(held)
    assert two.saturation == 0.0


def test_unknown_endpoints_and_repeated_samples_change_nothing(rig: RigMaker) -> None:
    one = rig(1)
    (state,) = one.pool.open.values()
    stranger = EndpointState(Endpoint(id=EndpointId("x"), name="x", address="x:1"))
    one.detector.endpoint_closed(stranger)
    one.detector.endpoint_sampled(stranger, NOW)
    for _ in range(3):
        one.detector.endpoint_sampled(state, NOW)
        one.detector.endpoint_changed(state, NOW)
    assert one.saturation == 0.0


def test_capacity_of_the_endpoint_goes_first(rig: RigMaker) -> None:
    one = rig(1)
    (state,) = one.pool.open.values()
    if one.detector.capacity(NOW) is None:
        pytest.skip("this detector knows no capacities")
    one.pool.put(replace(state.endpoint, max_requests=1, max_tokens=128))
    one.detector.endpoint_changed(state, NOW)
    one.book(state)
    one.book(state)
    assert not one.takes(state)


@given(
    moves=st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=300),
    name=st.sampled_from(sorted(CONFIGS)),
)
def test_running_sums_equal_a_detector_that_starts_afresh(moves: list[tuple[int, bool]], name: str) -> None:
    """However loads came about, a detector that sees only the result says the same."""
    worked = Rig(CONFIGS[name], 3)
    states = list(worked.pool.open.values())
    held: list[list[RequestId]] = [[], [], []]
    for index, is_booking in moves:
        if is_booking:
            held[index].append(worked.book(states[index]))
        elif held[index]:
            worked.release(held[index].pop())
    fresh = build_detector(CONFIGS[name])
    for state in states:
        fresh.endpoint_changed(state, NOW)
    candidates = worked.pool.candidates(ANY_ENDPOINT)
    assert fresh.saturation(candidates, NOW) == pytest.approx(worked.saturation, abs=1e-9)
    assert fresh.resources(NOW) == pytest.approx(worked.detector.resources(NOW), abs=1e-9)
