"""`extproc bench idle-reuse`: every arm and every suspect over real sockets, once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from extproc.bench.idle_reuse.arms import SHIPPED


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_the_experiment_runs_to_its_end(tmp_path: Path) -> None:
    plot, out = tmp_path / "plot.svg", tmp_path / "out.json"
    command = [sys.executable, "-m", "extproc", "bench", "idle-reuse", "--cycles", "2", "--runs", "1"]
    command += ["--keep-alive", "0.5", "--plot", str(plot), "--out", str(out), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)
    assert measured == json.loads(out.read_text())
    assert {arm["probes"] for arm in measured["arms"].values()} == {64}
    assert measured["arms"][SHIPPED.name]["failed"] == 0
    for arm in measured["arms"].values():
        assert set(arm["codes"]) <= {"503 upstream_unavailable"}
    answers = {each["suspect"]: (each["status"], each["code"]) for each in measured["suspects"]}
    assert answers == {
        "evicted before response headers": (429, "evicted"),
        "no endpoint in the pool, no waiting for one": (503, "rejected_no_endpoints"),
        "flow control's queue is full": (429, "rejected_saturated"),
        "the server's port is closed": (503, "upstream_unavailable"),
        "the server answers 503 itself": (503, "503"),
    }
    assert plot.read_text().startswith("<svg")
