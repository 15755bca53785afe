"""`extproc bench list | run | report | compare | export`: the suites of the seed reports."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from extproc.bench.compare import compare_summaries
from extproc.bench.live import run_against, run_local
from extproc.bench.outcome import RunOutcome
from extproc.bench.prompts import USUAL_TOKEN_IDS
from extproc.bench.publish import load_summary, publish_suite, write_page, write_reproduction
from extproc.bench.runner import Job, Progress, plan_jobs, run_in_processes, run_in_turn
from extproc.bench.scaling import scaled
from extproc.bench.store import RunStore, fingerprint
from extproc.bench.suite import Setting, Suite
from extproc.bench.suites.catalogue import SUITES
from extproc.bench.target import Target
from extproc.bench.virtual import build_scenario

ALL = "all"


def _suites(name: str) -> list[Suite]:
    if name == ALL:
        return list(SUITES.values())
    if name not in SUITES:
        raise click.BadParameter(
            f"no suite is named {name!r}; there are {', '.join(SUITES)}, and {ALL}", param_hint="NAME"
        )
    return [SUITES[name]]


def _split(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split("|") if part.strip()]


def _token_ids(context: click.Context, parameter: click.Parameter, text: str) -> tuple[int, int]:
    first, _, end = text.partition(":")
    if not (first.isdigit() and end.isdigit() and int(first) < int(end)):
        raise click.BadParameter(f"{text!r} is not FIRST:END with FIRST below END, such as 1000:15000")
    return int(first), int(end)


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def list_suites(as_json: bool) -> None:
    """Name every suite, its loads and its arms.

    Example: extproc bench list
    """
    if as_json:
        rows = {
            suite.name: {
                "title": suite.title,
                "seed": suite.seed,
                "section": suite.section,
                "hardware": suite.hardware,
                "loads": [load.name for load in suite.loads],
                "arms": [arm.name for arm in suite.arms],
                "settings": [setting.value for setting in suite.settings],
            }
            for suite in SUITES.values()
        }
        click.echo(json.dumps(rows))
        return
    table = Table(box=None, header_style="bold")
    for column in ("suite", "seed", "what", "loads", "arms"):
        table.add_column(column, overflow="fold")
    for suite in SUITES.values():
        loads = ", ".join(load.name for load in suite.loads)
        table.add_row(suite.name, f"{suite.seed} {suite.section}", suite.title, loads, str(len(suite.arms)))
    Console().print(table)


@click.command("run")
@click.argument("name")
@click.option(
    "--virtual", "mode", flag_value="virtual", default="virtual", help="Virtual time (the default)."
)
@click.option("--local", "mode", flag_value="local", help="Envoy, extproc and emulators on this machine.")
@click.option("--target", metavar="URL", help="A gateway that runs already; it is the arm that --arms names.")
@click.option(
    "--model", default="emulated", show_default=True, help="With --target: the served model's name."
)
@click.option(
    "--speed",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="With --local: modelled seconds per real second.",
)
@click.option(
    "--token-ids",
    default="{}:{}".format(*USUAL_TOKEN_IDS),
    show_default=True,
    callback=_token_ids,
    metavar="FIRST:END",
    help="With --target: prompts are made of these; for models with a smaller vocabulary.",
)
@click.option(
    "--scale",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0, 1, min_open=True),
    help="With --target or --local: this part of the suite's time and batch, for a first look.",
)
@click.option("--arms", help="Only these arms, separated by |.")
@click.option("--loads", help="Only these loads, separated by |.")
@click.option(
    "--setting", "settings", type=click.Choice([each.value for each in Setting]), help="Only this setting."
)
@click.option("--runs", default=3, show_default=True, type=click.IntRange(1), help="Repeats of an arm.")
@click.option("--seed", default=0, show_default=True, help="The first repeat's seed.")
@click.option("--workers", default=os.cpu_count() or 1, show_default=True, type=click.IntRange(1))
@click.option("--out", required=True, type=click.Path(file_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print summary.json at the end.")
def run_suite(
    name: str,
    mode: str,
    target: str | None,
    model: str,
    speed: float,
    token_ids: tuple[int, int],
    scale: float,
    arms: str | None,
    loads: str | None,
    settings: str | None,
    runs: int,
    seed: int,
    workers: int,
    out: Path,
    as_json: bool,
) -> None:
    """Run a suite (or `all`); runs that are in OUT already are not repeated.

    Example: extproc bench run holdback-requests --runs 3 --out reports/holdback-requests
    """
    suites = _suites(name)
    jobs = [
        job
        for suite in suites
        for job in plan_jobs(suite, runs=runs, first_seed=seed, arms=_split(arms), loads=_split(loads))
        if settings is None or job.cell.setting.value == settings
    ]
    if not jobs:
        raise click.UsageError("no arm or load of the suite has that name; see `extproc bench list --json`")

    def directory(suite: str) -> Path:
        return out / suite if name == ALL else out

    if target is not None or mode == "local":
        goal = None if target is None else Target(url=target, model=model, token_ids=token_ids)
        for suite in suites:
            mine = [job for job in jobs if job.cell.suite == suite.name]
            _run_live(scaled(suite, scale), mine, directory(suite.name), target=goal, speed=speed)
    elif scale != 1.0:
        raise click.UsageError("--scale is for --local and --target: virtual time has room for the whole")
    else:
        _run_virtual(jobs, directory, workers)
    for suite in suites:
        summary = publish_suite(suite, directory(suite.name))
        if as_json:
            click.echo(json.dumps(summary))
        else:
            _print_checks(summary)


@contextmanager
def _progress() -> Iterator[Progress]:
    """A function that moves a bar on stderr."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("running", total=None)

        def advance(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what[:60] or "running")

        yield advance


def _run_virtual(jobs: list[Job], directory: Callable[[str], Path], workers: int) -> None:
    with _progress() as advance:
        run_in_processes(jobs, directory, workers=workers, on_progress=advance)


def _run_live(suite: Suite, jobs: list[Job], directory: Path, *, target: Target | None, speed: float) -> None:
    """Real sockets: the mode and its speed are part of what a stored run is known by."""
    how = f"local {speed:g}" if target is None else repr(target)
    store = RunStore(directory, lambda cell: fingerprint(how, build_scenario(suite, cell, 0)))

    def execute(job: Job) -> RunOutcome:
        if target is not None:
            return run_against(suite, job.cell, job.seed, target)
        return run_local(suite, job.cell, job.seed, speed=speed)

    try:
        with _progress() as advance:
            run_in_turn(jobs, store, execute, on_progress=advance)
    except KeyboardInterrupt:
        done = sum(store.has(job.cell, job.seed) for job in jobs)
        message = f"interrupted: {done} of {len(jobs)} runs are in {directory}; the same command goes on"
        raise click.ClickException(message) from None


def _print_checks(summary: dict[str, object]) -> None:
    checks = summary["seed_checks"]
    assert isinstance(checks, list)
    table = Table(title=str(summary["suite"]), box=None, header_style="bold", title_justify="left")
    for column in ("figure", "seed", "ours", "ratio", "holds", "reason"):
        table.add_column(column, overflow="fold")
    done = [row for row in checks if row["holds"] is not None]
    for row in done:
        holds = "[green]yes[/]" if row["holds"] else "[red]no[/]"
        ours = row["ours"] if isinstance(row["ours"], str) else _short(row["ours"])
        table.add_row(row["figure"], str(row["seed"]), ours, _short(row["ratio"]), holds, row["reason"])
    Console().print(table)
    if len(done) < len(checks):
        click.echo(f"{len(checks) - len(done)} more figures need cells that were not run")


def _short(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


@click.command("report")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--markdown", type=click.Path(dir_okay=False, path_type=Path), help="Also write the tables as this page."
)
def report(directory: Path, markdown: Path | None) -> None:
    """Write DIRECTORY/report.html from finished runs: one file, no network needed.

    Example: extproc bench report reports
    """
    click.echo(write_page(directory))
    if markdown is not None:
        click.echo(write_reproduction(directory, markdown))


@click.command("compare")
@click.argument("first", type=click.Path(exists=True, path_type=Path))
@click.argument("second", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--within", default=0.20, show_default=True, help="Allowed difference of a figure, as a fraction."
)
@click.option("--json", "as_json", is_flag=True)
def compare(first: Path, second: Path, within: float, as_json: bool) -> None:
    """Set the figures of two runs of a suite beside each other; exit 1 when one differs by more than allowed.

    Example: extproc bench compare reports/local/holdback-requests reports/virtual/holdback-requests
    """
    rows = compare_summaries(load_summary(first), load_summary(second), within=within)
    if not rows:
        raise click.UsageError("the two runs have no cell in common")
    if as_json:
        click.echo(json.dumps([row.as_json() for row in rows]))
    else:
        table = Table(box=None, header_style="bold")
        for column in ("cell", "figure", str(first), str(second), "ratio", "agrees"):
            table.add_column(column, overflow="fold")
        for row in rows:
            agrees = "[green]yes[/]" if row.agrees else "[red]no[/]"
            table.add_row(
                row.cell, row.figure, _short(row.first), _short(row.second), _short(row.ratio), agrees
            )
        Console().print(table)
    if not all(row.agrees for row in rows):
        raise click.exceptions.Exit(1)
