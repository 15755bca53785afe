"""`extproc bench load` as a user runs it, against a server on loopback in another process."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from extproc.stack.local import LocalStack
from tests.support.stack import running_stack


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
    done = _load("http://127.0.0.1:9", "--concurrency", "2", "--seconds", "0.2", "--json")
    assert done.returncode == 1
    failed = json.loads(done.stdout)["classes"]["interactive"]["failed"]
    assert 1 <= failed <= 8  # each loop pauses after a failure


def test_bad_usage_and_bad_traces_are_told(url: str, tmp_path: Path) -> None:
    assert _load(url).returncode == 2
    trace = tmp_path / "bad.jsonl"
    trace.write_text('{"arrival_s": 0}\n')
    done = _load(url, "--trace", str(trace))
    assert done.returncode == 2
    assert "line 1" in done.stderr
    done = _load(url, "--rate", "1", "--objective", "chat=interactive")
    assert done.returncode == 2
    assert "no class 'chat' here" in done.stderr
    assert _load(url, "--trace", str(trace), "--batch", "1").returncode == 2


@pytest.fixture(scope="module")
def shipped() -> Iterator[LocalStack]:
    """The shipped configuration but for its addresses, behind the real Envoy."""
    config = yaml.safe_load(Path("config/extproc.yaml").read_text())
    del config["server"], config["admin"], config["endpoints"]
    with running_stack(config, emulators=[["--speed", "20"]]) as stack:
        yield stack


def _dispatched(stack: LocalStack) -> dict[int, int]:
    """Requests that were let through so far, by band."""
    with urllib.request.urlopen(f"{stack.admin_url}/debug/state", timeout=10) as answer:
        return {band["priority"]: band["dispatched"] for band in json.load(answer)["bands"]}


def _bands_used(stack: LocalStack, *arguments: str) -> tuple[dict[int, int], dict[str, int]]:
    """What a run adds to each band, and how many requests of each class it completed."""
    before = _dispatched(stack)
    done = _load(stack.url, "--json", "--output-tokens", "4", *arguments)
    assert done.returncode == 0, done.stderr
    added = {band: count - before.get(band, 0) for band, count in _dispatched(stack).items()}
    classes = json.loads(done.stdout)["classes"]
    used = {band: count for band, count in added.items() if count}
    return used, {name: each["completed"] for name, each in classes.items()}


def test_load_without_options_is_interactive_and_batch_is_batch_in_the_shipped_configuration(
    shipped: LocalStack,
) -> None:
    used, completed = _bands_used(shipped, "--rate", "20", "--seconds", "1")
    assert used == {10: completed["interactive"]}
    used, completed = _bands_used(shipped, "--concurrency", "2", "--batch", "3", "--seconds", "0.5")
    assert set(used) == {10, -1}
    assert used[10] == completed["interactive"] > 0
    assert used[-1] >= completed["batch"] > 0


def test_classes_are_ranked_by_their_number_where_the_gateway_does_not_know_their_name(
    shipped: LocalStack, tmp_path: Path
) -> None:
    rows = [
        {"name": name, "priority": rank, "arrivals": {"type": "uniform", "rate_per_s": 20, "end_s": 0.2}}
        for name, rank in (("nightly", -1), ("urgent", 10), ("plain", 0), ("interactive", -5))
    ]
    path = tmp_path / "classes.yaml"
    path.write_text(yaml.safe_dump(rows))
    used, completed = _bands_used(shipped, "--classes", str(path))
    assert used == {
        -1: completed["nightly"],
        10: completed["urgent"] + completed["interactive"],  # a known objective goes before the number
        0: completed["plain"],
    }
    used, completed = _bands_used(shipped, "--classes", str(path), "--priority-in", "nowhere")
    assert used == {0: sum(completed.values()) - completed["interactive"], 10: completed["interactive"]}
    used, completed = _bands_used(shipped, "--classes", str(path), "--objective", "nightly=batch")
    assert used[-1] == completed["nightly"]
