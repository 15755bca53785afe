"""What the arm `best` must reach beyond the seeds, each evaluated on pooled, paired runs; pure.

The yardsticks are simulated in the same run: floor-shared (nobody waits for a place, only for the shared
GPU) and floor-alone (no batch at all). A burst larger than the slots cannot be compared with floor-shared,
which has no slots: floor-alone is its yardstick.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from extproc.bench.outcome import RunOutcome
from extproc.bench.results import BEST, FLOOR_ALONE, FLOOR_SHARED, SuiteResults
from extproc.bench.statistics import Interval
from extproc.bench.suite import Load, Setting

OVER_FLOOR_SHARED = 1.05
OVER_FLOOR_ALONE = 1.10
BATCH_TIME = 1.03
EVICTIONS = 0.5
LEAST_EVICTIONS = 10.0
"""Below so many evictions in the reference a ratio says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRow:
    """One target in one cell. `low` and `high` bound the value (NaN: it has no interval)."""

    suite: str
    cell: str
    what: str
    target: str
    value: float
    low: float
    high: float
    holds: bool
    reason: str = ""


def evaluate_targets(results: SuiteResults) -> list[TargetRow]:
    """All rows of a suite; none when it has no arm `best`."""
    suite = results.suite
    if BEST not in {arm.name for arm in suite.arms}:
        return []
    rows: list[TargetRow] = []
    for setting in suite.settings:
        for load in suite.loads:
            if results.runs(load.name, BEST, setting):
                rows += _ttft_rows(results, load, setting)
                rows += _work_rows(results, load, setting)
    return rows


def _ttft_rows(results: SuiteResults, load: Load, setting: Setting) -> list[TargetRow]:
    yardstick = FLOOR_ALONE if load.exceeds_slots else FLOOR_SHARED
    limit = OVER_FLOOR_ALONE if load.exceeds_slots else OVER_FLOOR_SHARED
    rows: list[TargetRow] = []
    if not results.runs(load.name, yardstick, setting):
        return rows
    for name in results.suite.interactive or results.suite.measured:
        for fraction in (0.50, 0.95):
            ratio = results.ttft_ratio(load.name, BEST, yardstick, setting, fraction, name)
            label = f"{name} TTFT p{round(fraction * 100)} over {yardstick}"
            rows.append(_row(results, load, setting, label, f"<= {limit:g}", ratio, ratio.value <= limit))
    return rows


def _work_rows(results: SuiteResults, load: Load, setting: Setting) -> list[TargetRow]:
    reference = results.suite.reference
    rows = []

    def exact(value: float) -> Interval:
        return Interval(value, math.nan, math.nan)

    def mean(arm: str, figure: Callable[[RunOutcome], float]) -> float:
        return results.mean(load.name, arm, setting, figure)

    batch = results.ratio(load.name, BEST, reference, setting, lambda run: run.batch_time_s)
    if not math.isnan(batch):
        label = f"batch time over {reference}"
        rows.append(
            _row(results, load, setting, label, f"<= {BATCH_TIME:g}", exact(batch), batch <= BATCH_TIME)
        )
    redone = mean(BEST, lambda run: float(run.tokens_redone))
    rows.append(_row(results, load, setting, "tokens redone", "0", exact(redone), redone == 0))
    reference_evictions = mean(reference, lambda run: float(run.evictions))
    if load.is_steady and reference_evictions >= LEAST_EVICTIONS:
        ratio = mean(BEST, lambda run: float(run.evictions)) / reference_evictions
        label = f"evictions over {reference}"
        rows.append(
            _row(results, load, setting, label, f"<= {EVICTIONS:g}", exact(ratio), ratio <= EVICTIONS)
        )
    deadlines = mean(BEST, lambda run: run.deadlines_met_fraction)
    if not math.isnan(deadlines):
        rows.append(_row(results, load, setting, "deadlines met", "1", exact(deadlines), deadlines == 1))
    rejected = mean(
        BEST, lambda run: float(run.rejected(results.suite.interactive or results.suite.measured))
    )
    rows.append(_row(results, load, setting, "interactive 429 and 503", "0", exact(rejected), rejected == 0))
    preemptions = mean(BEST, lambda run: float(run.preemptions))
    rows.append(_row(results, load, setting, "KV preemptions", "0", exact(preemptions), preemptions == 0))
    return rows


def _row(
    results: SuiteResults,
    load: Load,
    setting: Setting,
    what: str,
    target: str,
    value: Interval,
    holds: bool,
) -> TargetRow:
    reason = "" if holds else results.suite.target_reasons.get(what, "")
    return TargetRow(
        suite=results.suite.name,
        cell=f"{load.name}, {setting.value}",
        what=what,
        target=target,
        value=value.value,
        low=value.low,
        high=value.high,
        holds=holds,
        reason=reason,
    )
