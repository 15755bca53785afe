"""A real vLLM server, started once; skipped with the reason where it isn't installed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from extproc.stack.process import ChildProcess, answers_http, free_ports
from tests.vllm.install import REASON_FILE

VENV = Path(os.environ.get("EXTPROC_VLLM_VENV", Path(__file__).parents[2] / ".venv-vllm"))
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
SLOTS = 4
KV_BLOCKS = 64


@dataclass(frozen=True)
class VllmServer:
    """`address` is host:port; the model is served as `small`."""

    address: str


@pytest.fixture(scope="session")
def vllm_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    python = VENV / "bin" / "python"
    if not python.exists() or (VENV / REASON_FILE).exists():
        reason = VENV / REASON_FILE
        pytest.skip(
            reason.read_text().strip() if reason.exists() else f"no vLLM in {VENV}: run `make test-vllm`"
        )
    model = tmp_path_factory.mktemp("model")
    script = Path(__file__).with_name("make_model.py")
    subprocess.run([str(python), str(script), str(model)], check=True, capture_output=True)
    (port,) = free_ports(1)
    argv = [
        str(python), "-m", "vllm.entrypoints.openai.api_server",
        "--model", str(model), "--served-model-name", "small", "--dtype", "float32",
        "--host", "127.0.0.1", "--port", str(port), "--max-num-seqs", str(SLOTS),
        "--max-model-len", "2048", "--num-gpu-blocks-override", str(KV_BLOCKS),
        "--disable-uvicorn-access-log", "--enable-prompt-tokens-details",
    ]  # fmt: skip
    log = tmp_path_factory.mktemp("vllm") / "vllm.log"
    server = ChildProcess("vllm", argv, log, env=ENVIRONMENT)
    server.start()
    try:
        server.wait_until(lambda: answers_http("127.0.0.1", port, "/health"), timeout_s=300)
        yield VllmServer(f"127.0.0.1:{port}")
    finally:
        server.stop(grace_s=10)
