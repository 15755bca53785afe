"""`extproc simulate`: one scenario in virtual time, over the controller that serves production."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from extproc.bench.records import format_records
from extproc.bench.summary import ClassSummary, summarize_by
from extproc.cli.run_page import run_charts, write_page
from extproc.sim.files import load_scenario
from extproc.sim.result import RunResult
from extproc.sim.runner import Simulation
from extproc.sim.scenario import Scenario

_PROGRESS_STEPS = 100
TIMELINE_S = 0.25
"""Between two points of the plots; scenarios of hours should set `timeline_interval_s`."""


@click.command()
@click.argument("scenario", type=click.Path(path_type=Path))
@click.option("--seed", type=int, help="Instead of the file's seed.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--plot", type=click.Path(path_type=Path), help="Write a page of plots (.html).")
@click.option("--records", type=click.Path(path_type=Path), help="Write one JSON line for each request.")
def simulate(
    scenario: Path, seed: int | None, as_json: bool, records: Path | None, plot: Path | None
) -> None:
    """Run SCENARIO (a file such as config/scenarios/steady.yaml) in virtual time and print what became of it.

    Example: extproc simulate config/scenarios/burst.yaml --seed 3
    """
    loaded = load_scenario(scenario)
    chosen = loaded.scenario()
    if seed is not None:
        chosen = dataclasses.replace(chosen, seed=seed)
    if plot is not None and chosen.timeline_interval_s is None:
        chosen = dataclasses.replace(chosen, timeline_interval_s=TIMELINE_S)
    result = run_with_progress(chosen)
    if plot is not None:
        write_page(plot, f"{chosen.name} (seed {chosen.seed})", run_charts(result))
    if records is not None:
        records.write_text("".join(format_records(result.records)), "utf-8")
    summaries = summarize_by(result.records, lambda record: record.traffic_class)
    if as_json:
        click.echo(json.dumps(as_data(chosen, result, summaries.values())))
    else:
        show(chosen, result, summaries.values())


def run_with_progress(scenario: Scenario) -> RunResult:
    """Run with a progress bar over the horizon (a run that ends earlier jumps to the end)."""
    simulation = Simulation(scenario)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(scenario.name or "simulating", total=scenario.horizon_s)
        step_s = scenario.horizon_s / _PROGRESS_STEPS
        for step in range(_PROGRESS_STEPS):
            simulation.advance(step * step_s)
            progress.update(task, completed=simulation.calendar.now)
            if simulation.calendar.is_stopped:
                break
        return simulation.run()


def as_data(scenario: Scenario, result: RunResult, summaries: Iterable[ClassSummary]) -> dict[str, object]:
    """The result as plain data; NaN (no value) becomes null."""
    return {
        "scenario": scenario.name,
        "seed": scenario.seed,
        "ended_at_s": result.ended_at_s,
        "requests": result.requests,
        "evictions": result.evictions,
        "preemptions": result.preemptions,
        "output_tokens": result.output_tokens,
        "classes": {summary.name: _plain(dataclasses.asdict(summary)) for summary in summaries},
        "engines": [dataclasses.asdict(engine) for engine in result.engines],
    }


def show(scenario: Scenario, result: RunResult, summaries: Iterable[ClassSummary]) -> None:
    """Tables for people."""
    table = Table(
        *("class", "requests", "done", "refused", "failed", "evictions", "TTFT p50", "p95", "p99"),
        *("TPOT p50", "tokens/s", "duration"),
        title=f"{scenario.name} (seed {scenario.seed})",
        box=None,
    )
    for summary in summaries:
        table.add_row(
            summary.name,
            str(summary.requests),
            str(summary.completed),
            str(summary.rejected + summary.refused),
            str(summary.failed + summary.evicted + summary.unfinished),
            str(summary.evictions),
            *(seconds(value) for value in (summary.ttft.p50_s, summary.ttft.p95_s, summary.ttft.p99_s)),
            seconds(summary.tpot.p50_s),
            f"{summary.output_tokens_per_s:,.0f}",
            f"{summary.duration_s:.1f} s",
        )
    console = Console()
    console = console if console.is_terminal else Console(width=120)
    console.print(table)
    console.print(
        f"ended at {result.ended_at_s:.1f} s; {result.evictions} evictions by the gateway, "
        f"{result.preemptions} preemptions in the engines, {result.output_tokens:,} output tokens"
    )


def seconds(value: float) -> str:
    """A latency in the unit that reads best."""
    if math.isnan(value):
        return "-"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.2f} s"


def _plain(value: object) -> object:
    match value:
        case float() if not math.isfinite(value):
            return None
        case dict():
            return {key: _plain(item) for key, item in value.items()}
        case _:
            return value
