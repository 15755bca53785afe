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
from extproc.bench.load_options import LoadOptions
from extproc.bench.prompts import PromptFactory, PromptStyle
from extproc.bench.records import format_records
from extproc.bench.summary import ClassSummary, Distribution, summarize_by
from extproc.clock import SystemClock
from extproc.config.loader import load_file
from extproc.workload.arrivals import ClosedLoop, Poisson
from extproc.workload.lengths import Fixed
from extproc.workload.trace import parse_trace
from extproc.workload.traffic import PlannedRequest, TrafficClass


@click.command("load")
@click.argument("url")
@click.option("--model", default="emulated", show_default=True, help="The served model's name.")
@click.option("--trace", type=click.Path(exists=True, path_type=Path), help="Replay these JSON lines.")
@click.option("--classes", type=click.Path(exists=True, path_type=Path), help="YAML list of traffic classes.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Poisson arrivals per second.")
@click.option("--concurrency", type=click.IntRange(1), help="A closed loop of so many requests instead.")
@click.option("--seconds", default=30.0, show_default=True, type=click.FloatRange(0, min_open=True))
@click.option("--prompt-tokens", default=128, show_default=True, type=click.IntRange(1))
@click.option("--output-tokens", default=64, show_default=True, type=click.IntRange(1))
@click.option("--objective", help="Value of the objective header of all classes (else the class's name).")
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
    seconds: float,
    prompt_tokens: int,
    output_tokens: int,
    objective: str | None,
    style: str,
    seed: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Send load to URL and say what its clients saw. Exits 1 when requests failed or the generator lagged.

    Example: extproc bench load http://127.0.0.1:8080 --rate 2 --seconds 20 --objective interactive
    """
    if sum(source is not None for source in (trace, classes, rate, concurrency)) != 1:
        raise click.UsageError("give exactly one of --trace, --classes, --rate and --concurrency")
    rows: list[PlannedRequest] = []
    wanted: tuple[TrafficClass, ...] = ()
    if trace is not None:
        rows = parse_trace(trace.read_text(encoding="utf-8").splitlines(), source=str(trace))
    elif classes is not None:
        wanted = load_file(classes, tuple[TrafficClass, ...])
    else:
        wanted = (_simple_class(rate, concurrency, seconds, prompt_tokens, output_tokens),)
    names = {row.traffic_class for row in rows} | {each.name for each in wanted}
    options = LoadOptions(base_url=url, objectives={name: objective or name for name in names})
    clock = SystemClock()
    prompts = PromptFactory(
        model=model, style=PromptStyle(style), seed=seed, run_salt=f"load-{clock.wall_time():.3f}"
    )
    generator = LoadGenerator(options, prompts, clock, classes=wanted, rows=rows, seed=seed)
    result = _run(generator)
    if out is not None:
        out.write_text("".join(format_records(result.records)), encoding="utf-8")
    _report(result, as_json)


def _simple_class(
    rate: float | None, concurrency: int | None, seconds: float, prompt_tokens: int, output_tokens: int
) -> TrafficClass:
    arrivals = (
        ClosedLoop(concurrency=concurrency, end_s=seconds)
        if concurrency is not None
        else Poisson(rate_per_s=rate or 1.0, end_s=seconds)
    )
    return TrafficClass(
        name="load",
        arrivals=arrivals,
        prompt=Fixed(tokens=prompt_tokens),
        output=Fixed(tokens=output_tokens),
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
    table = Table(box=None, header_style="bold")
    for column in (
        "class", "requests", "completed", "rejected", "evicted", "failed", "TTFT p50", "p95", "p99",
        "TPOT p50", "tokens/s",
    ):  # fmt: skip
        table.add_column(column, justify="left" if column == "class" else "right")
    for name, summary in by_class.items():
        label = f"{name} (closed loop)" if summary.is_closed_loop else name
        counts = (summary.requests, summary.completed, summary.rejected, summary.evicted, summary.failed)
        times = (summary.ttft.p50_s, summary.ttft.p95_s, summary.ttft.p99_s, summary.tpot.p50_s)
        shown = ["–" if math.isnan(value) else f"{value * 1000:.1f} ms" for value in times]
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
