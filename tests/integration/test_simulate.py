"""`extproc simulate` with the scenario files that ship."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from extproc.cli.simulate import simulate

FOLDER = Path(__file__).parents[2] / "config" / "scenarios"
SHIPPED = sorted(path.stem for path in FOLDER.glob("*.yaml"))


def run(name: str, *options: str) -> dict[str, object]:
    result = CliRunner().invoke(simulate, [str(FOLDER / f"{name}.yaml"), "--json", *options])
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert isinstance(data, dict)
    return data


def test_the_six_first_looks_are_shipped() -> None:
    assert {"steady", "burst", "kv-bound", "noisy-neighbour", "endpoint-loss", "scale-up"} <= set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_scenario_runs_to_its_end(name: str) -> None:
    data = run(name)
    classes = data["classes"]
    assert isinstance(classes, dict)
    for figures in classes.values():
        assert figures["unfinished"] == 0
        # Only a client that restarts instead of resuming may generate anything twice.
        assert figures["redone_tokens"] == 0 or name == "question-no-resume"
    assert data["preemptions"] == 0


def test_a_seed_is_reproducible_and_changes_the_result() -> None:
    assert run("steady", "--seed", "5") == run("steady", "--seed", "5")
    assert run("steady", "--seed", "5") != run("steady", "--seed", "6")


def test_records_have_one_line_for_each_request(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    data = run("burst", "--records", str(path))
    assert len(path.read_text("utf-8").splitlines()) == data["requests"]


def test_a_plot_is_one_page_that_needs_no_network(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    run("burst", "--plot", str(path))
    text = path.read_text("utf-8")
    assert text.count("<svg") == 6
    assert "evictions" in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    result = CliRunner().invoke(simulate, [str(FOLDER / "burst.yaml"), "--plot", str(tmp_path / "page.png")])
    assert result.exit_code == 2


def test_bad_files_are_named_with_line_and_field(tmp_path: Path) -> None:
    text = (FOLDER / "steady.yaml").read_text("utf-8")
    path = tmp_path / "bad.yaml"
    path.write_text(text.replace("horizon_s: 300", "horizn_s: 300"), "utf-8")
    result = CliRunner().invoke(simulate, [str(path)])
    assert result.exit_code != 0
    message = str(result.exception)
    assert "horizn_s" in message
    assert "horizon_s" in message
    assert "line" in message
