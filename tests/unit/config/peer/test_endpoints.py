"""The peer's endpoints file, and the command that reads both files."""

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from extproc.cli import cli
from extproc.config.endpoints import EndpointList
from extproc.config.loader import load_text
from extproc.config.peer.endpoints import import_endpoints
from extproc.errors import ConfigError

POOL = """
endpoints:
- {name: gpu-a, namespace: prod, address: 10.1.2.3, port: "8001", labels: {rack: 7}}
- {name: gpu-b, address: "2001:db8::1", port: "8000", weight: 3}
"""


def test_an_endpoints_file_is_read_by_our_loader_afterwards() -> None:
    config, notes = import_endpoints(POOL)
    first, second = load_text(yaml.safe_dump(config), EndpointList).endpoints
    assert (first.address, dict(first.labels)) == ("10.1.2.3:8001", {"rack": "7"})
    assert second.address == "[2001:db8::1]:8000"
    assert [note.path for note in notes] == ["endpoints[0].namespace", "endpoints[1].weight"]


def test_missing_parts_are_problems() -> None:
    with pytest.raises(ConfigError) as caught:
        import_endpoints("endpoints: [{name: a}]")
    assert [problem.path for problem in caught.value.problems] == [
        "endpoints[0].address",
        "endpoints[0].port",
    ]


def test_the_command_prints_yaml_notes_and_json(tmp_path: Path) -> None:
    file, target = tmp_path / "pool.yaml", tmp_path / "ours.yaml"
    file.write_text(POOL)
    run = CliRunner().invoke
    result = run(cli, ["import", "--endpoints", str(file)])
    assert result.exit_code == 0
    assert yaml.safe_load(result.stdout)["endpoints"][0]["name"] == "gpu-a"
    assert "line 3, endpoints[0].namespace: not imported" in result.stderr
    assert run(cli, ["import", "--endpoints", "--strict", str(file), "-o", str(target)]).exit_code == 1
    assert load_text(target.read_text(), EndpointList).endpoints[1].name == "gpu-b"
    result = run(cli, ["import", "--endpoints", "--json", str(file)])
    assert [note["line"] for note in json.loads(result.stdout)["notes"]] == [3, 4]
