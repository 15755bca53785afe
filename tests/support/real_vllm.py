"""A real vLLM on this machine's CPU, in float32, with a small random model of its own.

`EXTPROC_VLLM_PYTHON` names the Python that vLLM 0.30 is installed in; without it the tests are skipped.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from extproc.stack.process import ChildProcess, answers_http, free_ports

MODEL = "small"
_ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}


@contextlib.contextmanager
def real_vllm(folder: Path, *arguments: str) -> Iterator[int]:
    """Port of a running server."""
    python = os.environ.get("EXTPROC_VLLM_PYTHON")
    if python is None:
        pytest.skip("set EXTPROC_VLLM_PYTHON to the Python in which vLLM is installed")
    model = folder / "model"
    script = Path(__file__).with_name("small_model.py")
    subprocess.run([python, str(script), str(model)], check=True, capture_output=True, timeout=300)
    (port,) = free_ports(1)
    argv = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--port", str(port)]
    argv += ["--host", "127.0.0.1", "--dtype", "float32", "--served-model-name", MODEL]
    argv += ["--max-model-len", "2048", "--disable-uvicorn-access-log", *arguments]
    server = ChildProcess("vllm", argv, folder / "vllm.log", env=_ENVIRONMENT)
    server.start()
    try:
        server.wait_until(lambda: answers_http("127.0.0.1", port, "/health"), timeout_s=300)
        yield port
    finally:
        server.stop()
