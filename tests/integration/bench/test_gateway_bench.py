"""`extproc bench gateway`: every promised figure is there, measured on answers that all succeeded."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_the_result_holds_every_figure() -> None:
    argv = [sys.executable, "-m", "extproc", "bench", "gateway", "--json", "--rounds", "1"]
    argv += ["--leg-seconds", "0.2", "--memory-requests", "200"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=110, check=True)
    result = json.loads(done.stdout)
    for name in ("cpu_ratio_vs_noop", "cpu_ratio_256_vs_16_tokens"):
        assert 0.3 < result[name] < 10, name
    for name in ("added_p50_ms", "added_p99_ms", "rss_growth_mib"):
        assert isinstance(result[name], float), name
    rows = result["rows"]
    assert {row["arm"] for row in rows} == {"envoy", "noop", "lean", "duplex"}
    assert {(row["tokens"], row["concurrency"]) for row in rows} == {
        (tokens, concurrency) for tokens in (1, 256) for concurrency in (1, 64, 512)
    }
    for row in rows:
        assert row["failures"] == 0
        assert row["requests"] > 0
        assert ("processor" in row["cpu_us_per_request"]) == (row["arm"] != "envoy")


def test_an_unknown_arm_is_named() -> None:
    argv = [sys.executable, "-m", "extproc", "bench", "gateway", "--arms", "lean,warp"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "warp" in done.stderr
