"""`extproc bench load`: the load generator against any OpenAI-compatible gateway or server."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
from pathlib import Path

import click
import uvloop
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from extproc.bench.load import LoadGenerator, LoadResult
from extproc.bench.load_options import LoadOptions, PriorityPlace
from extproc.bench.prompts import PromptFactory, PromptStyle
from extproc.bench.records import format_records
from extproc.bench.summary import ClassSummary, Distribution, summarize_by
from extproc.clock import SystemClock
from extproc.config.loader import load_file
from extproc.workload.arrivals import ClosedLoop, Poisson
from extproc.workload.lengths import Fixed
from extproc.workload.trace import parse_trace
from extproc.workload.traffic import AfterEviction, PlannedRequest, TrafficClass


@click.command("load")
@click.argument("url")
@click.option("--model", default="emulated", show_default=True, help="The served model's name.")
@click.option("--trace", type=click.Path(exists=True, path_type=Path), help="Replay these JSON lines.")
@click.option("--classes", type=click.Path(exists=True, path_type=Path), help="YAML list of traffic classes.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Poisson arrivals per second.")
@click.option("--concurrency", type=click.IntRange(1), help="A closed loop of so many requests instead.")
@click.option(
    "--batch", type=click.IntRange(1), help="With either: also keep so many batch requests running."
)
@click.option("--seconds", default=30.0, show_default=True, type=click.FloatRange(0, min_open=True))
@click.option("--prompt-tokens", default=128, show_default=True, type=click.IntRange(1))
@click.option("--output-tokens", default=64, show_default=True, type=click.IntRange(1))
@click.option(
    "--objective",
    "objectives",
    multiple=True,
    metavar="[CLASS=]NAME",
    help="Objective header of one class, or of all. Default: each class's own name.",
)
@click.option(
    "--priority-in",
    type=click.Choice([place.value for place in PriorityPlace]),
    default=PriorityPlace.BODY.value,
    show_default=True,
    help="Where a class tells its `priority`, if it has one: for gateways that don't know its objective.",
)
@click.option(
    "--style",
    default=PromptStyle.TOKEN_IDS.value,
    show_default=True,
    type=click.Choice([style.value for style in PromptStyle]),
)
@click.option("--seed", default=0, show_default=True)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="Write a JSON line per request.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def load(
    url: str,
    model: str,
    trace: Path | None,
    classes: Path | None,
    rate: float | None,
    concurrency: int | None,
    batch: int | None,
    seconds: float,
    prompt_tokens: int,
    output_tokens: int,
    objectives: tuple[str, ...],
    priority_in: str,
    style: str,
    seed: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Send load to URL and say what its clients saw. Exits 1 when requests failed or the generator lagged.

    --rate and --concurrency send the class `interactive`, --batch the class `batch`, which resumes what is
    evicted: config/extproc.yaml knows both names as objectives (priorities 10 and -1). Classes of --classes
    and --trace are ranked by the objective of their name, or by their `priority`, where the gateway knows no
    such objective.

    Example: extproc bench load http://127.0.0.1:8080 --rate 2 --batch 8 --seconds 20
    """
    if sum(source is not None for source in (trace, classes, rate, concurrency)) != 1:
        raise click.UsageError("give exactly one of --trace, --classes, --rate and --concurrency")
    if batch is not None and (trace is not None or classes is not None):
        raise click.UsageError("--batch goes with --rate or --concurrency; list batch among your classes")
    rows: list[PlannedRequest] = []
    wanted: tuple[TrafficClass, ...] = ()
    if trace is not None:
        rows = parse_trace(trace.read_text(encoding="utf-8").splitlines(), source=str(trace))
    elif classes is not None:
        wanted = load_file(classes, tuple[TrafficClass, ...])
    else:
        wanted = _simple_classes(
            rate, concurrency, batch, seconds, Fixed(tokens=prompt_tokens), Fixed(tokens=output_tokens)
        )
    names = {row.traffic_class for row in rows} | {each.name for each in wanted}
    options = LoadOptions(
        base_url=url, objectives=_objectives(names, objectives), priority_in=PriorityPlace(priority_in)
    )
    clock = SystemClock()
    prompts = PromptFactory(
        model=model, style=PromptStyle(style), seed=seed, run_salt=f"load-{clock.wall_time():.3f}"
    )
    generator = LoadGenerator(options, prompts, clock, classes=wanted, rows=rows, seed=seed)
    result = _run(generator)
    if out is not None:
        out.write_text("".join(format_records(result.records)), encoding="utf-8")
    _report(result, as_json)


def _objectives(classes: set[str], given: tuple[str, ...]) -> dict[str, str]:
    """The objective of each class: what was given for it, else what was given for all, else its name."""
    chosen: dict[str, str] = {}
    of_all: str | None = None
    for text in given:
        name, is_of_class, objective = text.partition("=")
        if not is_of_class:
            of_all = text
        elif name in classes:
            chosen[name] = objective
        else:
            raise click.UsageError(
                f"--objective {text}: no class {name!r} here, only {', '.join(sorted(classes))}"
            )
    return {name: chosen.get(name, of_all or name) for name in classes}


def _simple_classes(
    rate: float | None,
    concurrency: int | None,
    batch: int | None,
    seconds: float,
    prompt: Fixed,
    output: Fixed,
) -> tuple[TrafficClass, ...]:
    """`interactive` in an open or a closed loop, and `batch` in a closed one where it is asked for."""
    arrivals = (
        ClosedLoop(concurrency=concurrency, end_s=seconds)
        if concurrency is not None
        else Poisson(rate_per_s=rate or 1.0, end_s=seconds)
    )
    interactive = TrafficClass(name="interactive", arrivals=arrivals, prompt=prompt, output=output)
    if batch is None:
        return (interactive,)
    loop = ClosedLoop(concurrency=batch, end_s=seconds)
    return interactive, TrafficClass(
        name="batch",
        arrivals=loop,
        prompt=prompt,
        output=output,
        priority=-1,
        after_eviction=AfterEviction.RESUME,
    )


def _run(generator: LoadGenerator) -> LoadResult:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())

    async def watched() -> LoadResult:
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("starting")
            async with asyncio.TaskGroup() as group:
                running = group.create_task(generator.run())
                while not running.done():
                    await asyncio.wait([running], timeout=0.25)
                    seen = generator.progress
                    bar.update(
                        task,
                        description=f"sent {seen.sent}, open {seen.open}, completed {seen.completed}, "
                        f"refused {seen.refused}, evicted {seen.evictions}, tokens {seen.output_tokens}",
                    )
            return running.result()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(watched())


def _report(result: LoadResult, as_json: bool) -> None:
    by_class = summarize_by(result.records, lambda record: record.traffic_class)
    if as_json:
        click.echo(
            json.dumps(
                {
                    "duration_s": result.duration_s,
                    "most_open": result.most_open,
                    "lag_p99_s": result.lag_p99_s,
                    "lag_max_s": result.lag_max_s,
                    "invalid": result.invalid,
                    "classes": {name: _plain(summary) for name, summary in by_class.items()},
                }
            )
        )
    else:
        _print_table(by_class)
        lag_ms = result.lag_p99_s * 1000
        click.echo(f"{result.duration_s:.1f} s, at most {result.most_open} open, lag p99 {lag_ms:.1f} ms")
    if result.invalid:
        click.echo(f"invalid run: {result.invalid}", err=True)
    failed = sum(summary.failed + summary.unfinished for summary in by_class.values())
    if result.invalid or failed:
        raise click.exceptions.Exit(1)


def _print_table(by_class: dict[str, ClassSummary]) -> None:
    table = Table(box=None, header_style="bold", padding=(0, 1, 0, 0))
    for column in (
        "class", "sent", "done", "refused", "evicted", "failed", "TTFT p50\nms", "p95\nms", "p99\nms",
        "TPOT p50\nms", "tokens\n/s",
    ):  # fmt: skip
        table.add_column(column, justify="left" if column == "class" else "right", no_wrap=True)
    for name, summary in by_class.items():
        label = f"{name} (closed loop)" if summary.is_closed_loop else name
        counts = (summary.requests, summary.completed, summary.rejected, summary.evicted, summary.failed)
        times = (summary.ttft.p50_s, summary.ttft.p95_s, summary.ttft.p99_s, summary.tpot.p50_s)
        shown = ["–" if math.isnan(value) else f"{value * 1000:.1f}" for value in times]
        table.add_row(label, *map(str, counts), *shown, f"{summary.output_tokens_per_s:.0f}")
    Console().print(table)


def _plain(summary: ClassSummary) -> dict[str, object]:
    """Fields of the summary as JSON; what does not exist is null."""
    values: dict[str, object] = {}
    for each in dataclasses.fields(summary):
        value = getattr(summary, each.name)
        if isinstance(value, Distribution):
            value = {
                name: None if isinstance(number, float) and math.isnan(number) else number
                for name, number in dataclasses.asdict(value).items()
            }
        values[each.name] = value
    return values
