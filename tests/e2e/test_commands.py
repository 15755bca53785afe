"""The commands as a user runs them: exit codes, output, and that Ctrl-C leaves no process behind."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from extproc.stack.process import answers_http, free_ports
from tests.support.stack import ProcessMark
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[2]
EXTPROC = [sys.executable, "-m", "extproc"]


def run(*arguments: str, mark: ProcessMark, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*EXTPROC, *arguments], cwd=ROOT, env=mark.env, capture_output=True, text=True, timeout=timeout_s
    )


@contextmanager
def running(*arguments: str, mark: ProcessMark, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*EXTPROC, *arguments], cwd=ROOT, env=mark.env, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def config_file(directory: Path, port: int, admin_port: int) -> Path:
    config = {
        "server": {"host": "127.0.0.1", "port": port, "drain_delay_s": 0},
        "admin": {"host": "127.0.0.1", "port": admin_port},
        "endpoints": {
            "discovery": [{"type": "static", "endpoints": [{"name": "a", "address": "127.0.0.1:9"}]}]
        },
    }
    path = directory / "extproc.yaml"
    path.write_text(json.dumps(config))
    return path


def test_serve_becomes_ready_and_drains_on_sigterm(tmp_path: Path, mark: ProcessMark) -> None:
    port, admin_port = free_ports(2)
    file = str(config_file(tmp_path, port, admin_port))
    with running("serve", "--config", file, mark=mark, log=tmp_path / "log") as process:
        wait_for(lambda: answers_http("127.0.0.1", admin_port, "/readyz"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


@pytest.mark.slow
def test_up_with_replicas_shares_the_pool_and_leaves_nothing(mark: ProcessMark) -> None:
    arguments = ["--replicas", "3", "--servers", "2", "--slots", "8", "--port", "0", "--seconds", "8"]
    result = run("up", *arguments, "--json", mark=mark)
    assert result.returncode == 0, result.stderr
    snapshots = [json.loads(line) for line in result.stdout.splitlines()]
    last = snapshots[-1]
    assert [replica["state"] for replica in last["replicas"]] == ["leased"] * 3
    assert sum(replica["is_leader"] for replica in last["replicas"]) == 1
    assert all(sum(r["credits"] for r in one["replicas"] if r) <= 16 for one in snapshots)
    assert sum(sum(replica["inflight"].values()) for replica in last["replicas"]) > 8
    assert last["load"]["failed"] == 0


def test_serve_says_which_port_is_taken(tmp_path: Path, mark: ProcessMark) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = run("serve", "--config", str(config_file(tmp_path, port, 0)), mark=mark)
    assert result.returncode == 1
    assert str(port) in result.stderr
    assert "Traceback" not in result.stderr


def test_serve_refuses_a_bad_configuration_with_every_problem(tmp_path: Path, mark: ProcessMark) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("server: {prot: 1}\nflow_control:\n  detector: {type: concurency-detector}\n")
    result = run("serve", "--config", str(file), mark=mark)
    assert result.returncode == 2
    assert 'server.prot (line 1): unknown key; did you mean "port"?' in result.stderr
    assert 'did you mean "concurrency-detector"?' in result.stderr


def test_up_stays_and_its_curl_line_works(tmp_path: Path, mark: ProcessMark) -> None:
    log = tmp_path / "log"
    with running("up", "--port", "0", mark=mark, log=log) as process:
        wait_for(lambda: "Ctrl-C ends" in log.read_text() or process.poll() is not None)
        text = log.read_text()
        lines = text[text.index("  curl") : text.index("Look at it")].strip()
        answer = subprocess.run(lines, shell=True, capture_output=True, text=True, timeout=60).stdout
        assert answer.strip().endswith("data: [DONE]"), text + answer
        for name, arguments in re.findall(r"^  extproc (top|explain) (.+)$", text, re.MULTILINE):
            once = ["--once"] if name == "top" else []
            looked = run(name, *arguments.split(), *once, mark=mark)
            assert looked.returncode == 0, looked.stderr
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    wait_for(lambda: mark.pids() == [])
    logs = re.search(r"logs: +(\S+)", text)
    assert logs is not None
    assert not Path(logs[1]).exists()


def test_up_that_is_killed_leaves_no_process(tmp_path: Path, mark: ProcessMark) -> None:
    log = tmp_path / "log"
    with running("up", "--port", "0", mark=mark, log=log) as process:
        wait_for(lambda: "Ctrl-C ends" in log.read_text() or process.poll() is not None)
        assert len(mark.pids()) == 4
        process.kill()
    wait_for(lambda: mark.pids() == [])


def test_up_follows_a_configuration_file(tmp_path: Path, mark: ProcessMark) -> None:
    log = tmp_path / "log"
    with running("up", "--port", "0", "--config", "config/extproc.yaml", mark=mark, log=log) as process:
        wait_for(lambda: "Ctrl-C ends" in log.read_text() or process.poll() is not None)
        found = re.search(r"admin: +(\S+)/ui", log.read_text())
        assert found is not None, log.read_text()
        with urllib.request.urlopen(f"{found[1]}/config", timeout=10) as answer:
            assert json.load(answer)["requests"]["priority"]["objectives"] == {"interactive": 10, "batch": -1}
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


SHORT_DEMO = "demo --seconds 5 --arms eviction+holdback --json"
"""As README.md shows it."""


def test_demo_ends_with_one_json_line(mark: ProcessMark) -> None:
    result = run(*SHORT_DEMO.split(), mark=mark)
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout.splitlines()[-1])
    arm = answer["arms"][0]
    assert arm["name"] == "eviction+holdback"
    assert arm["interactive"]["requests"] > 10
    assert 0 < arm["interactive"]["ttft_p50_s"] <= arm["interactive"]["ttft_p95_s"]
    assert arm["batch"]["output_tokens_per_s"] > 0
    assert arm["batch"]["tokens_lost"] == 0
    assert arm["ledger_in_flight"] == 0
    assert answer["envoy_version"].startswith("1.")


@pytest.mark.slow
def test_demo_shows_what_flow_control_is_for(mark: ProcessMark) -> None:
    result = run("demo", "--json", mark=mark, timeout_s=110)
    assert result.returncode == 0, result.stderr
    none, eviction, holdback = json.loads(result.stdout.splitlines()[-1])["arms"]
    for arm in (eviction, holdback):
        assert arm["interactive"]["ttft_p95_s"] < 0.1 * none["interactive"]["ttft_p95_s"]
        assert arm["batch"]["output_tokens_per_s"] > 0.85 * none["batch"]["output_tokens_per_s"]
    assert holdback["evictions"] < eviction["evictions"]


def test_demo_interrupted_leaves_no_process(tmp_path: Path, mark: ProcessMark) -> None:
    log = tmp_path / "log"
    with running("demo", mark=mark, log=log) as process:
        wait_for(lambda: len(mark.pids()) == 5 or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130, log.read_text()
    wait_for(lambda: mark.pids() == [])


def test_demo_names_the_arms_that_exist(mark: ProcessMark) -> None:
    result = run("demo", "--arms", "none,magic", mark=mark)
    assert result.returncode == 2
    assert "magic" in result.stderr
    assert "eviction+holdback" in result.stderr
