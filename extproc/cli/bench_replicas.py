"""`extproc bench replicas`: what several replicas cost; with --virtual, what they do to latency."""

from __future__ import annotations

import dataclasses
import json
import math
import resource
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import click
import uvloop
from rich.console import Console
from rich.status import Status
from rich.table import Table

from extproc.bench.replicas.allocation import measure_allocation
from extproc.bench.replicas.scaling import ScalingResult, measure_scaling
from extproc.bench.replicas.virtual import SUITES, SharingMode, VirtualRow, run_suite


@click.command()
@click.option("--virtual", is_flag=True, help="Run the suites in virtual time instead of real processes.")
@click.option(
    "--counts",
    default=None,
    metavar="N[,N...]",
    help="Numbers of replicas.  [default: 1,2,4; virtual: 1,2,4,8]",
)
@click.option("--rounds", type=click.IntRange(1, 100), default=5, show_default=True, help="Real: rounds.")
@click.option(
    "--leg-seconds", type=click.FloatRange(0.2, 60), default=1.5, show_default=True, help="Real: a stretch."
)
@click.option("--seeds", type=click.IntRange(1, 100), default=1, show_default=True, help="Virtual: runs.")
@click.option(
    "--suite",
    "suites",
    multiple=True,
    type=click.Choice(sorted(SUITES)),
    help="Virtual: only this suite; repeatable.",
)
@click.option("--unshared", is_flag=True, help="Virtual: replicas that know nothing of each other.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def replicas(
    virtual: bool,
    counts: str | None,
    rounds: int,
    leg_seconds: float,
    seeds: int,
    suites: tuple[str, ...],
    unshared: bool,
    as_json: bool,
) -> None:
    """Measure groups of replicas: requests per second beside a do-nothing processor, calls to Redis per
    second and replica, and the time of one allocation for 16 replicas and 1,024 endpoints.

    With --virtual: interactive TTFT and batch time of the suites, against one replica.

    Example: extproc bench replicas --virtual --suite holdback-requests
    """
    numbers = _numbers(counts or ("1,2,4,8" if virtual else "1,2,4"))
    console = Console(stderr=True)
    shown: AbstractContextManager[Status | None] = console.status("") if not as_json else nullcontext()
    with shown as status:
        on_step: Callable[[str], None] = status.update if status is not None else lambda text: None
        if virtual:
            rows = _virtual(numbers, seeds, suites or tuple(SUITES), unshared, on_step)
            result: dict[str, Any] = {"rows": [dataclasses.asdict(row) for row in rows]}
        else:
            result = _real(numbers, rounds, leg_seconds, on_step)
    if as_json:
        click.echo(json.dumps(result))
    elif virtual:
        _print_virtual(rows)
    else:
        _print_real(result)


def _numbers(text: str) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not a list of numbers", param_hint="--counts") from error
    if numbers[0] != 1 or sorted(set(numbers)) != numbers or numbers[-1] > 64:
        raise click.BadParameter(
            "give rising numbers from 1 to 64, 1 first: it is what the others are compared with",
            param_hint="--counts",
        )
    return numbers


def _virtual(
    numbers: list[int],
    seeds: int,
    suites: tuple[str, ...],
    unshared: bool,
    on_step: Callable[[str], None],
) -> list[VirtualRow]:
    rows: list[VirtualRow] = []
    for name in suites:
        sharing: SharingMode = "none" if unshared else "leased"
        rows += run_suite(SUITES[name], numbers, range(seeds), on_step, sharing=sharing)
    return rows


def _real(
    numbers: list[int], rounds: int, leg_seconds: float, on_step: Callable[[str], None]
) -> dict[str, Any]:
    on_step("allocating for 16 replicas and 1,024 endpoints")
    median_s = measure_allocation(16, 1024, 20, _cpu_s)
    scaling = uvloop.run(measure_scaling(numbers, rounds, leg_seconds, on_step))
    return {**_scaling(scaling), "allocation_ms": round(1000 * median_s, 2)}


def _cpu_s() -> float:
    """Processor time of this process: what else runs on the machine doesn't count."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _scaling(result: ScalingResult) -> dict[str, Any]:
    return {
        "scaling_vs_noop": round(result.scaling_vs_noop, 3),
        "redis_calls_per_s_and_replica_idle": round(result.store_calls_idle, 1),
        "redis_calls_per_s_and_replica_busy": round(result.store_calls_busy, 1),
        "rows": [
            {
                "processor": setup.name,
                "processes": setup.processes,
                "requests_per_s": round(setup.requests_per_s, 1),
                "failures": setup.failures,
            }
            for setup in result.setups
        ],
    }


def _print_real(result: dict[str, Any]) -> None:
    table = Table("processor", "processes", "req/s", "failed")
    for row in result["rows"]:
        table.add_row(*(str(value) for value in row.values()))
    console = Console()
    console.print(table)
    for name, value in result.items():
        if name != "rows":
            console.print(f"{name}: {value if isinstance(value, int) else round(value, 3)}")


def _print_virtual(rows: list[VirtualRow]) -> None:
    table = Table(
        *("suite", "replicas", "TTFT p50\nms", "p95\nms", "vs one", "batch\ns", "vs one"),
        *("evicted", "reports\n/s"),
        box=None,
        padding=(0, 1, 0, 0),
    )
    for row in rows:
        table.add_row(
            row.suite,
            str(row.replicas),
            f"{1000 * row.ttft_p50_s:.0f}",
            f"{1000 * row.ttft_p95_s:.0f}",
            f"{row.ttft_p95_ratio:.2f}",
            f"{row.batch_time_s:.1f}",
            f"{row.batch_time_ratio:.3f}",
            str(row.evictions),
            "-" if math.isnan(row.reports_per_s) else f"{row.reports_per_s:.0f}",
        )
    Console().print(table)
