"""`extproc demo`: the product's point in one minute, on one machine, through a real Envoy."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

import click
import uvloop
from rich import box
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from extproc.bench.load_options import LoadProgress
from extproc.cli.demo_arms import ARMS, SERVERS, SLOTS, Arm, ArmResult, run_arm, stack_for
from extproc.errors import ExtprocError

_BAR_WIDTH = 40
_EIGHTHS = ("", "▏", "▎", "▍", "▌", "▋", "▊", "▉")


@click.command("demo")
@click.option(
    "--seconds",
    type=click.FloatRange(5, 600),
    default=16.0,
    show_default=True,
    help="About how long the batch job of each arm takes.",
)
@click.option(
    "--arms",
    default=",".join(arm.name for arm in ARMS),
    show_default=True,
    metavar="NAME[,NAME...]",
    help="Which arms to run, in this order.",
)
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object on the last line.")
def command(seconds: float, arms: str, as_json: bool) -> None:
    """Run Envoy, extproc and two emulated vLLM servers under a mixed load, without and with flow control.

    Exit code 0 only if every request of every arm had its answer and nothing was left in flight.

    Example: extproc demo --seconds 10 --arms none,eviction
    """
    chosen = _choose(arms)
    console = Console(stderr=as_json)
    console.print(
        f"2 traffic classes on {SERVERS} emulated vLLM servers with {SLOTS} slots each, through Envoy: batch "
        "(priority -1) fills every slot, interactive (priority 10) comes on top."
    )
    results = [_run(arm, seconds, console) for arm in chosen]
    console.print(_table(results))
    console.print(
        _bars("interactive TTFT p95", [(r.name, r.ttft_p95_s, f"{r.ttft_p95_s:.2f} s") for r in results])
    )
    rates = [(r.name, r.output_tokens_per_s, f"{r.output_tokens_per_s:.0f}") for r in results]
    console.print(_bars("batch tokens/s", rates))
    if as_json:
        click.echo(json.dumps(_as_json(results)))
    if not all(result.is_good for result in results):
        raise ExtprocError("not every request was answered, or the ledger is not empty: see the table")


def _choose(names: str) -> list[Arm]:
    by_name = {arm.name: arm for arm in ARMS}
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in by_name]
    if unknown or not wanted:
        raise click.BadParameter(
            f"{', '.join(unknown) or 'nothing'} given; known are {', '.join(by_name)}", param_hint="--arms"
        )
    return [by_name[name] for name in wanted]


def _run(arm: Arm, seconds: float, console: Console) -> ArmResult:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(f"{arm.name}: starting Envoy, extproc and the servers", total=None)

        def show(load: LoadProgress) -> None:
            progress.update(
                task,
                description=f"{arm.name}: {load.completed} answered, {load.open} open, "
                f"{load.evictions} evicted",
            )

        with stack_for(arm) as stack, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            result = runner.run(run_arm(arm, stack, seconds, show))
        progress.update(task, description=f"{arm.name}: all ended, {result.evictions} evicted")
    return result


def _table(results: Sequence[ArmResult]) -> Table:
    table = Table(
        title="Interactive TTFT, and what it cost the batch job", box=box.SIMPLE_HEAD, collapse_padding=True
    )
    table.add_column("flow control", no_wrap=True)
    for heading in ("p50", "p95", "batch\ntok/s", "evicted", "tokens\nlost", "429/503", "left"):
        table.add_column(heading, justify="right", no_wrap=True)
    for result in results:
        table.add_row(
            result.name,
            f"{result.ttft_p50_s:.3f} s",
            f"{result.ttft_p95_s:.3f} s",
            f"{result.output_tokens_per_s:.0f}",
            str(result.evictions),
            str(result.tokens_lost),
            str(result.rejected),
            str(result.ledger_in_flight),
        )
    return table


def _bars(title: str, rows: Sequence[tuple[str, float, str]]) -> str:
    """Horizontal bars in eighths of a character, the longest `_BAR_WIDTH` wide."""
    widest = max((value for _, value, _ in rows), default=0.0) or 1.0
    names = max(len(name) for name, _, _ in rows)
    lines = [title]
    for name, value, text in rows:
        eighths = max(1, round(8 * _BAR_WIDTH * value / widest))
        bar = "█" * (eighths // 8) + _EIGHTHS[eighths % 8]
        lines.append(f"  {name:<{names}}  {bar:<{_BAR_WIDTH}}  {text}")
    return "\n".join(lines)


def _as_json(results: Sequence[ArmResult]) -> dict[str, object]:
    return {
        "arms": [
            {
                "name": result.name,
                "interactive": {
                    "requests": result.interactive_requests,
                    "ttft_p50_s": round(result.ttft_p50_s, 4),
                    "ttft_p95_s": round(result.ttft_p95_s, 4),
                },
                "batch": {
                    "requests": result.batch_requests,
                    "output_tokens_per_s": round(result.output_tokens_per_s, 1),
                    "tokens_lost": result.tokens_lost,
                },
                "evictions": result.evictions,
                "rejected": result.rejected,
                "unfinished": result.unfinished,
                "ledger_in_flight": result.ledger_in_flight,
            }
            for result in results
        ],
        "envoy_version": results[-1].envoy_version,
    }
