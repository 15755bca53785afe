"""`extproc bench gateway`: what the external processor costs, against Envoy alone and a do-nothing
processor.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import click
import uvloop
from rich.console import Console
from rich.status import Status
from rich.table import Table

from extproc.bench.gateway.measure import ALL_ARMS, GatewayPlan, GatewayResult, measure


@click.command()
@click.option("--quick", is_flag=True, help="One short round, within 50 s; for a first look.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--arms",
    default=",".join(ALL_ARMS),
    show_default=True,
    help="What is compared, of: envoy, noop, lean, duplex.",
)
@click.option("--rounds", type=click.IntRange(1, 100), help="Rounds over all cells.")
@click.option("--leg-seconds", type=click.FloatRange(0.1, 60), help="Length of one measured stretch.")
@click.option("--memory-requests", type=click.IntRange(0), help="Requests of the memory check.")
def gateway(
    quick: bool,
    as_json: bool,
    arms: str,
    rounds: int | None,
    leg_seconds: float | None,
    memory_requests: int | None,
) -> None:
    """Measure added latency and CPU time per request through the real Envoy, on loopback.

    Four set-ups are measured in turn within one run: Envoy alone, with a Python processor that does nothing,
    with ours in lean mode, and with ours full-duplex. CPU time is per request and process.

    Example: extproc bench gateway --quick --json
    """
    names = tuple(name.strip() for name in arms.split(","))
    if unknown := sorted(set(names) - set(ALL_ARMS)):
        raise click.BadParameter(f"unknown: {', '.join(unknown)}; known are {', '.join(ALL_ARMS)}")
    plan = GatewayPlan.quick() if quick else GatewayPlan()
    plan = dataclasses.replace(
        plan,
        arms=names,
        rounds=rounds or plan.rounds,
        leg_s=leg_seconds or plan.leg_s,
        memory_requests=plan.memory_requests if memory_requests is None else memory_requests,
    )
    console = Console(stderr=True)
    shown: AbstractContextManager[Status | None] = console.status("") if not as_json else nullcontext()
    with shown as status:
        on_leg: Callable[[str], None] = status.update if status is not None else lambda text: None
        result = uvloop.run(measure(plan, on_leg))
    if as_json:
        click.echo(json.dumps(as_dict(result)))
    else:
        _print(result)


def as_dict(result: GatewayResult) -> dict[str, object]:
    """The result for JSON; figures that were not measured are null."""

    def rounded(value: float | None) -> float | None:
        return None if value is None else round(value, 3)

    return {
        "cpu_ratio_vs_noop": rounded(result.cpu_ratio_vs_noop),
        "cpu_ratio_256_vs_16_tokens": rounded(result.cpu_ratio_256_vs_16_tokens),
        "added_p50_ms": rounded(result.added_p50_ms),
        "added_p99_ms": rounded(result.added_p99_ms),
        "rss_growth_mib": rounded(result.rss_growth_mib),
        "memory_requests": result.memory_requests,
        "rows": [row.as_dict() for row in result.rows],
    }


def _print(result: GatewayResult) -> None:
    table = Table(
        *("arm", "chunks", "open", "req/s", "p50\nms", "p99\nms", "CPU us:\nenvoy", "\nprocessor", "failed"),
        box=None,
        padding=(0, 2, 0, 0),
    )
    for row in result.rows:
        cpu = row.cpu_us
        table.add_row(
            row.arm,
            str(row.tokens),
            str(row.concurrency),
            f"{row.requests / row.duration_s:.0f}" if row.duration_s else "-",
            f"{row.p50_ms:.2f}",
            f"{row.p99_ms:.2f}",
            f"{cpu['envoy']:.0f}",
            f"{cpu['processor']:.0f}" if "processor" in cpu else "-",
            str(row.failures),
        )
    console = Console()
    console.print(table)
    for name, value in as_dict(result).items():
        if name != "rows":
            console.print(f"{name}: {value}")
