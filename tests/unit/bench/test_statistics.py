"""Percentiles against numpy and by hand; bootstrap intervals against what theory says."""

from __future__ import annotations

import math
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.bench.statistics import mean, paired_ratio_interval, percentile


def test_percentiles_by_hand() -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], 0.5) == 2.5
    assert percentile([1.0, 2.0, 3.0, 4.0, 5.0], 0.95) == pytest.approx(4.8)
    assert percentile([7.0], 0.99) == 7.0
    assert math.isnan(percentile([], 0.5))
    with pytest.raises(ValueError, match="fraction"):
        percentile([1.0], 95)


@given(
    st.lists(st.floats(min_value=-1e9, max_value=1e9), min_size=1, max_size=60),
    st.floats(min_value=0.0, max_value=1.0),
)
def test_percentiles_equal_numpy(values: list[float], fraction: float) -> None:
    assert percentile(values, fraction) == pytest.approx(
        float(np.quantile(values, fraction)), rel=1e-9, abs=1e-6
    )


def test_mean() -> None:
    assert mean([0.1] * 10) == pytest.approx(0.1)
    assert math.isnan(mean([]))


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    covered = 0
    for trial in range(60):
        rng = Random(trial)
        runs, reference = (
            [[rng.gauss(middle, 1.0) for _ in range(40)] for _ in range(12)] for middle in (20.0, 10.0)
        )
        interval = paired_ratio_interval(runs, reference, 0.5, rng, resamples=200)
        assert interval.low <= interval.value <= interval.high
        covered += interval.low <= 2.0 <= interval.high
    assert covered >= 50


def test_pairing_removes_what_both_arms_share() -> None:
    rng = Random(3)
    reference = [[base * rng.uniform(0.99, 1.01) for _ in range(30)] for base in range(1, 13)]
    runs = [[1.1 * value for value in run] for run in reference]
    interval = paired_ratio_interval(runs, reference, 0.5, rng)
    assert interval.value == pytest.approx(1.1)
    assert interval.high - interval.low < 1e-9
    with pytest.raises(ValueError, match="paired"):
        paired_ratio_interval(runs, reference[:3], 0.5, rng)


def test_what_never_came_is_later_than_anything_that_did() -> None:
    values = [1.0, 2.0, 3.0, math.inf]
    assert percentile(values, 0.5) == 2.5
    assert percentile(values, 0.95) == math.inf
    assert percentile([math.inf, math.inf], 0.5) == math.inf
