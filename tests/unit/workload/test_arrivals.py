"""Arrival processes: ascending, deterministic, at the rates they promise."""

from __future__ import annotations

import itertools
from random import Random

import pytest

from extproc.workload.arrivals import (
    AtTimes,
    Bursts,
    GammaBurst,
    NoisySinusoid,
    OpenArrivals,
    Poisson,
    Steps,
    Uniform,
)
from extproc.workload.rng import random_stream

PROCESSES: list[OpenArrivals] = [
    Poisson(rate_per_s=5.0, start_s=10.0, end_s=400.0),
    Uniform(rate_per_s=5.0, start_s=10.0, end_s=400.0),
    GammaBurst(rate_per_s=5.0, cv=3.0, start_s=10.0, end_s=400.0),
    Steps(at_s=(10.0, 200.0), rates_per_s=(5.0, 5.0), end_s=400.0),
    NoisySinusoid(base_per_s=5.0, start_s=10.0, end_s=400.0),
]


@pytest.mark.parametrize("process", PROCESSES, ids=lambda process: process.type)
def test_times_ascend_within_the_window_at_the_promised_rate(process: OpenArrivals) -> None:
    counts = []
    for seed in range(8):
        times = list(process.times(Random(seed)))
        assert times == sorted(times)
        assert times == list(process.times(Random(seed)))
        assert all(10.0 <= at < 400.0 for at in times)
        counts.append(len(times))
    assert 0.9 < sum(counts) / 8 / (5.0 * 390.0) < 1.1


def test_bursts_come_at_one_instant() -> None:
    process = Bursts(size=3, every_s=10.0, count=2, start_s=1.0)
    assert list(process.times(Random(0))) == [1.0, 1.0, 1.0, 11.0, 11.0, 11.0]


def test_gamma_gaps_have_the_promised_variation() -> None:
    times = list(GammaBurst(rate_per_s=10.0, cv=2.0, end_s=3000.0).times(Random(1)))
    gaps = [after - before for before, after in itertools.pairwise(times)]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert variance**0.5 / mean == pytest.approx(2.0, rel=0.1)


def test_surge_multiplies_the_rate_inside_its_window_only() -> None:
    process = NoisySinusoid(
        base_per_s=20.0, amplitude=0.0, noise=0.0, surge_factor=3.0, surges_s=((60.0, 210.0),), end_s=300.0
    )
    times = list(process.times(Random(3)))
    inside = sum(60.0 <= at < 210.0 for at in times) / 150.0
    outside = sum(not 60.0 <= at < 210.0 for at in times) / 150.0
    assert inside / outside == pytest.approx(3.0, rel=0.1)


def test_refused_parameters() -> None:
    with pytest.raises(ValueError, match="equally long"):
        Steps(at_s=(0.0,), rates_per_s=(), end_s=1.0)
    with pytest.raises(ValueError, match="ascend"):
        Steps(at_s=(2.0, 1.0), rates_per_s=(1.0, 1.0), end_s=3.0)
    with pytest.raises(ValueError, match="amplitude"):
        NoisySinusoid(base_per_s=1.0, amplitude=1.5, end_s=1.0)


def test_zero_rate_never_arrives_and_a_trace_is_replayed() -> None:
    assert list(Poisson(rate_per_s=0.0, end_s=10.0).times(Random(0))) == []
    assert list(AtTimes(at_s=(1.0, 2.5)).times(Random(0))) == [1.0, 2.5]


def test_named_streams_do_not_shift_each_other() -> None:
    first = random_stream(7, "a")
    alone = [first.random() for _ in range(3)]
    again, other = random_stream(7, "a"), random_stream(7, "b")
    mixed = []
    for _ in range(3):
        other.random()
        mixed.append(again.random())
    assert mixed == alone
    assert random_stream(8, "a").random() != alone[0]
