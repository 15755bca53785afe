"""`extproc bench agree`: the same cells over real sockets and in virtual time, figure by figure."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

import click
from rich.console import Console
from rich.table import Table

from extproc.bench.agreement import COMPARISONS, Agreement, Comparison, compare_ways
from extproc.bench.suites.catalogue import SUITES


@click.command("agree")
@click.argument(
    "names", nargs=-1, type=click.Choice([each.suite for each in COMPARISONS]), metavar="[NAME]..."
)
@click.option(
    "--speed", type=click.FloatRange(0, min_open=True), help="Modelled seconds per real second, for all."
)
@click.option("--seed", default=0, show_default=True)
@click.option(
    "--within", default=0.20, show_default=True, help="Allowed difference of a figure, as a fraction."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def command(names: Sequence[str], speed: float | None, seed: int, within: float, as_json: bool) -> None:
    """Run cells of two suites through the real Envoy and in virtual time, and set their figures side by side.

    First single requests over an idle stack measure what the local path costs (client, Envoy, extproc); the
    simulation is given that. Exit 1 when a judged figure differs by more than allowed or the local run is
    invalid. Takes about ten minutes.

    Example: extproc bench agree holdback-requests
    """
    console = Console(stderr=True)
    results: list[tuple[Comparison, Agreement]] = []
    for each in COMPARISONS:
        if names and each.suite not in names:
            continue
        wanted = dataclasses.replace(each, speed=speed or each.speed)
        with console.status(f"{wanted.suite}: about to start") as status:
            agreement = compare_ways(
                SUITES[wanted.suite],
                wanted.cell,
                seed,
                speed=wanted.speed,
                within=within,
                on_step=status.update,
            )
        results.append((wanted, agreement))
        if not as_json:
            _print(wanted, agreement)
    if as_json:
        click.echo(json.dumps([_as_dict(*result) for result in results]))
    if not all(agreement.agrees for _, agreement in results):
        raise click.exceptions.Exit(1)


def _as_dict(what: Comparison, agreement: Agreement) -> dict[str, object]:
    return {
        "suite": what.suite,
        "cell": what.cell.label,
        "speed": agreement.speed,
        "path_ms": agreement.path_s * 1000,
        "invalid": agreement.invalid,
        "agrees": agreement.agrees,
        "rows": [row.as_json() for row in agreement.rows],
    }


def _print(what: Comparison, agreement: Agreement) -> None:
    path_ms, speed = agreement.path_s * 1000, agreement.speed
    path = f"idle path {path_ms / speed:.1f} real ms = {path_ms:.1f} modelled ms"
    title = f"{what.suite}: {what.cell.label}, speed {speed:g}; {path}"
    table = Table(title=title, box=None, header_style="bold", title_justify="left")
    for column in ("figure", "local", "virtual, this path", "ratio", "agrees", "virtual, suite's path"):
        table.add_column(column, overflow="fold")
    for row in agreement.rows:
        word = "[green]yes[/]" if row.agrees else "[red]no[/]"
        ratio = "–" if row.ratio is None else f"{row.ratio:.2f}"
        table.add_row(
            row.figure,
            f"{row.local:.4g}",
            f"{row.virtual:.4g}",
            ratio,
            word if row.is_judged else "not judged",
            f"{row.virtual_assumed:.4g}",
        )
    console = Console()
    console.print(table)
    if agreement.invalid:
        console.print(f"[red]the local run is invalid: {agreement.invalid}[/]")
