"""The capacity detector: both resources, per endpoint, seen ahead and corrected by samples."""

from __future__ import annotations

import pytest

from extproc.core.adaptive import AdaptiveHoldbackConfig
from extproc.core.capacity import CapacityDetectorConfig
from extproc.core.config import FlowControlConfig
from extproc.core.eviction import EvictionConfig
from extproc.core.outcomes import EndReason
from extproc.core.pacing import PrefillPacingConfig
from extproc.core.types import Usage
from tests.support.core import Script, endpoint

NO_PACING = PrefillPacingConfig(enabled=False)


def capacity(slots: int | None = 8, kv_tokens: int | None = None, **rest: object) -> FlowControlConfig:
    detector = CapacityDetectorConfig(max_num_seqs=slots, kv_tokens=kv_tokens or "auto")
    return FlowControlConfig(detector=detector, **{"pacing": NO_PACING, **rest})  # type: ignore[arg-type]


def test_slots_bind_when_kv_is_free() -> None:
    script = Script(capacity(slots=3, kv_tokens=1_000_000))
    for _ in range(5):
        script.arrive(prompt_tokens=100, max_output_tokens=100)
    assert len(script.dispatched()) == 3


def test_kv_binds_when_slots_are_free_and_small_requests_may_not_overtake() -> None:
    script = Script(capacity(slots=100, kv_tokens=1000))
    big = script.arrive(prompt_tokens=600, expected_output_tokens=200)
    blocked = script.arrive(prompt_tokens=600, expected_output_tokens=200)
    small = script.arrive(prompt_tokens=16, expected_output_tokens=16)
    assert script.dispatched() == [big]
    script.finish(big)
    assert script.dispatched() == [big, blocked, small]


def test_footprints_are_whole_blocks() -> None:
    script = Script(capacity(slots=100, kv_tokens=64))
    for _ in range(5):
        script.arrive(prompt_tokens=17, expected_output_tokens=0)
    assert len(script.dispatched()) == 2


def test_an_idle_endpoint_takes_a_request_larger_than_its_kv() -> None:
    script = Script(capacity(slots=4, kv_tokens=1000))
    huge = script.arrive(prompt_tokens=5000, expected_output_tokens=10)
    other = script.arrive(prompt_tokens=16, expected_output_tokens=0)
    assert script.dispatched() == [huge]
    script.finish(huge)
    assert script.dispatched() == [huge, other]


def test_capacities_differ_by_endpoint_and_come_from_samples() -> None:
    script = Script(capacity(slots=8), endpoints=0)
    large, small = endpoint("large", max_requests=6), endpoint("small", max_requests=1)
    script.add(large)
    script.add(small)
    for _ in range(10):
        script.arrive(prompt_tokens=10)
    statistics = script.controller.statistics()
    assert [e.inflight_requests for e in statistics.endpoints] == [6, 1]


def test_the_reported_kv_capacity_is_used() -> None:
    script = Script(capacity(slots=100), endpoints=0)
    only = endpoint("a")
    script.add(only)
    script.sample(only, kv_capacity_tokens=800, kv_block_tokens=16, kv_usage_fraction=0.0)
    for _ in range(10):
        script.arrive(prompt_tokens=160, expected_output_tokens=0)
    assert len(script.dispatched()) == 5


def test_a_dispatch_is_never_hidden_by_an_older_sample() -> None:
    script = Script(capacity(slots=2), endpoints=0)
    only = endpoint("a")
    script.add(only)
    for _ in range(2):
        script.arrive()
    script.sample(only, running_requests=0, waiting_requests=0)
    script.arrive()
    assert len(script.dispatched()) == 2


def test_foreign_load_counts_after_three_samples_agree() -> None:
    script = Script(capacity(slots=4), endpoints=0)
    only = endpoint("a")
    script.add(only)
    for _ in range(3):
        script.sample(only, running_requests=3, waiting_requests=0)
        script.advance(0.1)
    for _ in range(3):
        script.arrive()
    assert len(script.dispatched()) == 1


def test_kv_correction_follows_measurements_slowly_and_within_bounds() -> None:
    script = Script(capacity(slots=100, kv_tokens=100_000), endpoints=0)
    only = endpoint("a")
    script.add(only)
    # Teaches the decode rate: 100 tokens/s.
    done = script.arrive(prompt_tokens=1000, expected_output_tokens=100)
    script.advance(1.0)
    script.finish(done, usage=Usage(prompt_tokens=1000, output_tokens=100))
    for _ in range(20):
        script.arrive(prompt_tokens=2000, expected_output_tokens=0)
    for _ in range(2000):
        script.advance(0.1)
        script.sample(
            only, running_requests=20, waiting_requests=0, kv_usage_fraction=0.6, kv_capacity_tokens=100_000
        )
    resources = script.controller.statistics().endpoints[0].saturation
    # Booked 40,000 of 100,000; measured 60,000: the correction is at its bound of 1.5.
    assert resources["tokens"] == pytest.approx(0.6, rel=0.01)


def test_slots_are_learnt_where_requests_wait_beside_free_kv() -> None:
    script = Script(capacity(slots=None), endpoints=0)
    only = endpoint("a")
    script.add(only)
    for _ in range(60):
        script.arrive()
    assert len(script.dispatched()) == 60
    for _ in range(2):
        script.advance(0.1)
        script.sample(only, running_requests=32, waiting_requests=28, kv_usage_fraction=0.2)
    assert script.controller.statistics().endpoints[0].saturation["requests"] == pytest.approx(60 / 32)


def test_output_lengths_are_learnt_per_model_priority_and_tenant() -> None:
    script = Script(capacity(slots=1000, kv_tokens=100_000))
    for length in range(1, 33):
        request = script.arrive(flow="t", prompt_tokens=160, max_output_tokens=4096)
        script.finish(request, usage=Usage(prompt_tokens=160, output_tokens=16 * length))
    script.arrive(flow="t", prompt_tokens=160, max_output_tokens=4096)
    # The p90 of 16, 32, ... 512 is 29 x 16.
    assert script.controller.statistics().bands[0].inflight_kv_tokens == 160 + 16 * 29


def test_a_large_victim_serves_several_small_requests() -> None:
    config = capacity(slots=100, kv_tokens=10_000, eviction=EvictionConfig(enabled=True))
    script = Script(config)
    victim = script.arrive(-1, prompt_tokens=9_600, expected_output_tokens=400)
    urgent = [script.arrive(5, prompt_tokens=2_000, expected_output_tokens=400) for _ in range(4)]
    assert script.revoked() == [victim]
    assert script.dispatched() == [victim, *urgent]


def test_adaptive_holdback_keeps_what_interactive_traffic_lately_used() -> None:
    ceilings = AdaptiveHoldbackConfig(slot_quantile=0.9, memory_s=10, idle_after_s=20, max_slot_fraction=0.25)
    eviction = EvictionConfig(enabled=True)
    script = Script(capacity(slots=32, kv_tokens=10_000_000, ceilings=ceilings, eviction=eviction))
    for _ in range(60):
        script.arrive(-1, prompt_tokens=10)
    assert len(script.dispatched()) == 32
    for second in range(40):  # three interactive requests in flight, most of the time
        known = len(script.revoked())
        if second == 10:
            learnt = known
        trio = [script.arrive(5, prompt_tokens=10) for _ in range(3)]
        for victim in script.revoked()[known:]:
            script.finish(victim, EndReason.CLIENT_GONE)
        script.advance(0.95)
        for request in trio:
            script.finish(request)
        script.advance(0.05)
    # The first trios evict; from then on their places are kept.
    assert len(script.revoked()) == learnt
    assert script.controller.statistics().bands[-1].inflight_requests == 29
    script.advance(25.0)
    assert script.controller.statistics().bands[-1].inflight_requests == 32


def test_the_slot_reserve_is_bounded_in_whole_slots() -> None:
    """The first idle slot saves most evictions: by default one of 32 is kept, however many would be used."""
    ceilings = AdaptiveHoldbackConfig(slot_quantile=1.0)
    script = Script(capacity(slots=32, kv_tokens=10_000_000, ceilings=ceilings))
    script.arrive(-1, prompt_tokens=10)
    for request in [script.arrive(5, prompt_tokens=10) for _ in range(20)]:
        script.advance(0.1)
        script.finish(request)
    for _ in range(40):
        script.arrive(-1, prompt_tokens=10)
    assert script.controller.statistics().bands[-1].inflight_requests == 31
