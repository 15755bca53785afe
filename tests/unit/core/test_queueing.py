"""Order, fairness, deadlines and limits of queues, through the controller."""

from __future__ import annotations

import pytest

from extproc.core.band import BandConfig
from extproc.core.concurrency import ConcurrencyDetectorConfig
from extproc.core.config import FlowControlConfig
from extproc.core.fairness import (
    FairnessConfig,
    GlobalStrictFairnessConfig,
    RoundRobinFairnessConfig,
    WeightedFairFairnessConfig,
)
from extproc.core.ordering import EdfOrderingConfig, OrderingConfig, SloDeadlineOrderingConfig
from extproc.core.outcomes import Outcome
from extproc.core.types import RequestId
from tests.support.core import Script, endpoint

ONE_SLOT = ConcurrencyDetectorConfig(max_concurrency=1)


def one_slot(**band: object) -> Script:
    return Script(FlowControlConfig(detector=ONE_SLOT, default_band=BandConfig(**band)))  # type: ignore[arg-type]


def served(script: Script, running: RequestId) -> list[RequestId]:
    """Lets everything run, one after the other, and returns the order."""
    order: list[RequestId] = []
    while True:
        known = len(script.dispatched())
        script.finish(running)
        if len(script.dispatched()) == known:
            return order
        running = script.dispatched()[-1]
        order.append(running)


def test_field_bug_100_edf_serves_by_deadline_with_ties_by_arrival() -> None:
    script = one_slot(ordering=EdfOrderingConfig())
    running = script.arrive()
    nine, three, six, also_three = (script.arrive(deadline_s=script.now + s) for s in (9, 3, 6, 3))
    assert served(script, running) == [three, also_three, six, nine]


def test_edf_takes_arrival_plus_ttl_where_there_is_no_deadline() -> None:
    script = one_slot(ordering=EdfOrderingConfig())
    running = script.arrive()
    long, short = script.arrive(ttl_s=50.0), script.arrive(ttl_s=5.0)
    assert served(script, running) == [short, long]


def test_slo_ordering_ignores_absurd_targets_and_gives_up_missed_ones() -> None:
    script = one_slot(ordering=SloDeadlineOrderingConfig())
    running = script.arrive()
    plain = script.arrive()
    absurd = script.arrive(ttft_target_s=-1.0)
    missed = script.arrive(ttft_target_s=0.5)
    script.advance(1.0)
    can_still = script.arrive(ttft_target_s=0.5)
    assert served(script, running) == [can_still, plain, absurd, missed]


def test_a_demoting_band_keeps_a_request_past_its_deadline() -> None:
    script = one_slot(ordering=EdfOrderingConfig(), missed_deadlines="demote")
    running = script.arrive()
    late = script.arrive(deadline_s=script.now + 1)
    already_late = script.arrive(deadline_s=script.now - 1)
    script.advance(2)
    in_time = script.arrive(deadline_s=script.now + 5)
    assert served(script, running) == [in_time, late, already_late]
    assert script.expired() == script.rejected() == []


@pytest.mark.parametrize(
    ("fairness", "order"),
    [
        (GlobalStrictFairnessConfig(), "aaaabb"),
        (RoundRobinFairnessConfig(), "ababaa"),
        (WeightedFairFairnessConfig(), "ababaa"),
        (WeightedFairFairnessConfig(weights={"a": 2.0}), "abaaba"),
    ],
)
def test_fairness_between_a_burster_and_a_peer(fairness: FairnessConfig, order: str) -> None:
    script = one_slot(fairness=fairness)
    running = script.arrive(flow="z")
    flows = {script.arrive(flow=flow, prompt_tokens=100): flow for flow in "aaaabb"}
    assert "".join(flows[request] for request in served(script, running)) == order


def test_weighted_fair_shares_tokens_not_requests() -> None:
    script = one_slot(fairness=WeightedFairFairnessConfig(), max_requests_per_flow=500)
    running = script.arrive(flow="z")
    tokens = {}
    for _ in range(60):
        tokens[script.arrive(flow="long", prompt_tokens=900, expected_output_tokens=124)] = ("long", 1024)
        for _ in range(4):
            request = script.arrive(flow="short", prompt_tokens=200, expected_output_tokens=56)
            tokens[request] = ("short", 256)
    totals = {"long": 0, "short": 0}
    for request in served(script, running)[:150]:
        flow, count = tokens[request]
        totals[flow] += count
    assert totals["long"] == pytest.approx(totals["short"], rel=0.05)


def test_an_idle_flow_comes_back_without_credit_for_its_absence() -> None:
    script = one_slot(fairness=WeightedFairFairnessConfig())
    running = script.arrive(flow="z")
    for _ in range(20):
        script.arrive(flow="busy", prompt_tokens=100)
    for _ in range(10):
        script.finish(running)
        running = script.dispatched()[-1]
    back = [script.arrive(flow="back", prompt_tokens=100) for _ in range(5)]
    order = served(script, running)
    # It alternates with the busy flow; it isn't served five times in a row.
    assert [request in back for request in order[:6]] in ([True, False] * 3, [False, True] * 3)


def test_field_bug_083_a_flow_lives_while_it_has_a_request() -> None:
    script = one_slot(fairness=RoundRobinFairnessConfig(), ttl_s=10_000.0)
    running = script.arrive(flow="z")
    lonely = script.arrive(flow="lonely")
    script.advance(3600)
    script.finish(running)
    assert script.dispatched()[-1] == lonely


@pytest.mark.parametrize("limit", ["max_requests", "max_requests_per_flow"])
def test_field_bug_086_both_bounds_hold(limit: str) -> None:
    script = one_slot(**{limit: 3})
    script.arrive()
    for _ in range(6):
        script.arrive()
    assert len(script.rejected()) == 3
    script.advance(60.0)
    assert [e.outcome for e in script.expired()] == [Outcome.EXPIRED_TTL] * 3


def test_field_bug_095_limit_zero_sheds_at_once_but_uses_free_places() -> None:
    bands = (BandConfig(priority=-1, max_requests=0),)
    script = Script(FlowControlConfig(detector=ONE_SLOT, bands=bands))
    running, shed = script.arrive(-1), script.arrive(-1)
    assert script.dispatched() == [running]
    assert [(r.request_id, r.outcome) for r in script.rejected()] == [(shed, Outcome.REJECTED_CAPACITY)]


def test_field_bug_089_a_client_that_leaves_frees_its_place_at_once() -> None:
    script = one_slot()
    running = script.arrive(size_bytes=10)
    first, gone, last = (script.arrive(size_bytes=10) for _ in range(3))
    script.cancel(gone)
    (band,) = script.controller.statistics().bands
    assert (band.queued_requests, band.queued_bytes) == (2, 20)
    assert band.outcomes[Outcome.CANCELLED] == 1
    assert served(script, running) == [first, last]


def test_field_bug_091_an_empty_pool_is_told_apart_from_a_full_one() -> None:
    config = FlowControlConfig(default_band=BandConfig(max_requests=2), no_endpoint_ttl_s=5.0)
    script = Script(config, endpoints=0)
    for _ in range(3):
        script.arrive()
    script.advance(5.0)
    assert [r.outcome for r in script.rejected()] == [Outcome.REJECTED_NO_ENDPOINTS]
    assert [e.outcome for e in script.expired()] == [Outcome.EXPIRED_NO_ENDPOINTS] * 2


def test_waiting_without_endpoints_can_be_forbidden() -> None:
    script = Script(FlowControlConfig(no_endpoint_ttl_s=0), endpoints=0)
    script.arrive()
    assert [r.outcome for r in script.rejected()] == [Outcome.REJECTED_NO_ENDPOINTS]


def test_field_bug_088_nothing_is_stranded_by_a_shutdown() -> None:
    from extproc.core.events import DrainStarted

    script = one_slot()
    script.arrive()
    queued = [script.arrive() for _ in range(5)]
    script.send(DrainStarted(reject_queued=True))
    after = script.arrive()
    assert [e.request_id for e in script.expired()] == queued
    assert {e.outcome for e in script.expired()} == {Outcome.REJECTED_SHUTTING_DOWN}
    assert [(r.request_id, r.outcome) for r in script.rejected()] == [(after, Outcome.REJECTED_SHUTTING_DOWN)]


def test_a_draining_gateway_may_still_serve_what_is_queued() -> None:
    from extproc.core.events import DrainStarted

    script = one_slot()
    running, queued = script.arrive(), script.arrive()
    script.send(DrainStarted(reject_queued=False))
    script.finish(running)
    assert script.dispatched() == [running, queued]


def test_retry_after_follows_the_observed_drain_rate() -> None:
    script = one_slot(max_requests=8)
    running = script.arrive()
    for _ in range(8):
        script.arrive()
    for _ in range(60):  # one completion and one arrival every half second
        script.advance(0.5)
        script.finish(running)
        running = script.dispatched()[-1]
        script.arrive()
    script.arrive()
    # Two a second, eight ahead: about four to five seconds.
    assert script.rejected()[-1].retry_after_s in (4, 5)


@pytest.mark.parametrize("ordering", [EdfOrderingConfig(), SloDeadlineOrderingConfig()])
def test_orderings_fall_back_to_arrival(ordering: OrderingConfig) -> None:
    script = Script(
        FlowControlConfig(detector=ONE_SLOT, default_band=BandConfig(ordering=ordering), default_ttl_s=None)
    )
    running = script.arrive()
    waiting = [script.arrive() for _ in range(4)]
    assert served(script, running) == waiting


@pytest.mark.parametrize("ordering", [EdfOrderingConfig(), SloDeadlineOrderingConfig()])
@pytest.mark.parametrize("missed", ["drop", "demote"])
def test_values_that_are_no_numbers_never_corrupt_the_order(ordering: OrderingConfig, missed: str) -> None:
    script = one_slot(ordering=ordering, missed_deadlines=missed)
    nan = float("nan")
    running = script.arrive()
    first, second = script.arrive(), script.arrive()
    for attributes in ({"deadline_s": nan}, {"ttft_target_s": nan}, {"ttl_s": nan}, {"prompt_tokens": -5}):
        script.arrive(**attributes)
        script.arrive()
    order = served(script, running)
    assert order.index(first) < order.index(second)
    statistics = script.controller.statistics()
    assert statistics.queued_requests == statistics.inflight_requests == 0


def test_a_ttl_that_ran_out_exactly_when_endpoints_come_back_expires_once() -> None:
    """Found by random event sequences: the two clocks' timers must both be looked at after a change."""
    script = Script(
        FlowControlConfig(detector=ONE_SLOT, no_endpoint_ttl_s=None, default_ttl_s=0.5), endpoints=0
    )
    for _ in range(3):
        script.arrive(ttl_s=0.0)
    script.advance(2.0)
    script.add(endpoint("a"))
    assert len(script.dispatched()) == 1
    script.advance(0.0)
    assert len(script.expired()) == 2
    assert script.controller.next_wakeup() is None
