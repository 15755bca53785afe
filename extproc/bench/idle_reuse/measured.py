"""The figures that docs/reproduction.md shows: runs of `extproc bench idle-reuse --out`, kept in this folder,
since virtual time cannot measure them. One is with the emulated server, one with a real vLLM (`--server`).
"""

from __future__ import annotations

from importlib import resources

from extproc.bench.idle_reuse.report import IdleReuseFigures, load_figures


def emulated_figures() -> IdleReuseFigures:
    """With the emulated server; also how often the seed's traffic meets the moment."""
    return _load("measured.json")


def real_figures() -> IdleReuseFigures:
    """With vLLM 0.30 on a CPU and its own keep-alive of 5 s."""
    return _load("measured_vllm.json")


def _load(name: str) -> IdleReuseFigures:
    file = resources.files("extproc.bench.idle_reuse").joinpath(name)
    return load_figures(file.read_text(encoding="utf-8"))
