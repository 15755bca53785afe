"""aiperf, unchanged, drives a streaming chat load with an objective through Envoy and extproc."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from extproc.stack.local import LocalStack
from tests.support.load_clients import CONFIG, SERVER, byte_tokenizer, client_command, dispatched

pytestmark = pytest.mark.clients

REQUESTS = 24
OUTPUT_TOKENS = 16


@pytest.mark.timeout(300)
def test_aiperf_drives_the_stack(tmp_path: Path) -> None:
    command, tokenizer = client_command("aiperf"), byte_tokenizer(tmp_path / "tokenizer")
    environment = {**os.environ, "HOME": str(tmp_path), "NO_COLOR": "1"}
    with LocalStack(CONFIG, emulators=[SERVER]) as stack:
        arguments = [
            "profile",
            "--model", "emulated",
            "--url", stack.url,
            "--endpoint-type", "chat",
            "--streaming",
            "--tokenizer", str(tokenizer),
            "--concurrency", "4",
            "--request-count", str(REQUESTS),
            "--synthetic-input-tokens-mean", "64",
            "--output-tokens-mean", str(OUTPUT_TOKENS),
            "--extra-inputs", "ignore_eos:true",
            "--use-server-token-count",
            "--header", "x-llm-d-inference-objective:interactive",
            "--ui", "none",
            "--artifact-dir", str(tmp_path / "artifacts"),
        ]  # fmt: skip
        done = subprocess.run(
            [command, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        assert dispatched(stack, priority=10) == REQUESTS
    (report,) = (tmp_path / "artifacts").rglob("profile_export_aiperf.json")
    figures = json.loads(report.read_text())
    assert figures["request_count"]["avg"] == REQUESTS
    assert figures["output_sequence_length"]["avg"] == OUTPUT_TOKENS
    assert figures["time_to_first_token"]["avg"] > 0
