"""Ceilings by formula, with literal numbers."""

from __future__ import annotations

import pytest

from extproc.core.adaptive import CountHistory
from extproc.core.band import BandConfig
from extproc.core.ceiling import level
from extproc.core.ceilings import CeilingConfig
from extproc.core.concurrency import ConcurrencyDetectorConfig
from extproc.core.config import FlowControlConfig
from extproc.core.demand import DemandTracker
from extproc.core.holdback import (
    ExplicitCeilingsConfig,
    PriorityHoldback,
    PriorityHoldbackConfig,
    RankedBands,
    SoftReflective,
    SoftReflectiveConfig,
)
from tests.support.core import Script


def ceilings(
    config: CeilingConfig, priorities: list[int], *, declared: tuple[int, ...] = ()
) -> dict[int, float]:
    """What each band's ceiling is after one request of each priority."""
    script = Script(
        FlowControlConfig(
            detector=ConcurrencyDetectorConfig(max_concurrency=1000),
            ceilings=config,
            bands=tuple(BandConfig(priority=priority) for priority in declared),
        )
    )
    for priority in priorities:
        script.arrive(priority)
    return {band.priority: round(band.ceiling, 6) for band in script.controller.statistics().bands}


def test_ranks_are_evenly_spread() -> None:
    config = PriorityHoldbackConfig(min_ceiling=0.6)
    assert ceilings(config, [50, 10, 0]) == {50: 1.0, 10: 0.8, 0: 0.6}


def test_values_are_spread_by_priority() -> None:
    config = PriorityHoldbackConfig(min_ceiling=0.5, max_ceiling=0.9, domain="value")
    assert ceilings(config, [100, 25, 0]) == {100: 0.9, 25: 0.6, 0: 0.5}


def test_one_band_alone_has_the_maximum() -> None:
    assert ceilings(PriorityHoldbackConfig(min_ceiling=0.5, max_ceiling=0.95), [0]) == {0: 0.95}


def test_an_unused_declared_band_shifts_nobody_unless_asked_to() -> None:
    by_demand = PriorityHoldbackConfig(min_ceiling=0.6)
    declared = PriorityHoldbackConfig(min_ceiling=0.6, rank_over="declared")
    assert ceilings(by_demand, [10, -1], declared=(10, 5, -1))[-1] == 0.6
    assert ceilings(by_demand, [10, -1], declared=(20, 10, -1))[10] == 1.0
    assert ceilings(declared, [10, -1], declared=(20, 10, -1))[10] == 0.8


def test_a_band_counts_for_its_window_after_its_last_request() -> None:
    config = FlowControlConfig(
        detector=ConcurrencyDetectorConfig(max_concurrency=10),
        ceilings=PriorityHoldbackConfig(min_ceiling=0.5, demand_window_s=30),
    )
    script = Script(config)
    script.finish(script.arrive(10))
    for _ in range(12):
        script.arrive(-1)
    assert len(script.dispatched()) == 1 + 5
    script.advance(30.0)
    assert len(script.dispatched()) == 1 + 10


def test_looking_at_ceilings_forgets_no_band() -> None:
    """A longer window may follow by reconfiguration: then a scrape must not have made the difference."""
    demand = DemandTracker()
    demand.enter(5)
    demand.leave(5, 0.0)
    demand.enter(-1)
    short, long = (RankedBands((), demand, window_s) for window_s in (2.0, 300.0))
    watched = PriorityHoldback(PriorityHoldbackConfig(min_ceiling=0.5), short)
    soft = SoftReflective(SoftReflectiveConfig(), short, lambda _: 0.9)
    assert watched.shown(-1, 4.0) == soft.shown(-1, 4.0) == level(1.0)
    assert PriorityHoldback(PriorityHoldbackConfig(min_ceiling=0.5), long).ceiling(-1, 4.0) == level(0.5)
    assert watched.ceiling(-1, 4.0) == level(1.0)


def test_explicit_ceilings_take_the_nearest_lower_entry() -> None:
    config = ExplicitCeilingsConfig(ceilings={100: 1.0, 0: 0.9, -1: 0.5})
    assert ceilings(config, [200, 100, 50, 0, -1, -9]) == {
        200: 1.0,
        100: 1.0,
        50: 0.9,
        0: 0.9,
        -1: 0.5,
        -9: 0.5,
    }


def test_field_bug_097_ceilings_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match=r"priority 0 \(0\.9\) must not be above priority 10 \(0\.5\)"):
        ExplicitCeilingsConfig(ceilings={10: 0.5, 0: 0.9})


def test_field_bug_097_a_detector_exactly_at_the_ceiling_is_closed() -> None:
    config = FlowControlConfig(
        detector=ConcurrencyDetectorConfig(max_concurrency=10),
        ceilings=ExplicitCeilingsConfig(ceilings={0: 0.6}),
    )
    script = Script(config)
    for _ in range(10):
        script.arrive()
    assert len(script.dispatched()) == 6


def test_soft_reflective_opens_a_falling_part_of_the_time() -> None:
    """Two bands: open while s < 1/2; at s = 3/4 a part 1 - (3/4 - 1/4) / (3/4) = 1/3 of each second."""
    demand = DemandTracker()
    demand.enter(10)
    demand.enter(-1)
    bands = RankedBands((), demand, 300.0)
    shares = {}
    for saturation in (0.4, 0.5, 0.75, 0.9, 1.0):
        policy = SoftReflective(SoftReflectiveConfig(), bands, lambda _now, s=saturation: s)
        times = [1000 + step / 500 for step in range(1000)]
        shares[saturation] = sum(policy.ceiling(-1, now).lowest for now in times) / 1000
        assert all(policy.ceiling(10, now).lowest == 1.0 for now in times)
    assert shares == pytest.approx({0.4: 1.0, 0.5: 1.0, 0.75: 1 / 3, 0.9: 1 / 9, 1.0: 0.0}, abs=0.01)


def test_soft_reflective_wakes_when_a_period_begins() -> None:
    policy = SoftReflective(
        SoftReflectiveConfig(period_s=0.3), RankedBands((), DemandTracker(), 1), lambda _: 0.9
    )
    now = 1000.25
    for _ in range(1000):
        due = policy.next_change(now)
        assert due is not None
        assert now < due <= now + 0.3 + 1e-9
        now = due


def test_the_quantile_of_a_count_is_over_time_not_over_changes() -> None:
    history = CountHistory(memory_s=30.0, now=0.0)
    now = 0.0
    for _ in range(60):  # nine seconds at 2, then one second of rapid changes up to 32
        history.set(2, now)
        now += 9.0
        for step in range(30):
            history.set(32 if step % 2 else 31, now)
            now += 1.0 / 30
    assert history.quantile(0.85, now) == 2
    assert history.quantile(0.99, now) >= 31
    assert history.mean(now) == pytest.approx(2 * 0.9 + 31.5 * 0.1, rel=0.3)


def test_a_count_history_survives_long_silence() -> None:
    history = CountHistory(memory_s=1.0, now=0.0)
    history.set(5, 1.0)
    for hour in range(1, 50):
        assert history.quantile(0.9, hour * 3600.0) == 5
