"""`extproc sim calibrate`: fit the step costs of a hardware file, or check what it says of itself."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from extproc.bench.summary import summarize
from extproc.sim.calibration import Fit, evaluate, fit
from extproc.sim.files import hardware_path, load_hardware
from extproc.sim.hardware import CalibrationRow, Hardware
from extproc.sim.server_config import StepCost
from extproc.workload.record import RequestRecord

_COEFFICIENTS = ("base_s", "prefill_token_s", "sequence_s", "context_token_s")


@click.command()
@click.argument("hardware")
@click.option("--write", is_flag=True, help="Write coefficients and residuals into the file.")
@click.option("--check", is_flag=True, help="Only simulate the rows with the file's own coefficients.")
@click.option("--seeds", type=click.IntRange(1, 50), help="Runs of each figure, instead of the file's.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def calibrate(hardware: str, write: bool, check: bool, seeds: int | None, as_json: bool) -> None:
    """Fit HARDWARE (a file, or the name of a shipped one) to the calibration rows that it cites.

    Example: extproc sim calibrate h200-qwen2.5-1.5b --check
    """
    loaded = load_hardware(hardware)
    seed_list = list(range(1, (seeds or loaded.seeds) + 1))
    if check or not loaded.fits:
        rows = evaluate(loaded, loaded.engine.cost, measure, seed_list)
        result = Fit(loaded.engine.cost, rows, 0.0, 1)
    else:
        result = _fit_with_progress(loaded, seed_list)
    if write:
        path = hardware_path(hardware)
        path.write_text(rewritten(path.read_text("utf-8"), result), "utf-8")
    _show(loaded, result, as_json)


def measure(records: Sequence[RequestRecord], traffic_class: str, figure: str) -> float:
    """One figure of one class, as the bench defines it."""
    summary = summarize([each for each in records if each.traffic_class == traffic_class], name=traffic_class)
    if figure.startswith("ttft_"):
        return float(getattr(summary.ttft, figure.removeprefix("ttft_")))
    return float(getattr(summary, figure))


def rewritten(text: str, result: Fit) -> str:
    """The file's text with new coefficients, simulated figures and residuals; all else stays as it is."""
    for name in _COEFFICIENTS:
        value = f"{getattr(result.cost, name):.3g}"
        text = re.sub(rf"(?m)^(    {name}: )\S+$", rf"\g<1>{value}", text, count=1)
    text = _fill_in(text, "simulated", [row.simulated for row in result.rows])
    return _fill_in(text, "residual_fraction", [row.residual_fraction for row in result.rows])


def _fill_in(text: str, key: str, figures: Sequence[float | None]) -> str:
    """Set the rows' `key`, which the file holds once for each row, in order."""
    values = iter(figures)
    return re.sub(rf"(?m)^(    {key}: )\S+$", lambda found: f"{found[1]}{next(values) or 0.0:.4g}", text)


def _fit_with_progress(hardware: Hardware, seeds: Sequence[int]) -> Fit:
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("fitting", total=None)

        def on_evaluation(loss: float) -> None:
            progress.update(task, advance=1, description=f"fitting, loss {loss:.4f}")

        return fit(hardware, measure, seeds=seeds, on_evaluation=on_evaluation)


def _show(hardware: Hardware, result: Fit, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(_as_data(result)))
        return
    console = Console()
    costs = Table("coefficient", "file", "fitted", title=hardware.description)
    for name in _COEFFICIENTS:
        mark = "" if name in hardware.fits else " (kept)"
        old, new = getattr(hardware.engine.cost, name), getattr(result.cost, name)
        costs.add_row(name + mark, f"{old:.3g}", f"{new:.3g}")
    rows = Table("calibration row", "target", "simulated", "residual", "source")
    for row in result.rows:
        rows.add_row(row.name, f"{row.target:g}", _number(row.simulated), _percent(row), row.source)
    console.print(costs, rows)


def _as_data(result: Fit) -> dict[str, object]:
    cost: StepCost = result.cost
    return {
        "cost": {name: getattr(cost, name) for name in _COEFFICIENTS},
        "loss": result.loss,
        "evaluations": result.evaluations,
        "rows": [
            {
                "name": row.name,
                "target": row.target,
                "simulated": row.simulated,
                "residual_fraction": row.residual_fraction,
            }
            for row in result.rows
        ],
    }


def _number(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.4g}"


def _percent(row: CalibrationRow) -> str:
    return "-" if row.residual_fraction is None else f"{row.residual_fraction:+.1%}"
