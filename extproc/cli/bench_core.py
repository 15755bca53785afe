"""`extproc bench core`: what the policy core costs per request, and whether it stays within its limits."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import click
from rich.console import Console
from rich.progress import track
from rich.table import Table

from extproc.bench.core_cost import (
    Row,
    Shape,
    measure,
    measure_flow_churn,
    measure_heap_pair,
    measure_mass_cancellation,
    measure_memory,
    shapes,
)
from extproc.bench.pick_cost import PICKERS, PickRow, measure_pick
from extproc.clock import CpuClock

MAX_GROWTH = 2.0
MAX_HEAP_PAIRS = 150
MAX_BYTES = 2048
MAX_IDLE_RATIO = 1.3
MAX_PICK_PAIRS = 400
PICK_ENDPOINTS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreCost:
    """The result; `cycle_us` is that of 256 endpoints, the limits are in `problems` when they're broken."""

    growth_100_to_100000: float | None
    cycle_us: float
    heap_pair_us: float
    cycle_in_heap_pairs: float
    bytes_per_queued_request: float
    idle_flows_ratio: float
    idle_bands_ratio: float
    mass_cancellation_us: float
    flow_churn_us: float
    flow_churn_bytes: float
    pick_in_heap_pairs: float
    """The default picker at 1,024 endpoints."""
    rows: list[Row]
    picks: list[PickRow]

    @property
    def problems(self) -> list[str]:
        growth = self.growth_100_to_100000
        found = []
        if growth is not None and growth > MAX_GROWTH:
            found.append(f"a cycle grows {growth:.2f}x from 100 to 100,000 queued; at most {MAX_GROWTH}x")
        if self.cycle_in_heap_pairs > MAX_HEAP_PAIRS:
            pairs = f"{self.cycle_in_heap_pairs:.0f} heap pairs"
            found.append(f"a cycle costs {pairs} with 256 endpoints; at most {MAX_HEAP_PAIRS}")
        if self.bytes_per_queued_request > MAX_BYTES:
            found.append(f"{self.bytes_per_queued_request:.0f} bytes per queued request; at most {MAX_BYTES}")
        if self.pick_in_heap_pairs > MAX_PICK_PAIRS:
            pairs = f"{self.pick_in_heap_pairs:.0f} heap pairs"
            found.append(f"a pick costs {pairs} with {PICK_ENDPOINTS} endpoints; at most {MAX_PICK_PAIRS}")
        for name, value in (("flows", self.idle_flows_ratio), ("bands", self.idle_bands_ratio)):
            if value > MAX_IDLE_RATIO:
                found.append(f"idle {name} cost {value:.2f}x; at most {MAX_IDLE_RATIO}x")
        return found


@click.command()
@click.option("--quick", is_flag=True, help="Up to 10,000 queued requests only; skips the growth figure.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def core(quick: bool, as_json: bool) -> None:
    """Time one request's cycle in the policy core: completion, dispatch, arrival.

    Rows vary one dimension at a time: queued requests, flows, bands, endpoints, detector. Exits with 1 when a
    limit is broken: growth 2x, 150 heapq push + pop pairs a cycle at 256 endpoints, 2 KiB a queued request,
    400 pairs a pick of the default picker at 1,024 endpoints.

    Example: extproc bench core --json
    """
    result = run(quick=quick, is_silent=as_json)
    if as_json:
        click.echo(json.dumps({**asdict(result), "problems": result.problems}, indent=2))
    else:
        _print(result)
    if result.problems:
        raise click.exceptions.Exit(1)


def run(*, quick: bool, is_silent: bool) -> CoreCost:
    """Measures every row, with a progress bar on stderr."""
    clock = CpuClock()
    steps = shapes(quick)
    console = Console(stderr=True, quiet=is_silent)
    rows = [measure(shape, clock) for shape in track(steps, "measuring", console=console)]
    by_shape = {row.shape: row.cycle_us for row in rows}
    pair_us = measure_heap_pair(clock)
    small, large = (_growth_shape(queued) for queued in (100, 100_000))
    growth = by_shape[large] / by_shape[small] if large in by_shape else None
    cycle_us = by_shape[Shape(queued=10_000, endpoints=256)]
    churn_us, churn_bytes = measure_flow_churn(5000, clock)
    names = ["default"] if quick else sorted(PICKERS)
    picks = [
        measure_pick(clock, picker=name, endpoints=PICK_ENDPOINTS)
        for name in track(names, "picking", console=console)
    ]
    return CoreCost(
        growth_100_to_100000=growth,
        cycle_us=cycle_us,
        heap_pair_us=pair_us,
        cycle_in_heap_pairs=cycle_us / pair_us,
        bytes_per_queued_request=measure_memory(Shape(queued=10_000 if quick else 100_000, flows=100)),
        idle_flows_ratio=by_shape[Shape(queued=5000, idle_flows=5000)] / by_shape[Shape(queued=5000)],
        idle_bands_ratio=by_shape[Shape(idle_bands=64)] / by_shape[Shape()],
        mass_cancellation_us=measure_mass_cancellation(10_000 if quick else 100_000, clock),
        flow_churn_us=churn_us,
        flow_churn_bytes=churn_bytes,
        pick_in_heap_pairs=next(row.pairs for row in picks if row.picker == "default"),
        rows=rows,
        picks=picks,
    )


def _growth_shape(queued: int) -> Shape:
    return Shape(queued=queued, flows=min(queued, 1000), bands=8, endpoints=4)


def _print(result: CoreCost) -> None:
    table = Table("queued", "flows", "bands", "pool", "detector", "idle", "submit µs", "cycle µs")
    for row in result.rows:
        shape = row.shape
        idle = f"{shape.idle_flows} flows" if shape.idle_flows else ""
        idle = f"{shape.idle_bands} bands" if shape.idle_bands else idle
        cells = (shape.queued, shape.flows, shape.bands, shape.endpoints, shape.detector, idle)
        table.add_row(*(str(cell) for cell in cells), f"{row.submit_us:.1f}", f"{row.cycle_us:.1f}")
    console = Console()
    console.print(table)
    if result.growth_100_to_100000 is not None:
        console.print(f"growth from 100 to 100,000 queued: {result.growth_100_to_100000:.2f}x")
    console.print(
        f"cycle with 256 endpoints: {result.cycle_us:.1f} µs = {result.cycle_in_heap_pairs:.0f} heap pairs "
        f"of {result.heap_pair_us:.3f} µs"
    )
    console.print(f"memory per queued request: {result.bytes_per_queued_request:.0f} bytes")
    console.print(
        f"mass cancellation: {result.mass_cancellation_us:.1f} µs each; churn of flows: "
        f"{result.flow_churn_us:.1f} µs and {result.flow_churn_bytes:.1f} bytes left each"
    )
    for pick in result.picks:
        console.print(
            f"pick among {pick.endpoints} endpoints, {pick.picker}: {pick.pick_us:.1f} µs "
            f"= {pick.pairs:.0f} heap pairs"
        )
    for problem in result.problems:
        console.print(f"[red]over the limit:[/red] {problem}")
