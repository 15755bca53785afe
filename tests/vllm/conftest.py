"""A real vLLM server, started once; skipped with the reason where it isn't installed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.support.real_vllm import real_vllm

SLOTS = 4
KV_BLOCKS = 64


@dataclass(frozen=True)
class VllmServer:
    """`address` is host:port; the model is served as `small`."""

    address: str


@pytest.fixture(scope="session")
def vllm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    limits = ["--max-num-seqs", str(SLOTS), "--num-gpu-blocks-override", str(KV_BLOCKS)]
    with real_vllm(tmp_path_factory.mktemp("vllm"), *limits, "--enable-prompt-tokens-details") as port:
        yield VllmServer(f"127.0.0.1:{port}")
