"""The core's cost: counts and ratios only, since absolute times belong to the machine."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from extproc.bench.core_cost import Load, Shape, measure, measure_memory, shapes
from extproc.cli.bench import bench
from extproc.clock import CpuClock


@pytest.mark.parametrize("detector", ["requests", "tokens", "hybrid", "utilization", "capacity"])
def test_a_cycle_replaces_one_running_and_one_queued_request(detector: str) -> None:
    load = Load(Shape(detector=detector, endpoints=3, flows=2, bands=2))
    for _ in range(20):
        load.submit()
    before = load.controller.statistics()
    load.prepare(50)
    for _ in range(50):
        load.cycle()
    after = load.controller.statistics()
    assert after.queued_requests == before.queued_requests
    assert after.inflight_requests == before.inflight_requests == len(load.running)
    assert after.ignored_events == 0


def test_memory_per_queued_request_is_bounded() -> None:
    assert measure_memory(Shape(queued=2000, flows=50)) < 2048


def test_a_cycle_does_not_grow_with_the_queue() -> None:
    """Measured side by side; the real factor is near 1.1 from 100 to 10,000."""
    clock = CpuClock()
    small, large = (
        measure(Shape(queued=queued, flows=100, bands=8, endpoints=4), clock, repeats=20)
        for queued in (100, 10_000)
    )
    assert large.cycle_us < 3 * small.cycle_us


def test_rows_vary_one_dimension_at_a_time_and_are_distinct() -> None:
    rows = shapes(quick=False)
    assert len(rows) == len(set(rows))
    assert {row.queued for row in rows} >= {100, 100_000}
    assert {row.endpoints for row in rows} >= {1, 256, 1024}


@pytest.mark.slow
def test_the_command_reports_all_figures() -> None:
    result = CliRunner().invoke(bench, ["core", "--quick", "--json"])
    assert result.exit_code in (0, 1)
    figures = json.loads(result.stdout)
    assert {"growth_100_to_100000", "cycle_us", "heap_pair_us", "bytes_per_queued_request", "rows"} <= set(
        figures
    )
