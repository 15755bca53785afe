"""The controller's main job: who is dispatched, held, refused and evicted, with literal numbers."""

from __future__ import annotations

import pytest

from extproc.core.band import BandConfig
from extproc.core.concurrency import ConcurrencyDetectorConfig
from extproc.core.config import FlowControlConfig
from extproc.core.eviction import DeficitSizingConfig, DemandSizingConfig, EvictionConfig
from extproc.core.holdback import PriorityHoldbackConfig, StaticCeilingConfig
from extproc.core.outcomes import EndReason, Outcome
from tests.support.core import Script, endpoint

SLOTS_32 = ConcurrencyDetectorConfig(max_concurrency=32)


def slots(count: int, **rest: object) -> FlowControlConfig:
    detector = ConcurrencyDetectorConfig(max_concurrency=count)
    return FlowControlConfig(detector=detector, **rest)  # type: ignore[arg-type]


@pytest.mark.parametrize(("ceiling", "inflight"), [(0.9, 29), (0.8, 26), (1.0, 32)])
def test_ceiling_of_32_slots_holds_exactly(ceiling: float, inflight: int) -> None:
    script = Script(FlowControlConfig(detector=SLOTS_32, ceilings=StaticCeilingConfig(threshold=ceiling)))
    for _ in range(40):
        script.arrive()
    assert len(script.dispatched()) == inflight


@pytest.mark.parametrize(("ceiling", "batch"), [(0.9, 29), (0.8, 26)])
def test_holdback_keeps_room_for_the_higher_band_only(ceiling: float, batch: int) -> None:
    bands = (BandConfig(priority=10), BandConfig(priority=-1))
    ceilings = PriorityHoldbackConfig(min_ceiling=ceiling, rank_over="declared")
    script = Script(FlowControlConfig(detector=SLOTS_32, ceilings=ceilings, bands=bands))
    for _ in range(40):
        script.arrive(-1)
    assert len(script.dispatched()) == batch
    urgent = [script.arrive(10) for _ in range(40)]
    assert len(script.dispatched()) == 32
    assert script.dispatched()[batch:] == urgent[: 32 - batch]


def test_a_completion_dispatches_the_next_in_the_same_call() -> None:
    script = Script(slots(1))
    first, second, third = script.arrive(), script.arrive(), script.arrive()
    script.finish(first)
    assert script.dispatched() == [first, second]
    script.finish(second)
    assert script.dispatched() == [first, second, third]


def test_higher_band_goes_first_and_an_empty_one_blocks_nobody() -> None:
    script = Script(slots(1, bands=(BandConfig(priority=10), BandConfig(priority=5))))
    running = script.arrive(0)
    low, high = script.arrive(0), script.arrive(5)
    script.finish(running)
    script.finish(high)
    assert script.dispatched() == [running, high, low]


def test_least_loaded_endpoint_is_picked() -> None:
    script = Script(slots(10), endpoints=4)
    for _ in range(8):
        script.arrive()
    statistics = script.controller.statistics()
    assert [e.inflight_requests for e in statistics.endpoints] == [2, 2, 2, 2]


def test_ttl_expires_exactly_and_frees_the_place_in_the_queue() -> None:
    script = Script(slots(1, default_ttl_s=5.0))
    script.arrive()
    waiting = script.arrive()
    script.advance(4.999)
    assert script.expired() == []
    script.advance(0.001)
    (expired,) = script.expired()
    assert (expired.request_id, expired.outcome) == (waiting, Outcome.EXPIRED_TTL)
    assert expired.queued_s == pytest.approx(5.0)
    assert script.controller.statistics().queued_requests == 0
    assert script.controller.next_wakeup() is None


def test_waiting_without_endpoints_is_charged_apart() -> None:
    script = Script(slots(1, default_ttl_s=10.0, no_endpoint_ttl_s=4.0), endpoints=0)
    early = script.arrive()
    script.advance(3.0)
    script.add(endpoint("a"))
    assert script.dispatched() == [early]
    waiting = script.arrive()
    script.advance(6.0)
    script.drop(endpoint("a"))
    script.advance(3.5)
    script.add(endpoint("b"))
    # 6 s of 10 s were used; the outage cost 3.5 s of its own 4 s.
    assert script.dispatched() == [early, waiting]


def test_outage_expires_as_no_endpoints() -> None:
    script = Script(slots(1, no_endpoint_ttl_s=4.0), endpoints=0)
    script.arrive()
    script.advance(4.0)
    assert [e.outcome for e in script.expired()] == [Outcome.EXPIRED_NO_ENDPOINTS]


def test_deadline_expires_exactly_and_a_passed_one_is_refused() -> None:
    script = Script(slots(1))
    script.arrive()
    script.arrive(deadline_s=script.now + 2.5)
    script.advance(2.5)
    assert [e.outcome for e in script.expired()] == [Outcome.EXPIRED_DEADLINE]
    script.arrive(deadline_s=script.now - 1)
    assert [r.outcome for r in script.rejected()] == [Outcome.EXPIRED_DEADLINE]


def test_band_limits_refuse_and_say_which() -> None:
    script = Script(slots(1, default_band=BandConfig(max_requests=2)))
    for _ in range(4):
        script.arrive()
    (refused,) = script.rejected()
    assert refused.outcome is Outcome.REJECTED_CAPACITY
    assert "limit of 2" in refused.message
    assert refused.retry_after_s is not None
    assert 1 <= refused.retry_after_s <= 60


def test_a_global_limit_displaces_the_newest_of_the_lowest_band() -> None:
    script = Script(slots(1, max_requests=3))
    script.arrive()
    script.arrive(-2)
    newest_low = script.arrive(-2)
    script.arrive(-1)
    script.arrive(5)
    assert script.displaced() == [newest_low]
    script.arrive(-3)
    assert [r.outcome for r in script.rejected()] == [Outcome.REJECTED_CAPACITY]


def test_a_full_queue_does_not_refuse_what_can_go_at_once() -> None:
    config = slots(2, max_requests=1, ceilings=PriorityHoldbackConfig(min_ceiling=0.5))
    script = Script(config)
    script.finish(script.arrive(5))
    running, _queued = script.arrive(-1), script.arrive(-1)
    urgent = script.arrive(5)
    assert script.dispatched()[1:] == [running, urgent]
    assert script.displaced() == []


def test_cancelled_requests_never_run_and_never_count() -> None:
    script = Script(slots(1, default_band=BandConfig(max_requests=2)))
    running = script.arrive()
    gone, stays = script.arrive(), script.arrive()
    script.cancel(gone)
    script.arrive()
    assert script.rejected() == []
    script.finish(running)
    assert script.dispatched() == [running, stays]


def eviction(sizing: DemandSizingConfig | DeficitSizingConfig) -> FlowControlConfig:
    return slots(32, eviction=EvictionConfig(enabled=True, sizing=sizing))


def test_a_burst_of_32_revokes_32_at_once_and_goes_on_their_promise() -> None:
    script = Script(eviction(DemandSizingConfig()))
    batch = [script.arrive(-1) for _ in range(40)]
    burst = [script.arrive(10) for _ in range(32)]
    assert script.revoked() == batch[:32][::-1]
    assert script.dispatched() == batch[:32] + burst
    one_more = script.arrive(10)
    assert one_more not in script.dispatched()
    for victim in batch[:32]:
        script.finish(victim, EndReason.CLIENT_GONE)
    # The newcomers took the places: nothing of the batch slips in.
    assert script.dispatched() == batch[:32] + burst
    statistics = script.controller.statistics()
    assert statistics.revocations_confirmed == 32
    assert statistics.inflight_requests == 32


def test_waiting_promise_revokes_for_the_whole_queue_but_dispatches_on_confirmation() -> None:
    script = Script(eviction(DemandSizingConfig(promise="wait")))
    batch = [script.arrive(-1) for _ in range(33)]
    burst = [script.arrive(10) for _ in range(5)]
    assert len(script.revoked()) == 5
    assert script.dispatched() == batch[:32]
    for victim in script.revoked():
        script.finish(victim, EndReason.CLIENT_GONE)
    assert script.dispatched() == batch[:32] + burst


def test_deficit_sizing_revokes_one_per_decision_at_exactly_full() -> None:
    script = Script(eviction(DeficitSizingConfig()))
    batch = [script.arrive(-1) for _ in range(32)]
    burst = [script.arrive(10) for _ in range(3)]
    assert script.revoked() == [batch[31]]
    script.finish(batch[31], EndReason.CLIENT_GONE)
    assert script.dispatched()[32:] == burst[:1]
    assert len(script.revoked()) == 1
    script.advance(0.01)
    assert len(script.revoked()) == 2


def test_no_eviction_of_the_same_or_a_higher_priority() -> None:
    script = Script(slots(2, eviction=EvictionConfig(enabled=True, evictable_below=100)))
    script.arrive(10)
    script.arrive(10)
    script.arrive(10)
    script.arrive(5)
    assert script.revoked() == []


def test_an_unconfirmed_revocation_is_given_up_after_its_timeout() -> None:
    script = Script(slots(1, eviction=EvictionConfig(enabled=True)))
    victim = script.arrive(-1)
    script.arrive(10)
    script.advance(9.99)
    assert script.controller.statistics().revocations_outstanding == 1
    script.advance(0.01)
    statistics = script.controller.statistics()
    assert (statistics.revocations_timed_out, statistics.inflight_requests) == (1, 1)
    script.finish(victim)
    assert script.controller.statistics().ignored_events == 1


def test_observe_dispatches_all() -> None:
    script = Script(slots(2, mode="observe"))
    for _ in range(5):
        script.arrive()
    assert len(script.dispatched()) == 5


def test_a_blocked_subset_lets_others_pass_but_keeps_its_own_places() -> None:
    script = Script(slots(1), endpoints=2)
    subset = frozenset({"e0:8000"})
    first = script.arrive(endpoint_subset=subset)
    blocked = script.arrive(endpoint_subset=subset)
    passing = script.arrive()
    behind = script.arrive()
    assert script.dispatched() == [first, passing]
    script.finish(first)
    # e0 goes to the one that can only run there, though `behind` could use it too.
    assert script.dispatched() == [first, passing, blocked]
    assert script.where(blocked) == "e0"
    script.finish(passing)
    assert script.where(behind) == "e1"
