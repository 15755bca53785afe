"""What the claims of seed 002 share: its percentiles in milliseconds, its rates, and its bands.

The report fixes neither model nor request sizes nor rates, so most absolute figures have a stated band of a
factor of three; the orderings must hold in every repeat.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from extproc.bench.checks import Check, absolute
from extproc.bench.claims.readers import STEADY, Names, PerRun, below, both, median_p95, p95_runs
from extproc.bench.outcome import RunOutcome
from extproc.bench.results import SuiteResults
from extproc.bench.statistics import percentile

LOAD = "surge"
UNKNOWN_LOAD = "the seed names neither the request sizes nor how far its surge exceeds the engine"


def surge_p95(
    figure: str, seed_ms: float, load: str, arm: str, name: str, *, is_calibration: bool = False
) -> Check:
    """A p95 in milliseconds, within a factor of three."""
    read = median_p95(load, arm, name, STEADY)
    return absolute(
        f"{figure}, ms",
        seed_ms,
        lambda results: read(results) * 1000.0,
        band=(seed_ms / 3, seed_ms * 3),
        is_calibration=is_calibration,
        miss_reason=UNKNOWN_LOAD,
    )


def p95_ms(load: str, arm: str, name: str) -> Callable[[SuiteResults], float]:
    return lambda results: median_p95(load, arm, name, STEADY)(results) * 1000.0


def p95s(load: str, arm: str, name: Names) -> PerRun:
    return p95_runs(load, arm, name, STEADY)


def rising(load: str, arm: str, names: Sequence[str]) -> Callable[[SuiteResults], list[bool]]:
    """Per repeat: p95 rises along the classes."""
    return both(
        *(
            below(p95s(load, arm, first), p95s(load, arm, second))
            for first, second in itertools.pairwise(names)
        )
    )


def rate(run: RunOutcome) -> float:
    return run.completed_per_s()


def p99_ms(load: str, arm: str, name: str) -> Callable[[SuiteResults], float]:
    return lambda results: results.ttft(load, arm, STEADY, 0.99, name) * 1000.0


def mean_rate(results: SuiteResults, load: str, arm: str) -> float:
    return results.mean(load, arm, STEADY, rate)


def realtime_p95_between(start_s: float, end_s: float) -> Callable[[RunOutcome], float]:
    return lambda run: percentile(run.ttfts("realtime", window_s=(start_s, end_s)), 0.95) * 1000.0
