"""Every suite of the catalogue can be built, every claim names cells that exist, reports are one file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from extproc.bench.claims.catalogue import CLAIMS
from extproc.bench.results import SuiteResults
from extproc.bench.suite import Cell, Setting
from extproc.bench.suites.catalogue import SUITES
from extproc.bench.virtual import build_scenario
from extproc.cli import cli
from extproc.sim.files import load_scenario


@pytest.mark.parametrize("name", SUITES)
def test_every_cell_makes_a_scenario(name: str) -> None:
    suite = SUITES[name]
    assert suite.cells()
    for cell in suite.cells():
        scenario = build_scenario(suite, cell, 0)
        assert scenario.classes
    assert suite.reference in {arm.name for arm in suite.arms}


@pytest.mark.parametrize("name", CLAIMS)
def test_claims_are_evaluated_even_without_runs(name: str) -> None:
    rows = [check(SuiteResults(SUITES[name], ())) for check in CLAIMS[name]]
    assert rows
    assert not any(row.holds for row in rows)
    assert len({row.figure for row in rows}) == len(rows)


def test_list_names_every_suite() -> None:
    result = CliRunner().invoke(cli, ["bench", "list", "--json"])
    assert result.exit_code == 0
    assert list(json.loads(result.output)) == list(SUITES)


def test_an_unknown_suite_is_bad_usage() -> None:
    result = CliRunner().invoke(cli, ["bench", "run", "holdback", "--out", "x"])
    assert result.exit_code == 2
    assert "holdback-requests" in result.output


def test_run_resume_report_compare(tmp_path: Path) -> None:
    out = str(tmp_path / "first")
    command = [
        "bench",
        "run",
        "holdback-14b",
        "--arms",
        "eviction|holdback 0.8",
        "--runs",
        "1",
        "--workers",
        "1",
    ]
    first = CliRunner().invoke(cli, [*command, "--out", out, "--json"])
    assert first.exit_code == 0, first.output
    summary = json.loads(first.stdout)
    assert summary["suite"] == "holdback-14b"
    assert summary["arms"]["eviction @ 1/s (wave)"]["evictions"] > 0
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.jsonl")}
    again = CliRunner().invoke(cli, [*command, "--out", out, "--json"])
    assert json.loads(again.stdout) == summary
    assert stamps == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.jsonl")}
    page = CliRunner().invoke(cli, ["bench", "report", out])
    assert page.exit_code == 0
    text = (tmp_path / "first" / "report.html").read_text()
    assert "<svg" in text
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    same = CliRunner().invoke(cli, ["bench", "compare", out, out])
    assert same.exit_code == 0


def test_an_exported_cell_is_the_scenario_that_the_suite_runs(tmp_path: Path) -> None:
    arguments = ["bench", "export", "no-resume", "--arm", "eviction, no resume", "--load", "1/s"]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    file = tmp_path / "scenario.yaml"
    file.write_text(result.output)
    cell = Cell(suite="no-resume", load="1/s", arm="eviction, no resume", setting=Setting.WAVE)
    ours = build_scenario(SUITES["no-resume"], cell, 0)
    theirs = load_scenario(file).scenario()
    assert (theirs.classes, theirs.flow_control, theirs.delays) == (
        ours.classes,
        ours.flow_control,
        ours.delays,
    )
    assert [spec.engine for spec in theirs.pool] == [spec.engine for spec in ours.pool]
    assert CliRunner().invoke(cli, [*arguments[:4], "nobody", *arguments[5:]]).exit_code == 2
