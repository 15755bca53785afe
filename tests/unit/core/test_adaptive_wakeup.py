"""The adaptive reserve: what it keeps free, and that it asks to be woken only for what can change."""

from __future__ import annotations

from extproc.core.adaptive import AdaptiveHoldback, AdaptiveHoldbackConfig
from extproc.core.capacity import CapacityDetectorConfig
from extproc.core.config import FlowControlConfig
from extproc.core.events import TimerFired
from extproc.core.footprint import NO_FOOTPRINT, Footprint
from tests.support.core import Script


def test_a_band_that_nobody_serves_never_makes_the_controller_ask_for_now() -> None:
    """Statistics ask for the ceiling of the idle band 0 too; no pass ever gets down to it again."""
    config = FlowControlConfig(
        detector=CapacityDetectorConfig(max_num_seqs=8, kv_tokens=1_000_000),
        ceilings=AdaptiveHoldbackConfig(),
        default_ttl_s=None,
    )
    script = Script(config)
    first = [script.arrive(priority=10, prompt_tokens=64) for _ in range(4)]
    for _ in range(12):
        script.arrive(priority=-1, prompt_tokens=64)
    script.controller.statistics()
    script.advance(60.0)
    for request_id in first[:2]:
        script.finish(request_id)
    script.controller.statistics()
    script.arrive(priority=10, prompt_tokens=64)
    for _ in range(4):
        wakeup = script.controller.next_wakeup()
        assert wakeup is None or wakeup > script.now
        if wakeup is None:
            return
        script.now = wakeup
        script.send(TimerFired())


def _reserved_after(pattern: list[tuple[float, int]], repeats: int) -> float:
    """Slots of 32 kept from the batch after a count of higher requests that runs through (seconds, count)."""
    policy = AdaptiveHoldback(
        AdaptiveHoldbackConfig(slot_quantile=0.9, max_slot_fraction=0.25, reserve_kv=False),
        lambda now: Footprint(32, 1_000_000, 1_000_000),
        lambda now: {},
        lambda priority: NO_FOOTPRINT,
    )
    now, inflight = 0.0, 0
    policy.ceiling(-1, now)
    one = Footprint(1, 100, 100)
    for seconds, count in pattern * repeats:
        while inflight < count:
            policy.booked(10, one, now)
            inflight += 1
        while inflight > count:
            policy.released(10, one, now)
            inflight -= 1
        now += seconds
    return 32 * (1 - policy.ceiling(-1, now).requests)


def test_bursts_that_last_a_fifth_of_the_time_cost_one_slot_at_most() -> None:
    assert _reserved_after([(2.0, 32), (8.0, 0)], 20) <= 1.0 + 1e-9


def test_steady_traffic_still_gets_its_reserve() -> None:
    assert 2.0 <= _reserved_after([(1.0, 1), (1.0, 2), (1.0, 3), (1.0, 4), (1.0, 2)], 40) <= 4.0
