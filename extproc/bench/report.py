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
    parts = [_targets(targets)] if targets else []
    parts += [_suite(results, checks.get(results.suite.name, ())) for results in suites]
    links = [
        f'<a href="#{html.escape(each.suite.name)}">{html.escape(each.suite.name)}</a>' for each in suites
    ]
    template = Template(resources.files("extproc.bench").joinpath("report.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=html.escape(title), intro=_INTRO, links=" ".join(links), body="\n".join(parts)
    )


def figure(value: float | str | None) -> str:
    """A figure for people: three significant digits, a dash where there is none."""
    if isinstance(value, str):
        return value
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "never"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _targets(rows: Sequence[TargetRow]) -> str:
    body = [
        (
            row.suite,
            row.cell,
            row.what,
            row.target,
            f"{figure(row.value)} [{figure(row.low)}, {figure(row.high)}]",
            _mark(row.holds),
            row.reason,
        )
        for row in rows
    ]
    header = ("suite", "load, setting", "what", "target", "ours [95% interval]", "met", "why not")
    return f'<h2 id="targets">Targets of the arm best</h2>{_table(header, body)}'


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
        "arm", "load", "setting", "runs", "p50 s", "p95 s", "x floor-shared p50", "p95", "batch s",
        "evictions", "redone", "refilled", "deadlines", "rejected", "preemptions", "req/s",
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
        _mark(row.holds),
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


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    parts = [
        '<div class="scroll"><table><tr>',
        *(f"<th>{html.escape(name)}</th>" for name in header),
        "</tr>",
    ]
    for row in rows:
        parts.append("<tr>")
        for text in row:
            kind = f' class="{text}"' if text in ("yes", "no") else ""
            parts.append(f"<td{kind}>{html.escape(text)}</td>")
        parts.append("</tr>")
    return "".join([*parts, "</table></div>"])
