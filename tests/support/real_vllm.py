"""A real vLLM on this machine's CPU, in float32, with a small random model of its own.

It lives in an environment of its own, `.venv-vllm` or what `EXTPROC_VLLM_VENV` names (`make test-vllm`
creates it); without it the tests are skipped and say why.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from extproc.stack.process import ChildProcess, answers_http, free_ports
from tests.vllm.install import REASON_FILE

MODEL = "small"
_TESTS = Path(__file__).parents[1]
_VENV = Path(os.environ.get("EXTPROC_VLLM_VENV", _TESTS.parent / ".venv-vllm"))
_ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}


def vllm_python() -> Path:
    """The Python that can import vLLM; skips the test where there is none."""
    python, reason = _VENV / "bin" / "python", _VENV / REASON_FILE
    if not python.exists() or reason.exists():
        pytest.skip(
            reason.read_text().strip() if reason.exists() else f"no vLLM in {_VENV}: run `make test-vllm`"
        )
    return python


@contextlib.contextmanager
def real_vllm(folder: Path, *arguments: str) -> Iterator[int]:
    """Port of a running server; the model's folder and the log lie in `folder`."""
    python = vllm_python()
    model = folder / "model"
    script = _TESTS / "vllm" / "make_model.py"
    subprocess.run([str(python), str(script), str(model)], check=True, capture_output=True, timeout=300)
    (port,) = free_ports(1)
    argv = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    argv += ["--served-model-name", MODEL, "--dtype", "float32", "--max-model-len", "2048"]
    argv += ["--host", "127.0.0.1", "--port", str(port), "--disable-uvicorn-access-log", *arguments]
    server = ChildProcess("vllm", argv, folder / "vllm.log", env=_ENVIRONMENT)
    server.start()
    try:
        server.wait_until(lambda: answers_http("127.0.0.1", port, "/health"), timeout_s=300)
        yield port
    finally:
        server.stop(grace_s=10)
