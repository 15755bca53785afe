"""A suite of the bench against a real vLLM behind Envoy and extproc, as a user with a GPU runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.up import running_up
from tests.vllm.conftest import SLOTS, VllmServer

pytestmark = pytest.mark.vllm

OPTIONS = ["--arms", "eviction", "--loads", "2/s", "--setting", "wave", "--runs", "1", "--scale", "0.04"]


@pytest.mark.timeout(400)
def test_a_suite_runs_against_a_real_vllm(vllm_server: VllmServer, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = ["--servers", "0", "--endpoint", vllm_server.address, "--slots", str(SLOTS), "--model", "small"]
    with running_up(*options, "--seconds", "300") as url:
        command = [sys.executable, "-m", "extproc", "bench", "run", "holdback-requests", "--target", url]
        # Its vocabulary has 320 ids, of which those up to 290 have a text.
        command += ["--model", "small", "--token-ids", "20:280", *OPTIONS, "--out", str(out), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    cell = json.loads(done.stdout)["arms"]["eviction @ 2/s (wave)"]
    assert cell["evictions"] > 0
    assert cell["tokens_redone"] == 0
    assert cell["interactive"]["ttft_p50_s"] is not None
    records = [json.loads(line) for line in next(out.rglob("*.jsonl")).read_text().splitlines()]
    assert {record["outcome"] for record in records} == {"completed"}
    batch = [record["output_tokens"] for record in records if record["traffic_class"] == "batch"]
    assert set(batch) == {1500}
