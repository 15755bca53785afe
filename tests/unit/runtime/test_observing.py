"""The metrics of mode observe: what was let through, and what enforcing would have done with it."""

from __future__ import annotations

from dataclasses import replace

from extproc.core.events import TimerFired
from tests.unit.runtime.test_metrics_move import CONFIG, Bench, key


def would(bench: Bench, action: str, priority: str = "10") -> float:
    return bench.series()[key("extproc_observe_only_total", priority=priority, action=action)]


def test_observing_counts_what_enforcing_would_have_done() -> None:
    bench = Bench(replace(CONFIG, mode="observe"))
    assert [would(bench, action) for action in ("would-pass", "would-hold", "would-evict")] == [0, 0, 0]
    running = bench.fill(-1)
    assert would(bench, "would-pass", "-1") == 2
    bench.arrive()
    assert (would(bench, "would-pass"), would(bench, "would-evict", "-1")) == (1, 1)
    bench.arrive(-1)
    bench.advance(2.0)
    for request in running:
        bench.finish(request)
    assert would(bench, "would-hold", "-1") == 1
    assert bench.series()[key("extproc_observe_only_wait_seconds_total", priority="-1")] == 2.0
    assert bench.series()[key("extproc_queue_requests", priority="10")] == 0
    dispatched = key("extproc_requests_total", priority="-1", outcome="dispatched")
    assert bench.series()[dispatched] == 3
    assert bench.series()[key("extproc_revocations_issued_total", priority="-1")] == 0


def test_refusals_that_are_not_enforced_are_counted_and_stay_when_the_mode_changes() -> None:
    config = replace(CONFIG, mode="observe", max_requests=1, default_ttl_s=5.0)
    bench = Bench(config)
    bench.fill()
    bench.arrive(-1)
    bench.arrive()
    bench.arrive()
    assert (would(bench, "would-displace", "-1"), would(bench, "would-reject")) == (1, 1)
    bench.advance(5.0)
    bench.driver.post(TimerFired())
    assert (would(bench, "would-hold"), would(bench, "would-expire")) == (1, 1)
    bench.driver.reconfigure(replace(config, mode="enforce"))
    bench.arrive()
    assert (would(bench, "would-hold"), would(bench, "would-reject")) == (1, 1)
    bench.driver.reconfigure(config)
    assert bench.series()[key("extproc_queue_requests", priority="10")] == 0
    bench.arrive()
    assert would(bench, "would-hold") + would(bench, "would-reject") == 3


def test_without_observing_there_are_no_counts_of_it() -> None:
    assert not [place for place in Bench().series() if "observe_only" in str(place)]
