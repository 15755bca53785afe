"""The charts of a suite's report, drawn from its results."""

from __future__ import annotations

import math
from collections.abc import Callable

from extproc.bench.outcome import RunOutcome
from extproc.bench.results import SuiteResults
from extproc.bench.suite import Cell, Setting
from extproc.bench.svg import COLOURS, Marks, RangeRow, Series, range_plot, timeline

_MOST_TIMELINES = 4


def ttft_charts(results: SuiteResults) -> list[str]:
    """TTFT p95 of each measured class by arm: median of the repeats with their minimum and maximum."""
    charts = []
    for setting in results.suite.settings:
        for load in results.suite.loads:
            rows = []
            for arm in results.suite.arms:
                for number, name in enumerate(results.suite.measured):
                    values = results.ttft_per_run(load.name, arm.name, setting, 0.95, name)
                    if values:
                        rows.append(
                            _row(_label(results, arm.name, name), values, 1000.0, COLOURS[number % 8])
                        )
            title = f"TTFT p95 at {load.name}, {setting.value}"
            charts.append(range_plot(title, rows, unit="ms"))
    return [chart for chart in charts if chart]


def batch_charts(results: SuiteResults) -> list[str]:
    """Batch completion time by arm."""
    return _by_arm(results, "batch time", lambda run: run.batch_time_s, "s")


def eviction_charts(results: SuiteResults) -> list[str]:
    """Evictions by arm, where there are any."""
    if not any(run.evictions for cell in results.cells() for run in _runs(results, cell)):
        return []
    return _by_arm(results, "evictions", lambda run: float(run.evictions), "")


def timeline_charts(results: SuiteResults) -> list[str]:
    """Saturation against the lowest band's ceiling, with evictions marked: one run of the more telling
    arms.
    """
    charts = []
    for cell in results.cells():
        runs = _runs(results, cell)
        if cell.setting is not results.suite.settings[0] or cell.load != results.suite.loads[-1].name:
            continue
        if not runs[0].timeline or not any(point.ceilings for point in runs[0].timeline):
            continue
        charts.append(timeline_chart(runs[0], title=f"{cell.label}, seed {runs[0].seed}"))
        if len(charts) == _MOST_TIMELINES:
            break
    return charts


def timeline_chart(run: RunOutcome, *, title: str) -> str:
    """One run's saturation, ceilings and evictions over time."""
    points = run.timeline
    series = [Series("saturation", [(point.at_s, point.saturation) for point in points], COLOURS[0])]
    lowest = min((min(point.ceilings) for point in points if point.ceilings), default=None)
    if lowest is not None:
        ceiling = [(point.at_s, point.ceilings[lowest]) for point in points if lowest in point.ceilings]
        series.append(Series(f"ceiling of band {lowest}", ceiling, COLOURS[5], is_dashed=True))
    marks, before = [], 0
    for point in points:
        if point.evictions > before:
            marks.append((point.at_s, float(point.evictions - before)))
        before = point.evictions
    return timeline(title, series, Marks("evictions", marks), y_label="saturation")


def _by_arm(results: SuiteResults, title: str, figure: Callable[[RunOutcome], float], unit: str) -> list[str]:
    charts = []
    for setting in results.suite.settings:
        for load in results.suite.loads:
            rows = []
            for arm in results.suite.arms:
                values = results.per_run(load.name, arm.name, setting, figure)
                if any(math.isfinite(value) for value in values):
                    rows.append(_row(arm.name, values, 1.0, COLOURS[2]))
            charts.append(range_plot(_title(title, load.name, setting), rows, unit=unit, is_log=False))
    return [chart for chart in charts if chart]


def _title(title: str, load: str, setting: Setting) -> str:
    return f"{title} at {load}, {setting.value}"


def _row(label: str, values: list[float], scale: float, colour: str) -> RangeRow:
    """The middle of three repeats is their median; seed 000 shows means, which three repeats hardly move."""
    ordered = sorted(values)
    middle = ordered[len(ordered) // 2]
    return RangeRow(label, ordered[0] * scale, middle * scale, ordered[-1] * scale, colour)


def _label(results: SuiteResults, arm: str, name: str) -> str:
    return arm if len(results.suite.measured) == 1 else f"{arm}: {name}"


def _runs(results: SuiteResults, cell: Cell) -> list[RunOutcome]:
    return results.runs(cell.load, cell.arm, cell.setting)
