"""The real Envoy accepts the hand-written file and what `extproc envoy-config` prints."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from extproc.cli import cli
from extproc.stack.envoy import ProcessingMode
from extproc.stack.local import envoy_binary

ROOT = Path(__file__).parents[3]


def validate(path: Path) -> None:
    argv = [envoy_binary(), "--mode", "validate", "-c", str(path), "--log-level", "warning"]
    result = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr[-2000:]
    assert "OK" in result.stdout


def test_the_hand_written_file() -> None:
    validate(ROOT / "envoy" / "envoy.yaml")


@pytest.mark.parametrize("mode", [mode.value for mode in ProcessingMode])
def test_every_mode_that_the_command_prints(mode: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["envoy-config", "--mode", mode, "--listen", "127.0.0.1:8088"])
    assert result.exit_code == 0, result.output
    path = tmp_path / "envoy.yaml"
    path.write_text(result.output)
    validate(path)


def test_fixed_endpoints_and_names(tmp_path: Path) -> None:
    arguments = ["--extproc", "extproc:9002", "--endpoint", "vllm-0:8000", "--endpoint", "vllm-1:8000"]
    result = CliRunner().invoke(cli, ["envoy-config", "--json", *arguments])
    assert result.exit_code == 0, result.output
    path = tmp_path / "envoy.json"
    path.write_text(result.output)
    validate(path)


def test_several_replicas(tmp_path: Path) -> None:
    arguments = ["--extproc", "10.0.0.1:9002", "--extproc", "[fd00::2]:9002", "--extproc", "9003"]
    result = CliRunner().invoke(cli, ["envoy-config", "--json", *arguments])
    assert result.exit_code == 0, result.output
    clusters = {one["name"]: one for one in json.loads(result.output)["static_resources"]["clusters"]}
    hosts = clusters["extproc"]["load_assignment"]["endpoints"][0]["lb_endpoints"]
    addresses = [host["endpoint"]["address"]["socket_address"] for host in hosts]
    found = [(address["address"], address["port_value"]) for address in addresses]
    assert found == [("10.0.0.1", 9002), ("fd00::2", 9002), ("127.0.0.1", 9003)]
    path = tmp_path / "envoy.json"
    path.write_text(result.output)
    validate(path)


def test_bad_addresses_are_usage_errors() -> None:
    result = CliRunner().invoke(cli, ["envoy-config", "--listen", "nowhere"])
    assert result.exit_code == 2
    assert "not host:port" in result.output
