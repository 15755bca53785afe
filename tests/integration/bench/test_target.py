"""A suite against a gateway that runs already: `extproc up`, the load, an interruption, and going on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.up import running_up

SUITE = ["--arms", "eviction", "--setting", "wave", "--scale", "0.02", "--runs", "2"]


def _command(url: str, out: Path) -> list[str]:
    run = [sys.executable, "-m", "extproc", "bench", "run", "holdback-requests", "--target", url]
    return [*run, "--loads", "2/s", *SUITE, "--out", str(out)]


def _wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.timeout(120)
def test_a_suite_against_a_running_gateway_goes_on_after_an_interruption(tmp_path: Path) -> None:
    out = tmp_path / "out"
    cell = out / "runs" / "2-s" / "eviction"
    with running_up("--slots", "2", "--seconds", "90") as url:
        command = _command(url, out)
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            _wait_for(cell / "wave-0000.json", process)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=20)
        assert process.returncode == 1
        assert "1 of 2 runs" in errors
        assert "the same command goes on" in errors
        written = (cell / "wave-0000.json").stat().st_mtime_ns

        done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=80)
        assert done.returncode == 0, done.stderr
    assert (cell / "wave-0000.json").stat().st_mtime_ns == written, "the first run was done again"
    summary = json.loads(done.stdout)
    figures = summary["arms"]["eviction @ 2/s (wave)"]
    assert figures["runs"] == 2
    assert figures["evictions"] > 0
    assert figures["tokens_redone"] == 0
    assert figures["rejected"] == 0
    assert figures["interactive"]["ttft_p50_s"] is not None
