"""`extproc bench idle-reuse`: where the seed report's one 503 may have come from, by experiment."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from extproc.bench.idle_reuse.arms import IDLE_ARMS
from extproc.bench.idle_reuse.pattern import measure_patterns
from extproc.bench.idle_reuse.probe import ProbePlan, measure_arm
from extproc.bench.idle_reuse.refusals import SUSPECTS, provoke_all
from extproc.bench.idle_reuse.report import IdleReuseFigures, charts, figures
from extproc.bench.suite import Setting
from extproc.cli.run_page import write_page


@click.command("idle-reuse")
@click.option(
    "--keep-alive",
    "keep_alive_s",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0.2, 10),
    help="Seconds after which the server closes an unused connection; vLLM: 5.",
)
@click.option(
    "--cycles", default=20, show_default=True, type=click.IntRange(1, 200), help="Of 32 probes an arm."
)
@click.option(
    "--window",
    "window_s",
    default=0.025,
    show_default=True,
    type=click.FloatRange(0.001, 0.2),
    help="Probes are sent up to so many seconds before and after the closing.",
)
@click.option(
    "--streams",
    default=12,
    show_default=True,
    type=click.IntRange(0, 64),
    help="Long answers that keep the server busy meanwhile.",
)
@click.option(
    "--runs", default=10, show_default=True, type=click.IntRange(1, 100), help="Simulated runs a setting."
)
@click.option("--seed", default=0, show_default=True)
@click.option(
    "--server",
    metavar="IP:PORT",
    help="A model server that runs already, with the --keep-alive given, instead of an emulated one.",
)
@click.option(
    "--model", default="emulated", show_default=True, help="With --server: the served model's name."
)
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write the figures here as JSON."
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the charts as .html, or the first as .svg.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def command(
    keep_alive_s: float,
    cycles: int,
    window_s: float,
    streams: int,
    runs: int,
    seed: int,
    server: str | None,
    model: str,
    out: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Send requests down connections that the server is just closing, with and without each precaution.

    Starts Envoy, extproc and an emulated server for each arm (about two minutes in all), provokes every other
    cause of a refusal once, and counts in virtual time how often the seed's traffic meets the moment.

    Example: extproc bench idle-reuse --cycles 20 --plot idle-reuse.html
    """
    plan = ProbePlan(
        keep_alive_s=keep_alive_s,
        cycles=cycles,
        window_s=window_s,
        streams=streams,
        seed=seed,
        server=server,
        model=model,
    )
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        total = len(IDLE_ARMS) * cycles + len(SUSPECTS) + len(Setting) * runs
        task = bar.add_task("probing", total=total)
        arms = [measure_arm(arm, plan, lambda: bar.advance(task)) for arm in IDLE_ARMS]
        suspects = provoke_all(lambda: bar.advance(task))
        patterns = measure_patterns(runs, lambda: bar.advance(task))
    measured = figures(keep_alive_s, arms, patterns, suspects)
    text = json.dumps(measured, indent=1)
    if out is not None:
        out.write_text(text + "\n", encoding="utf-8")
    if plot is not None:
        drawn = charts(measured)
        drawn = drawn[:1] if plot.suffix == ".svg" else drawn
        write_page(plot, "Requests on connections that are being closed", drawn)
    if as_json:
        click.echo(text)
    else:
        _print(measured)


def _print(measured: IdleReuseFigures) -> None:
    console = Console()
    arms = Table("Envoy's setting", "probes", "503", "share", "95% interval", "window ms", box=None)
    for name, arm in measured["arms"].items():
        low, high = arm["interval"]
        share = f"{arm['failed_share']:.2%}"
        interval = f"{low:.2%} to {high:.2%}"
        arms.add_row(name, str(arm["probes"]), str(arm["failed"]), share, interval, f"{arm['lost_ms']:g}")
    console.print(arms)
    suspects = Table("suspect", "status", "code", "dropped reason", box=None)
    for each in measured["suspects"]:
        suspects.add_row(each["suspect"], str(each["status"]), each["code"], each["reason"])
    console.print(suspects)
    pattern = Table(
        "setting", "interactive", "reuses", "per s of idle time at 5 s", "expected 503 of 1,440", box=None
    )
    for row in measured["patterns"]:
        pattern.add_row(
            row["setting"],
            str(row["requests"]),
            str(row["reuses"]),
            f"{row['reuses_per_idle_s']:g}",
            f"{row['expected_503']:.3g}",
        )
    console.print(pattern)
