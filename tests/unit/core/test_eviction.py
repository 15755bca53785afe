"""Who is evicted, where, and how often."""

from __future__ import annotations

import pytest

from extproc.core.capacity import CapacityDetectorConfig
from extproc.core.concurrency import ConcurrencyDetectorConfig
from extproc.core.config import FlowControlConfig
from extproc.core.events import CapacityLeased, ReclaimRequested
from extproc.core.eviction import DemandSizingConfig, EvictionConfig, VictimOrder
from extproc.core.holdback import ExplicitCeilingsConfig
from extproc.core.outcomes import EndReason
from extproc.core.pacing import PrefillPacingConfig
from extproc.core.types import EndpointId
from extproc.core.utilization import UtilizationDetectorConfig
from tests.support.core import Script, endpoint

NO_PACING = PrefillPacingConfig(enabled=False)


def evicting(slots: int, **rest: object) -> FlowControlConfig:
    return FlowControlConfig(
        detector=ConcurrencyDetectorConfig(max_concurrency=slots),
        pacing=NO_PACING,
        eviction=EvictionConfig(enabled=True, **rest),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("order", "victims"),
    [
        ("priority-then-newest", ["resumable", "big", "old"]),
        ("least-work-lost", ["resumable", "big", "old"]),
        ("most-freed", ["big", "old", "resumable"]),
    ],
)
def test_victim_orders(order: VictimOrder, victims: list[str]) -> None:
    config = FlowControlConfig(
        detector=CapacityDetectorConfig(max_num_seqs=4, kv_tokens=100_000),
        pacing=NO_PACING,
        eviction=EvictionConfig(enabled=True, order=order),
    )
    script = Script(config)
    names = {
        script.arrive(-1, prompt_tokens=500, expected_output_tokens=0): "old",
        script.arrive(-1, prompt_tokens=400, expected_output_tokens=0, is_resumable=True): "resumable",
        script.arrive(-1, prompt_tokens=600, expected_output_tokens=0): "big",
        script.arrive(0, prompt_tokens=10, expected_output_tokens=0): "not evictable",
    }
    for _ in range(4):
        script.arrive(5, prompt_tokens=10, expected_output_tokens=0)
    assert [names[victim] for victim in script.revoked()] == victims


def test_among_resumable_streams_the_cheapest_to_recompute_goes_first() -> None:
    script = Script(evicting(3, order="least-work-lost"))
    long, short, middle = (
        script.arrive(-1, prompt_tokens=tokens, is_resumable=True) for tokens in (900, 100, 500)
    )
    for _ in range(3):
        script.arrive(5)
    assert script.revoked() == [short, middle, long]


def test_the_lowest_priority_is_evicted_first() -> None:
    script = Script(evicting(2))
    lowest, low = script.arrive(-5), script.arrive(-1)
    script.arrive(5)
    script.arrive(5)
    assert script.revoked() == [lowest, low]


def test_field_bug_113_sheddable_demand_evicts_only_what_is_lower() -> None:
    script = Script(evicting(2))
    same, lower = script.arrive(-1), script.arrive(-2)
    script.arrive(-1)
    script.arrive(-1)
    assert script.revoked() == [lower]
    assert same not in script.revoked()


def test_field_bug_113_a_closed_band_makes_no_demand() -> None:
    config = FlowControlConfig(
        detector=ConcurrencyDetectorConfig(max_concurrency=1),
        ceilings=ExplicitCeilingsConfig(ceilings={5: 0.0}),
        eviction=EvictionConfig(enabled=True),
    )
    script = Script(config)
    script.arrive(5)
    assert script.revoked() == script.dispatched() == []


def test_field_bug_112_no_second_eviction_while_the_first_takes_effect() -> None:
    script = Script(evicting(3, sizing=DemandSizingConfig(promise="wait")))
    batch = [script.arrive(-1) for _ in range(3)]
    urgent = script.arrive(5)
    for _ in range(50):
        script.advance(0.01)
    assert script.revoked() == [batch[2]]
    script.finish(batch[2], EndReason.CLIENT_GONE)
    assert script.dispatched()[-1] == urgent
    assert script.revoked() == [batch[2]]


def test_field_bug_112_a_victim_that_never_ends_is_given_up() -> None:
    script = Script(evicting(1, sizing=DemandSizingConfig(promise="wait")))
    script.arrive(-1)
    urgent = script.arrive(5)
    script.advance(10.0)
    assert script.dispatched()[-1] == urgent


def test_the_number_of_revocations_a_decision_can_be_bounded() -> None:
    config = FlowControlConfig(
        detector=CapacityDetectorConfig(max_num_seqs=10, kv_tokens=1000),
        pacing=NO_PACING,
        eviction=EvictionConfig(enabled=True, sizing=DemandSizingConfig(max_revocations_per_decision=2)),
    )
    script = Script(config)
    for _ in range(5):
        script.arrive(-1, prompt_tokens=192, expected_output_tokens=0)
    needs_three = script.arrive(5, prompt_tokens=560, expected_output_tokens=0)
    assert script.revoked() == []
    needs_two = script.arrive(6, prompt_tokens=380, expected_output_tokens=0)
    assert len(script.revoked()) == 2
    assert needs_two in script.dispatched()
    assert needs_three not in script.dispatched()


def test_victims_are_on_one_endpoint_where_their_room_is_usable_together() -> None:
    config = FlowControlConfig(
        detector=CapacityDetectorConfig(max_num_seqs=10, kv_tokens=1000),
        pacing=NO_PACING,
        eviction=EvictionConfig(enabled=True),
    )
    script = Script(config, endpoints=2)
    batch = [script.arrive(-1, prompt_tokens=480, expected_output_tokens=0) for _ in range(4)]
    urgent = script.arrive(5, prompt_tokens=960, expected_output_tokens=0)
    assert len(script.revoked()) == 2
    assert {script.where(victim) for victim in script.revoked()} == {script.where(urgent)}
    assert set(script.revoked()) < set(batch)


def test_a_completed_response_confirms_a_revocation_too() -> None:
    script = Script(evicting(1))
    victim = script.arrive(-1)
    script.arrive(5)
    script.finish(victim, EndReason.COMPLETED)
    statistics = script.controller.statistics()
    assert (statistics.revocations_confirmed, statistics.revocations_outstanding) == (1, 0)
    assert statistics.bands[-1].ends == {EndReason.COMPLETED: 1}


def test_another_replicas_need_is_met_from_lower_work_and_given_up_at_once() -> None:
    script = Script(evicting(4))
    only = EndpointId("e0|e0:8000|1")
    script.send(CapacityLeased(only, 4, None))
    batch = [script.arrive(-1) for _ in range(3)]
    script.arrive(0)
    script.send(ReclaimRequested(only, 5, 2, 0))
    assert script.revoked() == batch[:0:-1]
    for victim in script.revoked():
        script.finish(victim, EndReason.CLIENT_GONE)
    waiting = script.arrive(-1)
    assert waiting not in script.dispatched()
    script.send(CapacityLeased(only, 3, None))
    assert script.dispatched()[-1] == waiting


def test_with_measurements_a_victim_counts_until_a_sample_shows_its_room() -> None:
    detector = UtilizationDetectorConfig(queue_depth_threshold=5, staleness_s=60)
    config = FlowControlConfig(
        detector=detector, pacing=NO_PACING, eviction=EvictionConfig(enabled=True), default_ttl_s=None
    )
    script = Script(config, endpoints=0)
    only = endpoint("a")
    script.add(only)
    script.sample(only, running_requests=0, waiting_requests=0, kv_usage_fraction=0.1)
    batch = [script.arrive(-1) for _ in range(8)]
    script.sample(only, running_requests=3, waiting_requests=5, kv_usage_fraction=0.1)
    urgent = script.arrive(5)
    assert script.revoked() == [batch[7]]
    assert urgent in script.dispatched()
    script.finish(batch[7], EndReason.CLIENT_GONE)
    second = script.arrive(5)
    # The old reading still says 5 waiting: the room of the first victim is used up, but never lost.
    assert script.revoked() == [batch[7], batch[6]]
    assert second in script.dispatched()


def test_what_a_large_victim_leaves_stays_for_its_demand_for_a_while() -> None:
    config = FlowControlConfig(
        detector=CapacityDetectorConfig(max_num_seqs=100, kv_tokens=10_000),
        pacing=NO_PACING,
        eviction=EvictionConfig(enabled=True, keep_leftover_s=2.0),
    )
    script = Script(config)
    victim = script.arrive(-1, prompt_tokens=9_984, expected_output_tokens=0)
    small_batch = script.arrive(-1, prompt_tokens=1_600, expected_output_tokens=0)
    script.arrive(5, prompt_tokens=1_600, expected_output_tokens=0)
    script.finish(victim, EndReason.CLIENT_GONE)
    assert small_batch not in script.dispatched()
    script.advance(1.0)
    urgent = [script.arrive(5, prompt_tokens=1_600, expected_output_tokens=0) for _ in range(4)]
    assert set(urgent) <= set(script.dispatched())
    assert script.revoked() == [victim]
    assert small_batch not in script.dispatched()
    script.advance(1.0)
    assert small_batch in script.dispatched()


def test_leftovers_can_be_given_up_at_once() -> None:
    config = FlowControlConfig(
        detector=CapacityDetectorConfig(max_num_seqs=100, kv_tokens=10_000),
        pacing=NO_PACING,
        eviction=EvictionConfig(enabled=True, keep_leftover_s=0),
    )
    script = Script(config)
    victim = script.arrive(-1, prompt_tokens=9_984, expected_output_tokens=0)
    small_batch = script.arrive(-1, prompt_tokens=1_600, expected_output_tokens=0)
    script.arrive(5, prompt_tokens=1_600, expected_output_tokens=0)
    script.finish(victim, EndReason.CLIENT_GONE)
    assert small_batch in script.dispatched()
