"""Reports about gates that looked at old or late figures of the engines."""

from __future__ import annotations

from extproc.core.capacity import CapacityDetectorConfig
from extproc.core.config import FlowControlConfig
from extproc.core.utilization import UtilizationDetectorConfig
from tests.support.core import Script, endpoint


def test_field_bug_079_a_burst_between_two_scrapes_does_not_hide_behind_the_old_reading() -> None:
    detector = UtilizationDetectorConfig(queue_depth_threshold=4, staleness_s=60, count_unsampled=True)
    script = Script(FlowControlConfig(detector=detector), endpoints=1)
    script.sample(endpoint("e0"), waiting_requests=0, running_requests=0, kv_usage_fraction=0.0)
    script.advance(0.01)
    for _ in range(100):
        script.arrive()
    assert len(script.dispatched()) == 4
    script.advance(1.0)
    script.sample(endpoint("e0"), waiting_requests=0, running_requests=4, kv_usage_fraction=0.1)
    assert len(script.dispatched()) == 8


def test_field_bug_079_one_full_endpoint_is_not_averaged_away_by_idle_ones() -> None:
    detector = UtilizationDetectorConfig(queue_depth_threshold=4, staleness_s=60)
    script = Script(FlowControlConfig(detector=detector), endpoints=3)
    for name, waiting in (("e0", 40), ("e1", 0), ("e2", 0)):
        script.sample(endpoint(name), waiting_requests=waiting, running_requests=1, kv_usage_fraction=0.1)
    for _ in range(12):
        script.arrive()
    loads = {row.endpoint_id: row.inflight_requests for row in script.controller.statistics().endpoints}
    assert loads[endpoint("e0").id] == 0


def test_field_bug_080_engine_gauges_that_stay_at_zero_do_not_open_the_gate() -> None:
    detector = CapacityDetectorConfig(max_num_seqs=8, kv_tokens=100_000)
    script = Script(FlowControlConfig(detector=detector), endpoints=1)
    for _ in range(40):
        script.sample(endpoint("e0"), waiting_requests=0, running_requests=0, kv_usage_fraction=0.0)
        script.arrive()
        script.advance(0.1)
    assert len(script.dispatched()) == 8
