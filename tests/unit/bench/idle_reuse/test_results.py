"""Shares, areas and intervals of the idle-reuse experiment, by hand."""

from __future__ import annotations

import math

import pytest

from extproc.bench.idle_reuse.pattern import Pattern
from extproc.bench.idle_reuse.refusals import Refusal
from extproc.bench.idle_reuse.report import charts, figures
from extproc.bench.idle_reuse.results import ArmResult, Probe, wilson

BARE = ArmResult(
    name="bare",
    window_s=0.010,
    probes=[Probe(-0.009, 200, ""), Probe(-0.001, 503, "upstream_unavailable"), Probe(0.001, 200, "")],
)


def test_the_area_is_the_share_of_the_window() -> None:
    assert BARE.failures == 1
    assert BARE.lost_s == pytest.approx(0.020 / 3)
    assert math.isnan(ArmResult(name="none", window_s=1.0, probes=()).share)


def test_bins_without_probes_are_left_out() -> None:
    assert BARE.by_offset(4) == [
        (pytest.approx(-0.010), 0.0),
        (pytest.approx(-0.005), 1.0),
        (pytest.approx(0.0), 0.0),
    ]


def test_wilson_against_known_values() -> None:
    low, high = wilson(10, 100)  # the textbook's example: 5.5% to 17.4%
    assert (low, high) == (pytest.approx(0.0552, abs=1e-4), pytest.approx(0.1744, abs=1e-4))
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(0, 50)[0] == 0.0


def test_figures_name_what_the_seeds_cell_would_lose() -> None:
    pattern = Pattern(setting="steady", requests=720, reuses=30, per_idle_s=9.0)
    measured = figures(1.0, [BARE], [pattern], [Refusal("nobody", 503, "x", "y")])
    assert measured["patterns"][0]["expected_503"] == pytest.approx(9.0 * (0.020 / 3) * 2, abs=1e-5)
    assert measured["arms"]["bare"]["codes"] == ["503 upstream_unavailable"]
    assert all(chart.startswith("<svg") for chart in charts(measured))
