"""Hardware files: all shipped ones load, say where they come from, and hold the residuals that they state."""

import dataclasses
from pathlib import Path

import pytest

from extproc.cli.sim_calibrate import measure, rewritten
from extproc.errors import ConfigError
from extproc.sim.calibration import Fit, evaluate, fit
from extproc.sim.files import hardware_folder, hardware_path, load_engine, load_hardware
from extproc.sim.hardware import Hardware

SHIPPED = sorted(path.stem for path in hardware_folder().glob("*.yaml"))


def test_the_four_machines_of_the_seed_reports_are_shipped() -> None:
    assert {"h200-qwen2.5-1.5b", "h200-qwen2.5-14b", "h200-qwen2.5-32b", "h100-seed002"} <= set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_file_states_provenance_rows_and_small_residuals(name: str) -> None:
    hardware = load_hardware(name)
    assert hardware.calibration
    for row in hardware.calibration:
        assert row.residual_fraction is not None
        assert abs(row.residual_fraction) < 0.15, row.name


def test_the_stated_residuals_are_what_the_coefficients_give() -> None:
    hardware = load_hardware("h200-qwen2.5-14b")
    rows = evaluate(hardware, hardware.engine.cost, measure, range(1, hardware.seeds + 1))
    for row, stated in zip(rows, hardware.calibration, strict=True):
        assert row.simulated == pytest.approx(stated.simulated, rel=0.20)


def small() -> Hardware:
    """The 1.5B machine with a tenth of its batch, for a fit that takes a second."""
    hardware = load_hardware("h200-qwen2.5-1.5b")
    row = hardware.calibration[0]
    classes = tuple(
        dataclasses.replace(each, arrivals=dataclasses.replace(each.arrivals, size=32))
        if each.name == "batch"
        else each
        for each in row.arm.classes
    )
    arm = dataclasses.replace(row.arm, classes=classes)
    return dataclasses.replace(
        hardware, fits=("sequence_s",), calibration=(dataclasses.replace(row, arm=arm, target=12.0),)
    )


def test_a_fit_moves_the_free_coefficient_only_and_meets_its_row() -> None:
    hardware = small()
    result = fit(hardware, measure, seeds=[1])
    assert result.cost.base_s == hardware.engine.cost.base_s
    assert result.cost.sequence_s > hardware.engine.cost.sequence_s
    assert abs(result.rows[0].residual_fraction or 1.0) < 0.05


def test_writing_a_fit_changes_coefficients_and_residuals_only(tmp_path: Path) -> None:
    text = hardware_path("h200-qwen2.5-1.5b").read_text("utf-8")
    hardware = load_hardware("h200-qwen2.5-1.5b")
    rows = tuple(
        dataclasses.replace(row, simulated=7.0, residual_fraction=0.5) for row in hardware.calibration
    )
    cost = dataclasses.replace(hardware.engine.cost, base_s=0.5)
    path = tmp_path / "changed.yaml"
    path.write_text(rewritten(text, Fit(cost, rows, 0.0, 1)), "utf-8")
    changed = load_hardware(str(path))
    assert changed.engine == dataclasses.replace(hardware.engine, cost=cost)
    assert changed.calibration == rows
    assert changed.provenance == hardware.provenance


def test_impossible_hardware_is_refused_with_field_and_line(tmp_path: Path) -> None:
    text = hardware_path("h200-qwen2.5-1.5b").read_text("utf-8")
    path = tmp_path / "bad.yaml"
    path.write_text(
        text.replace("base_s: 0.0", "base_s: -0.0", 1).replace("kv_blocks: 250001", "kv_blocks: 1")
    )
    with pytest.raises(ConfigError) as caught:
        load_hardware(str(path))
    assert "base_s" in str(caught.value)
    assert "line" in str(caught.value)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"h200-qwen2\.5-14b"):
        load_engine("h300")
