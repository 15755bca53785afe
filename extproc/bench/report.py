"""One self-contained HTML file from finished runs: tables, plots, no script and nothing from a network."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from string import Template

from extproc.bench.charts import batch_charts, eviction_charts, timeline_charts, ttft_charts
from extproc.bench.checks import CheckRow
from extproc.bench.results import FLOOR_SHARED, SuiteResults
from extproc.bench.suite import Cell
from extproc.bench.targets import TargetRow

_INTRO = (
    "Each dot is the median of the repeats of a cell, its line their minimum and maximum. TTFT counts from "
    "the intended send time, over requests that arrive while the batch work runs. Percentiles in tables are "
    "pooled over repeats; ratios come from paired seeds with a bootstrap interval over runs."
)


def render_report(
    suites: Sequence[SuiteResults],
    checks: Mapping[str, Sequence[CheckRow]],
    targets: Sequence[TargetRow],
    *,
    title: str,
) -> str:
    """The whole page."""
    parts = [_overview(suites, checks, targets)]
    parts += [_targets(targets)] if targets else []
    parts += [_suite(results, checks.get(results.suite.name, ())) for results in suites]
    template = Template(resources.files("extproc.bench").joinpath("report.html").read_text(encoding="utf-8"))
    return template.substitute(title=html.escape(title), intro=_INTRO, body="\n".join(parts))


def figure(value: float | str | None) -> str:
    """A figure for people: three significant digits, a dash where there is none."""
    if isinstance(value, str):
        return value
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "never"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _overview(
    suites: Sequence[SuiteResults],
    checks: Mapping[str, Sequence[CheckRow]],
    targets: Sequence[TargetRow],
) -> str:
    """A line for each suite, with links; counts are of what was run."""
    rows = []
    for results in suites:
        suite = results.suite
        found = [row for row in checks.get(suite.name, ()) if row.was_run]
        mine = [row for row in targets if row.suite == suite.name]
        rows.append(
            (
                suite.name,
                suite.title,
                _count([row.holds for row in found if row.kind == "ordering"]),
                _count([row.holds for row in found if row.kind == "absolute"]),
                _count([row.holds for row in mine]),
            )
        )
    header = ("suite", "what", "orderings held", "figures within bounds", "targets met")
    table = _table(header, rows)
    for results in suites:
        name = html.escape(results.suite.name)
        table = table.replace(f">{name}<", f'><a href="#{name}">{name}</a><', 1)
    return table


def _count(held: Sequence[bool]) -> str:
    return f"{sum(held)} of {len(held)}" if held else "–"


def _targets(rows: Sequence[TargetRow]) -> str:
    missed = [row for row in rows if not row.holds]
    header = ("suite", "load, setting", "what", "target", "ours", "95% interval", "met", "why not")
    parts = ['<h2 id="targets">Targets of the arm best</h2>']
    parts.append(f'<p class="note">{len(rows) - len(missed)} of {len(rows)} are met.</p>')
    if missed:
        parts.append(_table(header, map(_target, missed)))
    whole = _table(header, map(_target, rows))
    parts.append(f"<details><summary>All {len(rows)} targets</summary>{whole}</details>")
    return "".join(parts)


def _target(row: TargetRow) -> tuple[str, ...]:
    interval = "" if math.isnan(row.low) else f"{figure(row.low)} to {figure(row.high)}"
    found = (figure(row.value), interval, _mark(row.holds))
    return (row.suite, row.cell, row.what, row.target.replace("<=", "≤"), *found, row.reason)


def _suite(results: SuiteResults, checks: Sequence[CheckRow]) -> str:
    suite = results.suite
    parts = [
        f'<h2 id="{html.escape(suite.name)}">{html.escape(suite.name)}: {html.escape(suite.title)}</h2>',
        f'<p class="note">Seed {suite.seed}, section {html.escape(suite.section)}. Hardware '
        f"{html.escape(suite.hardware)}. {html.escape(suite.notes)}</p>",
    ]
    if checks:
        parts.append("<h3>Seed figure / ours</h3>")
        parts.append(
            _table(("figure", "seed", "ours", "ratio", "allowed", "holds?", "reason"), map(_check, checks))
        )
    parts += ttft_charts(results)
    folded = [*batch_charts(results), *eviction_charts(results), *timeline_charts(results)]
    parts.append(f"<details><summary>Batch time, evictions, timelines</summary>{''.join(folded)}</details>")
    header = (
        "arm", "load", "setting", "runs", "p50 s", "p95 s", "p50 / floor-shared", "p95 / floor-shared",
        "batch s", "evictions", "redone", "refilled", "deadlines", "rejected", "preemptions", "req/s",
    )  # fmt: skip
    cells = _table(header, [_cell(results, cell) for cell in results.cells()])
    parts.append(f"<details><summary>All cells</summary>{cells}</details>")
    return "\n".join(parts)


def _check(row: CheckRow) -> tuple[str, ...]:
    name = f"{row.figure} (fitted)" if row.is_calibration else row.figure
    return (
        name,
        figure(row.seed),
        figure(row.ours),
        figure(row.ratio),
        row.allowed,
        _mark(row.holds) if row.was_run else "not run",
        row.reason,
    )


def _cell(results: SuiteResults, cell: Cell) -> tuple[str, ...]:
    at = (cell.load, cell.arm, cell.setting)
    ratios = [
        results.ttft_ratio(cell.load, cell.arm, FLOOR_SHARED, cell.setting, q).value for q in (0.5, 0.95)
    ]
    figures = (
        results.ttft(*at, 0.5),
        results.ttft(*at, 0.95),
        *ratios,
        results.mean(*at, lambda run: run.batch_time_s),
        results.mean(*at, lambda run: float(run.evictions)),
        results.mean(*at, lambda run: float(run.tokens_redone)),
        results.mean(*at, lambda run: float(run.tokens_refilled)),
        results.mean(*at, lambda run: run.deadlines_met_fraction),
        results.mean(*at, lambda run: float(run.rejected(results.suite.measured))),
        results.mean(*at, lambda run: float(run.preemptions)),
        results.mean(*at, lambda run: run.completed_per_s()),
    )
    runs = len(results.runs(*at))
    return (cell.arm, cell.load, cell.setting.value, str(runs), *(figure(value) for value in figures))


def _mark(holds: bool) -> str:
    return "yes" if holds else "no"


_TEXT_COLUMNS = {"suite", "load, setting", "what", "why not", "figure", "reason", "arm", "load", "setting"}
_UNBROKEN_COLUMNS = {"suite", "load, setting", "target", "ours", "95% interval", "allowed", "arm", "load"}
"""Short texts that would make a narrow page's rows tall; the table scrolls instead."""


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    kinds = [
        " ".join(
            name
            for name, columns in (("text", _TEXT_COLUMNS), ("unbroken", _UNBROKEN_COLUMNS))
            if column in columns
        )
        for column in header
    ]
    parts = ['<div class="scroll"><table><tr>']
    parts += [_table_cell("th", text, kind) for text, kind in zip(header, kinds, strict=True)]
    parts.append("</tr>")
    for row in rows:
        parts.append("<tr>")
        for text, kind in zip(row, kinds, strict=True):
            parts.append(_table_cell("td", text, text if text in ("yes", "no") else kind))
        parts.append("</tr>")
    return "".join([*parts, "</table></div>"])


def _table_cell(tag: str, text: str, kind: str) -> str:
    attribute = f' class="{kind}"' if kind else ""
    return f"<{tag}{attribute}>{html.escape(text)}</{tag}>"
