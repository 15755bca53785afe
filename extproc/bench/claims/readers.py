"""Short ways to read a figure of a cell, for the claims."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from extproc.bench.outcome import RunOutcome
from extproc.bench.results import SuiteResults
from extproc.bench.suite import Setting

WAVE, STEADY = Setting.WAVE, Setting.STEADY
Figure = Callable[[SuiteResults], float]
Names = str | tuple[str, ...]
"""A class, or several taken together."""
PerRun = Callable[[SuiteResults], Sequence[float]]


def p50(load: str, arm: str, name: str = "", setting: Setting = WAVE) -> Figure:
    """Pooled TTFT p50."""
    return lambda results: results.ttft(load, arm, setting, 0.50, name)


def p95(load: str, arm: str, name: str = "", setting: Setting = WAVE) -> Figure:
    """Pooled TTFT p95."""
    return lambda results: results.ttft(load, arm, setting, 0.95, name)


def p50_runs(load: str, arm: str, name: str = "", setting: Setting = WAVE) -> PerRun:
    return lambda results: results.ttft_per_run(load, arm, setting, 0.50, name)


def p95_runs(load: str, arm: str, name: Names = "", setting: Setting = WAVE) -> PerRun:
    return lambda results: results.ttft_per_run(load, arm, setting, 0.95, name)


def median_p95(load: str, arm: str, name: Names, setting: Setting = WAVE) -> Figure:
    """Seed 002 shows the median of its repeats' p95."""

    def figure(results: SuiteResults) -> float:
        values = sorted(results.ttft_per_run(load, arm, setting, 0.95, name))
        return values[len(values) // 2] if values else float("nan")

    return figure


def average(load: str, arm: str, figure: Callable[[RunOutcome], float], setting: Setting = WAVE) -> Figure:
    """Mean over the repeats."""
    return lambda results: results.mean(load, arm, setting, figure)


def runs(load: str, arm: str, figure: Callable[[RunOutcome], float], setting: Setting = WAVE) -> PerRun:
    """The figure of each repeat."""
    return lambda results: results.per_run(load, arm, setting, figure)


def below(lower: PerRun, higher: PerRun, *, factor: float = 1.0) -> Callable[[SuiteResults], list[bool]]:
    """Per repeat: `lower` x `factor` < `higher`. Arms with more repeats are cut to the common ones."""

    def check(results: SuiteResults) -> list[bool]:
        pairs = zip(lower(results), higher(results), strict=False)
        return [low * factor < high for low, high in pairs]

    return check


def above(values: PerRun, limit: float) -> Callable[[SuiteResults], list[bool]]:
    """Per repeat: is the figure above `limit`?"""
    return lambda results: [value > limit for value in values(results)]


def alike(first: PerRun, second: PerRun, *, within: float) -> Callable[[SuiteResults], list[bool]]:
    """Per repeat: the two differ by at most `within` of the larger one."""

    def check(results: SuiteResults) -> list[bool]:
        pairs = zip(first(results), second(results), strict=False)
        return [abs(a - b) <= within * max(abs(a), abs(b)) for a, b in pairs]

    return check


def both(*checks: Callable[[SuiteResults], list[bool]]) -> Callable[[SuiteResults], list[bool]]:
    """Per repeat: all of them."""

    def check(results: SuiteResults) -> list[bool]:
        return [all(row) for row in zip(*(each(results) for each in checks), strict=False)]

    return check


def evictions(run: RunOutcome) -> float:
    return float(run.evictions)


def batch_time(run: RunOutcome) -> float:
    return run.batch_time_s


def redone(run: RunOutcome) -> float:
    return float(run.tokens_redone)


def evictions_per_arrival(run: RunOutcome) -> float:
    """Evictions over interactive requests that arrived while the batch ran."""
    arrived = len(run.ttfts("interactive"))
    return run.evictions / arrived if arrived else float("nan")


def arrivals_per_eviction(run: RunOutcome) -> float:
    arrived = len(run.ttfts("interactive"))
    return arrived / run.evictions if run.evictions else float("inf")
