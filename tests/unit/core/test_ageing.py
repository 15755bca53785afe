"""Strict priority starves; ageing bounds the starvation, and itself."""

from __future__ import annotations

import pytest

from extproc.core.ageing import AgeingConfig
from extproc.core.concurrency import ConcurrencyDetectorConfig
from extproc.core.config import FlowControlConfig
from extproc.core.holdback import PriorityHoldbackConfig
from extproc.core.outcomes import Outcome
from tests.support.core import Script


def overloaded(ageing: AgeingConfig | None, rounds: int) -> tuple[int, int]:
    """A high band that is never empty, and a low one; returns the dispatches of both."""
    config = FlowControlConfig(
        detector=ConcurrencyDetectorConfig(max_concurrency=4),
        ceilings=PriorityHoldbackConfig(min_ceiling=0.5),
        ageing=ageing,
        default_ttl_s=None,
    )
    script = Script(config)
    for _ in range(10):
        script.arrive(5)
    for _ in range(rounds):
        script.arrive(0)
    served = 0
    while served < rounds:
        script.advance(0.1)
        script.finish(script.dispatched()[served])
        script.arrive(5)
        served += 1
    by_priority = {
        band.priority: band.outcomes.get(Outcome.DISPATCHED, 0)
        for band in script.controller.statistics().bands
    }
    return by_priority[5], by_priority[0]


def test_field_bug_098_strict_priority_starves_by_default() -> None:
    _high, low = overloaded(None, 300)
    assert low == 0


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5])
def test_field_bug_098_ageing_gives_the_low_band_its_share(share: float) -> None:
    high, low = overloaded(AgeingConfig(after_s=1.0, share=share), 2000)
    assert low / high == pytest.approx(share, rel=0.1)


def test_a_head_that_has_not_waited_long_gets_nothing() -> None:
    _high, low = overloaded(AgeingConfig(after_s=1000.0, share=0.5), 300)
    assert low == 0


def test_too_many_priorities_are_served_in_the_next_lower_band() -> None:
    config = FlowControlConfig(detector=ConcurrencyDetectorConfig(max_concurrency=1000), max_bands=3)
    script = Script(config)
    for priority in (0, 10, 20, 15, -7):
        script.arrive(priority)
    counts = {b.priority: b.inflight_requests for b in script.controller.statistics().bands}
    assert counts == {20: 1, 10: 2, 0: 2}


def test_idle_priorities_make_room_for_others() -> None:
    script = Script(FlowControlConfig(max_bands=2))
    for priority in range(50):
        script.finish(script.arrive(priority))
    assert len(script.controller.statistics().bands) <= 3
