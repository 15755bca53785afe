"""guidellm, unchanged, drives a chat load through the real Envoy, extproc and an emulated server.

It lives in an environment of its own: `make test-clients` makes it. Its tokenizer is made here, one token
per byte, so that nothing is fetched.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.request
from pathlib import Path

import pytest

from extproc.stack.local import LocalStack

pytestmark = pytest.mark.clients

REQUESTS = 24
CONFIG = {
    "flow_control": {
        "detector": {"type": "concurrency-detector", "max_concurrency": 16},
        "eviction": {"enabled": True},
    }
}


def _command() -> str:
    found = shutil.which("guidellm", path=os.environ.get("EXTPROC_CLIENTS_BIN"))
    if found is None:
        pytest.skip("guidellm is not installed: run `make test-clients`, or set EXTPROC_CLIENTS_BIN")
    return found


def _tokenizer(folder: Path) -> Path:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {text: number for number, text in enumerate([*alphabet, "<s>", "</s>"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "model_max_length": 32768,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return folder


def _dispatched(stack: LocalStack) -> float:
    with urllib.request.urlopen(stack.admin_url + "/metrics") as answer:
        page = answer.read().decode()
    lines = [line for line in page.splitlines() if line.startswith("extproc_requests_total{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines if 'outcome="dispatched"' in line)


@pytest.mark.timeout(300)
def test_guidellm_drives_the_stack(tmp_path: Path) -> None:
    command, tokenizer = _command(), _tokenizer(tmp_path / "tokenizer")
    environment = {**os.environ, "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "NO_COLOR": "1"}
    with LocalStack(CONFIG, emulators=[["--max-num-seqs", "16", "--model", "emulated"]]) as stack:
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
        dispatched = _dispatched(stack)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert f"successful={REQUESTS} errored=0" in done.stdout + done.stderr
    assert dispatched >= REQUESTS
