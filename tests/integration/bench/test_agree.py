"""Real sockets against virtual time, on a toy that lasts seconds: Envoy, extproc and the emulator."""

from __future__ import annotations

import dataclasses

import pytest

from extproc.bench.agreement import compare_ways
from extproc.bench.suite import Cell, Setting
from tests.integration.bench.test_live_suites import SUITE

CELL = Cell(suite="toy", load="few", arm="eviction", setting=Setting.WAVE)


@pytest.mark.slow
def test_a_toy_suite_agrees_both_ways() -> None:
    steps: list[str] = []
    suite = dataclasses.replace(SUITE, latencies=dataclasses.replace(SUITE.latencies, front_end_s=0.05))
    result = compare_ways(suite, CELL, 0, speed=0.5, within=0.2, on_step=steps.append)
    assert result.invalid == ""
    assert len(steps) == 3
    figures = {row.figure: row for row in result.rows}
    ttft = figures["interactive TTFT p50, ms"]
    assert ttft.local > 50, "the emulator plays the API server's delay"
    assert ttft.agrees
    assert figures["evictions"].agrees
    assert figures["evictions"].local > 0
    assert result.path_s < 0.05
