"""`extproc emulate` as a process: how it says that it is ready, how it ends, what it refuses."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

from click.testing import CliRunner

from extproc.cli.emulate import emulate, engine_config
from extproc.sim.server_config import SchedulingPolicy

ROOT = Path(__file__).parents[2]


def command(*options: str) -> list[str]:
    return [sys.executable, "-m", "extproc", "emulate", *options]


def test_it_says_where_it_listens_serves_there_and_ends_on_sigterm() -> None:
    arguments = command("--port", "0", "--model", "mine", "--hardware", "h200-qwen2.5-1.5b")
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, cwd=ROOT) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        assert line.startswith("listening on http://127.0.0.1:")
        with urllib.request.urlopen(line.split()[-1] + "/v1/models", timeout=10) as response:
            models = json.loads(response.read())
        server.send_signal(signal.SIGTERM)
        assert server.wait(timeout=20) == 0
    assert models["data"][0]["id"] == "mine"
    assert models["data"][0]["max_model_len"] == 32768


def test_a_port_that_is_taken_is_one_clear_message() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = subprocess.run(
            command("--port", str(port)), capture_output=True, text=True, cwd=ROOT, timeout=30, check=False
        )
    assert result.returncode == 1
    assert f"127.0.0.1:{port}" in result.stderr
    assert "Traceback" not in result.stderr


def test_limits_come_from_the_hardware_file_unless_given() -> None:
    engine = engine_config("h200-qwen2.5-32b", {"max_num_seqs": 16, "scheduling_policy": "priority"})
    assert (engine.max_num_seqs, engine.kv_blocks) == (16, 16_717)
    assert engine.scheduling is SchedulingPolicy.PRIORITY
    small = engine_config(None, {"num_gpu_blocks": 11})
    assert small.max_model_len == small.usable_kv_tokens == 160


def test_impossible_options_are_refused_by_name() -> None:
    for options, named in (
        (["--num-gpu-blocks", "1"], "kv_blocks"),
        (["--hardware", "h300"], "h300"),
        (["--speed", "0"], "--speed"),
        (["--fault", "meteor"], "meteor"),
        (["--max-num-seqs", "0"], "max_num_seqs"),
    ):
        result = CliRunner().invoke(emulate, options)
        assert result.exit_code != 0
        assert named in result.output + str(result.exception)
