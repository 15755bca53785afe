"""What a seed report claims, as code: one check per figure or ordering, evaluated over a suite's results.

An ordering holds when it holds in every repeat. An absolute figure holds within 25% where the seed fixes
the workload, else within the band that the check states. `is_calibration` marks figures that the hardware
coefficients were fitted on: agreement there is a fit, not a prediction. `miss_reason` is printed only when
the check fails. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from extproc.bench.results import SuiteResults

WITHIN = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRow:
    """One line of the table "seed figure / ours / ratio / holds?"; `ratio` is ours over the seed's.

    `was_run` is False when a cell that it needs has no run: then it neither holds nor misses.
    """

    figure: str
    kind: str
    seed: float | str
    ours: float | str
    ratio: float | None
    holds: bool
    is_calibration: bool = False
    allowed: str = ""
    reason: str = ""
    was_run: bool = True


Check = Callable[[SuiteResults], CheckRow]


def absolute(
    figure: str,
    seed: float,
    ours: Callable[[SuiteResults], float],
    *,
    within: float = WITHIN,
    band: tuple[float, float] | None = None,
    is_calibration: bool = False,
    miss_reason: str = "",
) -> Check:
    """A number. `band` (low, high) replaces the relative tolerance where the seed leaves the workload open.

    A seed figure of 0 needs a band.
    """

    def check(results: SuiteResults) -> CheckRow:
        value = ours(results)
        low, high = band if band is not None else (seed * (1 - within), seed * (1 + within))
        holds = not math.isnan(value) and low <= value <= high
        return CheckRow(
            figure=figure,
            kind="absolute",
            seed=seed,
            ours=value,
            ratio=value / seed if seed else None,
            holds=holds,
            is_calibration=is_calibration,
            allowed=f"{_short(low)} to {_short(high)}",
            reason="" if holds else _reason(miss_reason, was_run=not math.isnan(value)),
            was_run=not math.isnan(value),
        )

    return check


def ordering(
    figure: str,
    seed: str,
    repeats: Callable[[SuiteResults], Sequence[bool]],
    *,
    is_calibration: bool = False,
    miss_reason: str = "",
) -> Check:
    """A relation that the seed states; it must hold in every repeat, of which there must be one at least.

    `is_calibration`: something that the seed leaves open was chosen so that the relation can come about.
    """

    def check(results: SuiteResults) -> CheckRow:
        outcomes = list(repeats(results))
        holds = bool(outcomes) and all(outcomes)
        return CheckRow(
            figure=figure,
            kind="ordering",
            seed=seed,
            ours=f"{sum(outcomes)} of {len(outcomes)} repeats",
            ratio=None,
            holds=holds,
            is_calibration=is_calibration,
            allowed="every repeat",
            reason="" if holds else _reason(miss_reason, was_run=bool(outcomes)),
            was_run=bool(outcomes),
        )

    return check


def pairwise(lower: Sequence[float], higher: Sequence[float], *, factor: float = 1.0) -> list[bool]:
    """Per repeat: is `lower` x `factor` below `higher`?"""
    return [low * factor < high for low, high in zip(lower, higher, strict=True)]


def close(first: Sequence[float], second: Sequence[float], *, within: float) -> list[bool]:
    """Per repeat: do both differ by at most `within` of the larger one?"""
    return [abs(a - b) <= within * max(abs(a), abs(b), 1e-12) for a, b in zip(first, second, strict=True)]


def _reason(miss_reason: str, *, was_run: bool) -> str:
    return (miss_reason or "not explained yet") if was_run else "the cell was not run"


def _short(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
