"""The utilization detector: scores, staleness, and bursts between two samples."""

from __future__ import annotations

import pytest

from extproc.core.config import FlowControlConfig
from extproc.core.pacing import PrefillPacingConfig
from extproc.core.utilization import UtilizationDetectorConfig
from tests.support.core import Script, endpoint


def measured(endpoints: int = 1, **detector: object) -> Script:
    config = FlowControlConfig(
        detector=UtilizationDetectorConfig(**detector),  # type: ignore[arg-type]
        pacing=PrefillPacingConfig(enabled=False),
        default_ttl_s=None,
    )
    return Script(config, endpoints=endpoints)


@pytest.mark.parametrize(
    ("waiting", "kv", "saturation"), [(0, 0.0, 0.0), (2, 0.4, 0.5), (1, 0.72, 0.9), (10, 0.1, 2.0)]
)
def test_score_is_the_larger_ratio_and_not_clamped(waiting: int, kv: float, saturation: float) -> None:
    script = measured()
    script.sample(endpoint("e0"), waiting_requests=waiting, kv_usage_fraction=kv)
    assert script.controller.statistics().saturation == pytest.approx(saturation)


def test_the_pool_is_the_mean_and_missing_samples_are_full() -> None:
    script = measured(endpoints=2)
    script.sample(endpoint("e0"), waiting_requests=0, kv_usage_fraction=0.4)
    statistics = script.controller.statistics()
    assert statistics.saturation == pytest.approx((0.5 + 1.0) / 2)
    assert statistics.stale_endpoints == 1


def test_stale_samples_fail_closed() -> None:
    script = measured(staleness_s=0.2)
    script.sample(endpoint("e0"), waiting_requests=0, kv_usage_fraction=0.1)
    script.advance(0.2)
    first = script.arrive()
    script.advance(0.01)
    second = script.arrive()
    assert script.dispatched() == [first]
    script.sample(endpoint("e0"), waiting_requests=0, kv_usage_fraction=0.1)
    assert script.dispatched() == [first, second]


def test_when_blind_it_can_fall_back_to_accounting() -> None:
    script = measured(staleness_s=0.2, when_stale="accounting", accounting_max_concurrency=3)
    for _ in range(5):
        script.arrive()
    assert len(script.dispatched()) == 3


def test_the_fallback_opens_by_itself_when_a_full_reading_turns_stale() -> None:
    script = measured(staleness_s=1.0, when_stale="accounting", accounting_max_concurrency=3)
    script.sample(endpoint("e0"), waiting_requests=9, kv_usage_fraction=0.1)
    request = script.arrive()
    assert script.dispatched() == []
    script.advance(1.1)
    assert script.dispatched() == [request]


def test_field_bug_079_a_burst_between_two_samples_stops_at_the_threshold() -> None:
    script = measured(queue_depth_threshold=4, staleness_s=60, count_unsampled=True)
    script.sample(endpoint("e0"), running_requests=0, waiting_requests=0, kv_usage_fraction=0.0)
    script.advance(0.01)
    for _ in range(100):
        script.arrive()
    assert len(script.dispatched()) == 4


def test_field_bug_079_a_full_endpoint_is_not_averaged_away() -> None:
    script = measured(endpoints=2, queue_depth_threshold=4, staleness_s=60)
    script.sample(endpoint("e0"), waiting_requests=7, kv_usage_fraction=0.1)
    script.sample(endpoint("e1"), waiting_requests=0, kv_usage_fraction=0.1)
    picked = {script.where(script.arrive()) for _ in range(6)}
    assert picked == {"e1"}


def test_field_bug_080_late_gauges_do_not_hide_what_was_dispatched() -> None:
    """The engine's gauges read 0 for seconds after the start, in samples that are fresh."""
    script = measured(queue_depth_threshold=4, staleness_s=60, count_unsampled=True)
    for _ in range(10):
        script.sample(endpoint("e0"), running_requests=0, waiting_requests=0, kv_usage_fraction=0.0)
        script.advance(0.05)
        script.arrive()
        script.arrive()
    assert len(script.dispatched()) == 4
    script.sample(endpoint("e0"), running_requests=4, waiting_requests=0, kv_usage_fraction=0.1)
    assert len(script.dispatched()) == 8


def test_an_older_sample_never_replaces_a_newer_one() -> None:
    script = measured(staleness_s=60)
    script.sample(endpoint("e0"), waiting_requests=9, kv_usage_fraction=0.1)
    script.sample(endpoint("e0"), sampled_at=script.now - 5, waiting_requests=0, kv_usage_fraction=0.1)
    assert script.controller.statistics().saturation == pytest.approx(9 / 5)
