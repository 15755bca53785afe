"""`extproc bench load` as a user runs it, against a server on loopback in another process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    command = [sys.executable, "-m", "tests.support.canned_server", "4", "0.01"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
    finally:
        server.kill()
        server.communicate()


def _load(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "extproc", "bench", "load", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_a_trace_is_replayed(url: str, tmp_path: Path) -> None:
    trace, out = tmp_path / "day.jsonl", tmp_path / "records.jsonl"
    rows = [
        {"arrival_s": 0.02 * index, "prompt_tokens": 16, "output_tokens": 4, "class": f"c{index % 2}"}
        for index in range(10)
    ]
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = _load(url, "--trace", str(trace), "--json", "--out", str(out))
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert {name: each["completed"] for name, each in summary["classes"].items()} == {"c0": 5, "c1": 5}
    assert len(out.read_text().splitlines()) == 10


def test_a_server_that_is_not_there_fails_the_command() -> None:
    done = _load("http://127.0.0.1:9", "--concurrency", "1", "--seconds", "0.2")
    assert done.returncode == 1
    assert "failed" in done.stdout


def test_bad_usage_and_bad_traces_are_told(url: str, tmp_path: Path) -> None:
    assert _load(url).returncode == 2
    trace = tmp_path / "bad.jsonl"
    trace.write_text('{"arrival_s": 0}\n')
    done = _load(url, "--trace", str(trace))
    assert done.returncode == 2
    assert "line 1" in done.stderr
