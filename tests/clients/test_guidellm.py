"""guidellm, unchanged, drives a chat load through the real Envoy, extproc and an emulated server."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from extproc.stack.local import LocalStack
from tests.support.load_clients import CONFIG, SERVER, byte_tokenizer, client_command, dispatched

pytestmark = pytest.mark.clients

REQUESTS = 24


@pytest.mark.timeout(300)
def test_guidellm_drives_the_stack(tmp_path: Path) -> None:
    command, tokenizer = client_command("guidellm"), byte_tokenizer(tmp_path / "tokenizer")
    environment = {**os.environ, "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "NO_COLOR": "1"}
    with LocalStack(CONFIG, emulators=[SERVER]) as stack:
        arguments = [
            "run",
            "--backend", f"kind=openai_http,target={stack.url},model=emulated",
            "--profile", "kind=concurrent,streams=4",
            "--constraint", f"kind=max_requests,count={REQUESTS}",
            "--data", "kind=synthetic_text,prompt_tokens=64,output_tokens=16",
            "--tokenizer", f"kind=hf_auto,model={tokenizer}",
            "--disable-console",
        ]  # fmt: skip
        done = subprocess.run(
            [command, *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240
        )
        seen = dispatched(stack)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert f"successful={REQUESTS} errored=0" in done.stdout + done.stderr
    assert seen >= REQUESTS
