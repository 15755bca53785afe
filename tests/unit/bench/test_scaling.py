"""A part of a suite: the same rates and sizes for less time."""

from __future__ import annotations

import pytest

from extproc.bench.scaling import scaled
from extproc.bench.suite import Setting
from extproc.bench.suites.catalogue import SUITES
from extproc.workload.traffic import plan_open


def count(name: str, load: str, factor: float) -> dict[str, int]:
    classes = scaled(SUITES[name], factor).load(load).traffic(Setting.WAVE)
    counts: dict[str, int] = {}
    for row in plan_open(classes, 0):
        counts[row.traffic_class] = counts.get(row.traffic_class, 0) + 1
    return counts


def test_batch_and_bursts_shrink_and_keep_their_size() -> None:
    whole, part = (count("holdback-requests", "bursts of 32", factor) for factor in (1.0, 0.1))
    assert whole["batch"] == 192
    assert part["batch"] == pytest.approx(19, abs=1)
    assert part["interactive"] % 32 == 0
    assert 32 <= part["interactive"] < whole["interactive"]


def test_rates_stay() -> None:
    whole, part = (count("holdback-requests", "4/s", factor) for factor in (1.0, 0.25))
    assert part["interactive"] == pytest.approx(whole["interactive"] / 4, rel=0.3)


@pytest.mark.parametrize("name", list(SUITES))
def test_every_suite_can_be_scaled(name: str) -> None:
    for load in SUITES[name].loads:
        whole, part = count(name, load.name, 1.0), count(name, load.name, 0.2)
        assert set(part) <= set(whole)
        assert sum(part.values()) < sum(whole.values()) or not whole


def test_a_closed_loop_ends_earlier() -> None:
    suite = SUITES["engine-capacity"]
    (load, *_) = suite.loads
    ends = [
        each.load(load.name).traffic(Setting.STEADY)[0].arrivals.end_s  # type: ignore[union-attr]
        for each in (suite, scaled(suite, 0.2))
    ]
    assert ends[1] == pytest.approx(0.2 * ends[0])


def test_the_whole_is_the_suite_itself() -> None:
    assert scaled(SUITES["no-resume"], 1.0) is SUITES["no-resume"]
