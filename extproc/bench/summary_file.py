"""summary.json of a suite: every cell's figures, the floors beside them, and the seed checks; plain data.

The shape is an interface: other tools read it. Figures that do not exist (no batch, no deadlines, no runs)
are null, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from extproc.bench.checks import CheckRow
from extproc.bench.outcome import RunOutcome
from extproc.bench.results import FLOOR_ALONE, FLOOR_SHARED, SuiteResults
from extproc.bench.statistics import Interval
from extproc.bench.suite import Cell


def summarize_suite(results: SuiteResults, checks: Sequence[CheckRow]) -> dict[str, object]:
    """The whole file."""
    suite = results.suite
    return {
        "suite": suite.name,
        "title": suite.title,
        "seed": suite.seed,
        "section": suite.section,
        "hardware": suite.hardware,
        "arms": {cell.label: _cell(results, cell) for cell in results.cells()},
        "seed_checks": [_check(row) for row in checks],
    }


def number(value: float, digits: int = 6) -> float | None:
    """A JSON number: null for NaN, and for what never ended."""
    return round(value, digits) if math.isfinite(value) else None


def _cell(results: SuiteResults, cell: Cell) -> dict[str, object]:
    runs = results.runs(cell.load, cell.arm, cell.setting)
    at = (cell.load, cell.arm, cell.setting)

    def mean(figure: object) -> float | None:
        return number(results.mean(*at, figure))  # type: ignore[arg-type]

    return {
        "arm": cell.arm,
        "load": cell.load,
        "setting": cell.setting.value,
        "runs": len(runs),
        "seeds": [run.seed for run in runs],
        "interactive": _ttft(results, cell, cell.arm),
        "floor_shared": _ttft(results, cell, FLOOR_SHARED),
        "floor_alone": _ttft(results, cell, FLOOR_ALONE),
        "over_floor_shared": _ratios(results, cell, FLOOR_SHARED),
        "over_floor_alone": _ratios(results, cell, FLOOR_ALONE),
        "classes": {name: _class(results, cell, name) for name in _classes(runs)},
        "batch_time_s": mean(lambda run: run.batch_time_s),
        "evictions": mean(lambda run: run.evictions),
        "tokens_redone": mean(lambda run: run.tokens_redone),
        "tokens_refilled": mean(lambda run: run.tokens_refilled),
        "deadlines_met": mean(lambda run: run.deadlines_met_fraction),
        "rejected": mean(lambda run: run.rejected(results.suite.measured)),
        "preemptions": mean(lambda run: run.preemptions),
        "completed_per_s": mean(lambda run: run.completed_per_s()),
        "invalid": sorted({run.invalid for run in runs if run.invalid}),
    }


def _ttft(results: SuiteResults, cell: Cell, arm: str) -> dict[str, float | None]:
    per_run = results.ttft_per_run(cell.load, arm, cell.setting, 0.95)
    return {
        "ttft_p50_s": number(results.ttft(cell.load, arm, cell.setting, 0.50)),
        "ttft_p95_s": number(results.ttft(cell.load, arm, cell.setting, 0.95)),
        "ttft_p95_min_s": number(min(per_run, default=math.nan)),
        "ttft_p95_max_s": number(max(per_run, default=math.nan)),
    }


def _class(results: SuiteResults, cell: Cell, name: str) -> dict[str, float | None]:
    at = (cell.load, cell.arm, cell.setting)
    return {
        "ttft_p50_s": number(results.ttft(*at, 0.50, name)),
        "ttft_p95_s": number(results.ttft(*at, 0.95, name)),
        "ttft_p99_s": number(results.ttft(*at, 0.99, name)),
    }


def _ratios(results: SuiteResults, cell: Cell, reference: str) -> dict[str, list[float | None]]:
    def row(interval: Interval) -> list[float | None]:
        return [number(interval.value, 4), number(interval.low, 4), number(interval.high, 4)]

    return {
        f"ttft_p{round(fraction * 100)}": row(
            results.ttft_ratio(cell.load, cell.arm, reference, cell.setting, fraction)
        )
        for fraction in (0.50, 0.95)
    }


def _classes(runs: Sequence[RunOutcome]) -> list[str]:
    names: dict[str, None] = {}
    for run in runs:
        names.update(dict.fromkeys(record.traffic_class for record in run.records))
    return list(names)


def _check(row: CheckRow) -> dict[str, object]:
    def plain(value: float | str) -> float | str | None:
        return value if isinstance(value, str) else number(value)

    return {
        "figure": row.figure,
        "kind": row.kind,
        "seed": plain(row.seed),
        "ours": plain(row.ours),
        "ratio": None if row.ratio is None else number(row.ratio, 4),
        "allowed": row.allowed,
        "holds": row.holds if row.was_run else None,
        "is_calibration": row.is_calibration,
        "reason": row.reason,
    }
