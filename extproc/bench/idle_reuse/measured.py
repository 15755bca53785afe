"""The figures that docs/reproduction.md shows: one run of `extproc bench idle-reuse --out` over this file's
neighbour. Virtual time cannot measure them, so they are kept.
"""

from __future__ import annotations

from importlib import resources

from extproc.bench.idle_reuse.report import IdleReuseFigures, load_figures


def measured_figures() -> IdleReuseFigures:
    """The kept run."""
    file = resources.files("extproc.bench.idle_reuse").joinpath("measured.json")
    return load_figures(file.read_text(encoding="utf-8"))
