"""What third-party load clients need: where they are installed, a tokenizer made here, a stack to drive.

The tokenizer has one token per byte, so that nothing is fetched.
"""

from __future__ import annotations

import json
import os
import shutil
import urllib.request
from pathlib import Path

import pytest

from extproc.stack.local import LocalStack

CONFIG = {
    "flow_control": {
        "detector": {"type": "concurrency-detector", "max_concurrency": 16},
        "eviction": {"enabled": True},
    },
    "requests": {"priority": {"objectives": {"interactive": 10}}},
}
SERVER = ["--max-num-seqs", "16", "--model", "emulated"]


def client_command(name: str) -> str:
    """Path of the client; skips the test where it isn't installed."""
    found = shutil.which(name, path=os.environ.get("EXTPROC_CLIENTS_BIN"))
    if found is None:
        pytest.skip(f"{name} is not installed: run `make test-clients`, or set EXTPROC_CLIENTS_BIN")
    return found


def byte_tokenizer(folder: Path) -> Path:
    """Write a tokenizer that `transformers` loads from a directory."""
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


def dispatched(stack: LocalStack, priority: int = 0) -> float:
    """Requests of the priority that flow control has let through."""
    with urllib.request.urlopen(stack.admin_url + "/metrics") as answer:
        page = answer.read().decode()
    lines = [line for line in page.splitlines() if line.startswith("extproc_requests_total{")]
    wanted = ('outcome="dispatched"', f'priority="{priority}"')
    return sum(float(line.rpartition(" ")[2]) for line in lines if all(each in line for each in wanted))
