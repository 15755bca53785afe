"""Percentiles, and how far they can be trusted: a bootstrap over whole runs.

Requests of one run share its arrivals and its waves, so they are not independent: resampling single requests
would make intervals far too narrow. Runs are resampled instead, and for a ratio the same runs in both arms
(paired seeds), which removes the scatter that the seeds cause in both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random


def percentile(values: Sequence[float], fraction: float) -> float:
    """Linear interpolation between order statistics (numpy's default); NaN without values.

    `fraction` is 0 to 1. `values` need not be sorted.
    """
    return percentile_of_sorted(sorted(values), fraction)


def percentile_of_sorted(ordered: Sequence[float], fraction: float) -> float:
    """As `percentile`, for values in ascending order."""
    if not 0.0 <= fraction <= 1.0:
        raise ValueError(f"fraction must be in [0, 1], not {fraction}")
    if not ordered:
        return math.nan
    position = fraction * (len(ordered) - 1)
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    share = position - low
    if share == 0.0 or ordered[low] == ordered[high]:
        return ordered[low]
    if math.isinf(ordered[high]):
        return math.inf  # what never came is later than anything that did
    # Both forms are exact at their own end; the choice keeps the result monotone in `fraction`.
    if share < 0.5:
        return ordered[low] + (ordered[high] - ordered[low]) * share
    return ordered[high] - (ordered[high] - ordered[low]) * (1.0 - share)


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean; NaN without values."""
    return math.fsum(values) / len(values) if values else math.nan


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure with its bootstrap interval (`low` to `high` at the asked confidence)."""

    value: float
    low: float
    high: float


def paired_ratio_interval(
    runs: Sequence[Sequence[float]],
    reference: Sequence[Sequence[float]],
    fraction: float,
    rng: Random,
    *,
    resamples: int = 200,
    confidence: float = 0.95,
) -> Interval:
    """pooled percentile of `runs` over that of `reference`; `runs[i]` and `reference[i]` share a seed."""
    if len(runs) != len(reference):
        raise ValueError(f"not paired: {len(runs)} runs against {len(reference)}")
    draws: list[float] = []
    for _ in range(resamples):
        picks = [rng.randrange(len(runs)) for _ in runs]
        ours = percentile(_concatenate([runs[pick] for pick in picks]), fraction)
        theirs = percentile(_concatenate([reference[pick] for pick in picks]), fraction)
        draws.append(_ratio(ours, theirs))
    value = _ratio(percentile(_concatenate(runs), fraction), percentile(_concatenate(reference), fraction))
    return _interval(value, draws, confidence)


def _concatenate(runs: Sequence[Sequence[float]]) -> list[float]:
    return [value for run in runs for value in run]


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else math.nan


def _interval(value: float, draws: list[float], confidence: float) -> Interval:
    known = sorted(draw for draw in draws if not math.isnan(draw))
    tail = (1.0 - confidence) / 2.0
    return Interval(value, percentile_of_sorted(known, tail), percentile_of_sorted(known, 1.0 - tail))
