"""What every ordering and every fairness policy guarantees, seen through a band."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.band import Band, BandConfig, QueuedRequest
from extproc.core.fairness import (
    FairnessConfig,
    GlobalStrictFairnessConfig,
    RoundRobinFairnessConfig,
    WeightedFairFairnessConfig,
)
from extproc.core.footprint import Footprint
from extproc.core.ordering import (
    EdfOrderingConfig,
    FcfsOrderingConfig,
    OrderingConfig,
    SloDeadlineOrderingConfig,
)
from extproc.core.pool import ANY_ENDPOINT, LaneKey
from extproc.core.types import FairnessId, Request, RequestId

ORDERINGS: tuple[OrderingConfig, ...] = (
    FcfsOrderingConfig(),
    EdfOrderingConfig(),
    SloDeadlineOrderingConfig(),
)
FAIRNESSES: tuple[FairnessConfig, ...] = (
    GlobalStrictFairnessConfig(),
    RoundRobinFairnessConfig(),
    WeightedFairFairnessConfig(weights={"b": 3.0}, max_idle_flows=2),
)
OTHER_LANE = LaneKey(frozenset({"e:80"}), "", None)

POLICIES = [pytest.param(o, f, id=f"{o.type}, {f.type}") for o in ORDERINGS for f in FAIRNESSES]


def item(
    serial: int, flow: str, now: float, *, lane: LaneKey = ANY_ENDPOINT, **attributes: object
) -> QueuedRequest:
    request = Request(id=RequestId(serial), fairness_id=FairnessId(flow), **attributes)  # type: ignore[arg-type]
    return QueuedRequest(request, lane, Footprint(1, 100, 100 * (1 + serial % 3)), 60.0, now)


@pytest.mark.parametrize(("ordering", "fairness"), POLICIES)
@given(
    moves=st.lists(
        st.one_of(
            st.tuples(
                st.just("push"), st.sampled_from("abcd"), st.sampled_from((None, 5.0, -1.0)), st.booleans()
            ),
            st.tuples(st.just("serve")),
            st.tuples(st.just("remove"), st.integers(0, 50)),
            st.tuples(st.just("demote"), st.integers(0, 50)),
        ),
        max_size=80,
    )
)
def test_everything_that_goes_in_comes_out_once(
    ordering: OrderingConfig, fairness: FairnessConfig, moves: list[tuple[object, ...]]
) -> None:
    band = Band(0, BandConfig(ordering=ordering, fairness=fairness))
    inside: dict[int, QueuedRequest] = {}
    served: list[QueuedRequest] = []
    for serial, move in enumerate(moves):
        if move[0] == "push":
            _, flow, target, is_other = move
            lane = OTHER_LANE if is_other else ANY_ENDPOINT
            new = item(serial, str(flow), float(serial), lane=lane, ttft_target_s=target)
            band.push(new)
            inside[serial] = new
        elif move[0] == "serve" and (head := band.head()) is not None:
            band.serve(head)
            served.append(inside.pop(head.request.id))
        elif len(move) > 1 and isinstance(move[1], int) and inside:
            chosen = list(inside.values())[move[1] % len(inside)]
            if move[0] == "demote":
                band.demote(chosen)
            else:
                band.remove(inside.pop(chosen.request.id))
        assert len(band) == len(inside)
        assert band.queued_footprint.requests == len(inside)
        assert band.queued_footprint.kv_tokens == sum(i.footprint.kv_tokens for i in inside.values())
        assert band.flows == len({i.request.fairness_id for i in inside.values()})
        assert [i.request.id for i in band.newest_first()] == sorted(inside, reverse=True)
        assert (band.head() is None) == (not inside)
    while (head := band.head()) is not None:
        band.serve(head)
        served.append(inside.pop(head.request.id))
    assert not inside
    assert len(set(served)) == len(served)
    assert band.queued_footprint == Footprint(0, 0, 0)


@pytest.mark.parametrize(("ordering", "fairness"), POLICIES)
def test_equal_requests_of_a_flow_leave_in_order_of_arrival(
    ordering: OrderingConfig, fairness: FairnessConfig
) -> None:
    band = Band(0, BandConfig(ordering=ordering, fairness=fairness))
    for serial in range(40):
        band.push(item(serial, "ab"[serial % 2], 10.0, ttft_target_s=2.0))
    last = {"a": -1, "b": -1}
    while (head := band.head()) is not None:
        flow = str(head.request.fairness_id)
        assert head.request.id > last[flow]
        last[flow] = head.request.id
        band.serve(head)


@pytest.mark.parametrize("fairness", [f for f in FAIRNESSES if f.type != "global-strict"])
def test_every_backlogged_flow_gets_its_turn(fairness: FairnessConfig) -> None:
    """Between two turns of one flow, no other is served more often than its weight allows."""
    band = Band(0, BandConfig(fairness=fairness))
    flows = "abcd"
    for serial in range(400):
        band.push(
            QueuedRequest(
                Request(id=RequestId(serial), fairness_id=FairnessId(flows[serial % 4])),
                ANY_ENDPOINT,
                Footprint(1, 100, 100),
                None,
                float(serial),
            )
        )
    order = []
    for _ in range(120):
        head = band.head()
        assert head is not None
        order.append(str(head.request.fairness_id))
        band.serve(head)
    longest_gap = 7 if fairness.type == "weighted-fair" else 4
    for start in range(len(order) - longest_gap):
        assert set(order[start : start + longest_gap]) == set(flows)


def test_closed_lanes_are_passed_over() -> None:
    band = Band(0, BandConfig(fairness=RoundRobinFairnessConfig()))
    band.push(item(1, "a", 1.0, lane=OTHER_LANE))
    band.push(item(2, "a", 2.0))
    head = band.head({OTHER_LANE})
    assert head is not None
    assert head.request.id == 2
    assert band.head({OTHER_LANE, ANY_ENDPOINT}) is None
