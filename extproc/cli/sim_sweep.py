"""`extproc sim sweep`: one or two settings of a scenario over a range, to size a pool or a reserve."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from extproc.bench.summary import summarize_by
from extproc.cli.run_page import spread_chart, write_page
from extproc.cli.simulate import seconds
from extproc.config.loader import load_text
from extproc.config.yaml_source import parse_yaml
from extproc.errors import ConfigError
from extproc.sim.files import ScenarioFile, load_scenario
from extproc.sim.runner import run
from extproc.sim.sweep import ALIASES, Axis, Cell, Value, cells, parse_axis, varied

Row = dict[str, Value]
"""One line of the result: the varied values, then figures named `<class>_<figure>` and totals."""


@click.command()
@click.argument("scenario", type=click.Path(path_type=Path))
@click.option(
    "--vary",
    "varies",
    multiple=True,
    required=True,
    help=f"PLACE=V1,V2 or PLACE=FROM:TO:STEP; at most two. Short places: {', '.join(ALIASES)}.",
)
@click.option("--seeds", default=1, show_default=True, type=click.IntRange(1, 100), help="Runs of each cell.")
@click.option("--jobs", default=os.cpu_count() or 1, type=click.IntRange(1), help="Processes [all cores].")
@click.option("--csv", "csv_path", type=click.Path(path_type=Path), help="Write the table as CSV.")
@click.option("--plot", type=click.Path(path_type=Path), help="Write a page of plots (.html).")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def sweep(
    scenario: Path,
    varies: tuple[str, ...],
    seeds: int,
    jobs: int,
    csv_path: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Run SCENARIO once for each value (or pair of values) and compare what users would see.

    Example: extproc sim sweep config/scenarios/steady.yaml --vary ceiling=0.6:0.95:0.05 --seeds 5
    """
    if len(varies) > 2:
        raise click.BadParameter("at most two places can vary at once", param_hint="--vary")
    load_scenario(scenario)
    axes = [parse_axis(text) for text in varies]
    data = parse_yaml(scenario.read_text("utf-8"), source=str(scenario)).data
    grid = cells(axes)
    texts = [json.dumps(varied(data, axes, cell)) for cell in grid]
    for text, cell in zip(texts, grid, strict=True):
        _check(text, f"{scenario} with {_label(axes, cell)}")
    rows = _run_all(axes, grid, texts, seeds, jobs)
    if csv_path is not None:
        _write_csv(csv_path, rows)
    if plot is not None:
        write_page(plot, f"{scenario.name}: {', '.join(varies)}", _charts(axes, rows))
    if as_json:
        click.echo(json.dumps(rows))
    else:
        _show(scenario, rows, seeds)


def run_cell(text: str, seeds: int) -> Row:
    """The figures of one combination, its seeds taken together; runs in a process of its own."""
    scenario = load_text(text, ScenarioFile).scenario()
    results = [run(dataclasses.replace(scenario, seed=seed)) for seed in range(seeds)]
    records = [record for result in results for record in result.records]
    row: Row = {}
    for name, summary in summarize_by(records, lambda record: record.traffic_class).items():
        row[f"{name}_ttft_p50_s"] = round(summary.ttft.p50_s, 6)
        row[f"{name}_ttft_p95_s"] = round(summary.ttft.p95_s, 6)
        row[f"{name}_duration_s"] = round(summary.duration_s, 3)
        row[f"{name}_completed_fraction"] = summary.completed / summary.requests
    row["evictions"] = sum(result.evictions for result in results) / seeds
    row["preemptions"] = sum(result.preemptions for result in results) / seeds
    tokens = sum(result.output_tokens for result in results)
    row["output_tokens_per_s"] = round(tokens / sum(result.ended_at_s for result in results), 1)
    return row


def _charts(axes: Sequence[Axis], rows: list[Row]) -> list[str]:
    """A range plot for each class (p50 to p95) and each total that changes."""
    labels = [", ".join(f"{axis.name} {row[axis.name]}" for axis in axes) for row in rows]
    charts = []
    for name in rows[0]:
        if name.endswith("_ttft_p95_s"):
            medians = name.replace("_p95_", "_p50_")
            spreads = [
                (label, 1000 * number(row[medians]), 1000 * number(row[name]), 1000 * number(row[name]))
                for label, row in zip(labels, rows, strict=True)
            ]
            charts.append(
                spread_chart(f"TTFT p50 to p95 of {name.removesuffix('_ttft_p95_s')}", spreads, "ms")
            )
        elif name in ("evictions", "preemptions") or name.endswith("_duration_s"):
            values = [number(row[name]) for row in rows]
            if len(set(values)) > 1:
                spreads = [(label, 0.0, value, value) for label, value in zip(labels, values, strict=True)]
                charts.append(spread_chart(name, spreads, "s" if name.endswith("_s") else ""))
    return charts


def number(value: Value) -> float:
    """A figure of a row; figures are never text."""
    return float(value)


def _check(text: str, source: str) -> None:
    """Refuse an impossible combination before anything runs; lines mean nothing in the varied text."""
    try:
        load_text(text, ScenarioFile).scenario()
    except ConfigError as error:
        problems = [dataclasses.replace(problem, line=None) for problem in error.problems]
        raise ConfigError(problems, source=source) from error


def _run_all(axes: Sequence[Axis], grid: list[Cell], texts: list[str], seeds: int, jobs: int) -> list[Row]:
    """Every combination, in parallel processes, in the grid's order."""
    rows: list[Row] = [{} for _ in grid]
    with (
        Progress(console=Console(stderr=True), transient=True) as progress,
        ProcessPoolExecutor(min(jobs, len(grid)), mp_context=get_context("spawn")) as pool,
    ):
        task = progress.add_task("combinations", total=len(grid))
        futures = {pool.submit(run_cell, text, seeds): index for index, text in enumerate(texts)}
        for future in as_completed(futures):
            index = futures[future]
            values = {axis.name: value for axis, value in zip(axes, grid[index], strict=True)}
            rows[index] = {**values, **future.result()}
            progress.advance(task)
    return rows


def _show(scenario: Path, rows: list[Row], seeds: int) -> None:
    """A table for people; figures that never change are left out."""
    names = [name for name in rows[0] if len(rows) == 1 or len({row[name] for row in rows}) > 1]
    table = Table(*names, title=f"{scenario.name}, {seeds} seed{'s' if seeds > 1 else ''}", box=None)
    for row in rows:
        table.add_row(*(_shown(name, row[name]) for name in names))
    console = Console()
    (console if console.is_terminal else Console(width=200)).print(table)


def _shown(name: str, value: Value) -> str:
    if isinstance(value, str) or not name.endswith("_s"):
        return f"{value:g}" if isinstance(value, float) else str(value)
    return seconds(float(value)) if not name.endswith("_per_s") else f"{value:,.0f}"


def _write_csv(path: Path, rows: list[Row]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def _label(axes: Sequence[Axis], cell: Cell) -> str:
    return ", ".join(f"{axis.name}={value}" for axis, value in zip(axes, cell, strict=True))
