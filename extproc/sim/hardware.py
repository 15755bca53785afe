"""Hardware files: what an engine's steps cost on one GPU with one model, and where the figures come from.

The coefficients are fitted to calibration rows only, figures of the seed reports each with the small
scenario that reproduces it; everything else that is simulated with them is a prediction. Pure values;
`extproc.sim.files` reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from extproc.core.config import FlowControlConfig
from extproc.errors import ConfigError, Problem
from extproc.sim.scenario import Delays, Scraping
from extproc.sim.server_config import EngineConfig
from extproc.workload.traffic import TrafficClass

Coefficient = Literal["base_s", "prefill_token_s", "sequence_s", "context_token_s"]
Figure = Literal["ttft_p50_s", "ttft_p95_s", "ttft_p99_s", "duration_s", "requests_per_s", "evictions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationArm:
    """One run: the traffic and the policies of a seed figure on the hardware being fitted."""

    classes: tuple[TrafficClass, ...]
    flow_control: FlowControlConfig = field(default_factory=FlowControlConfig)
    max_num_seqs: int
    delays: Delays = field(default_factory=Delays)
    scraping: Scraping = field(default_factory=Scraping)
    horizon_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationRow:
    """`target` is the seed's `figure` of `traffic_class` in `arm`, less (or over) the same in `reference`.

    `simulated` and `residual_fraction` are written by the fit: what the coefficients of the file give, and
    its distance from the target as a fraction of the target.
    """

    name: str
    source: str
    traffic_class: str
    figure: Figure
    target: float
    arm: CalibrationArm
    reference: CalibrationArm | None = None
    compared_by: Literal["difference", "ratio"] = "difference"
    weight: float = 1.0
    simulated: float | None = None
    residual_fraction: float | None = None

    def __post_init__(self) -> None:
        if self.target <= 0 or self.weight <= 0:
            raise ConfigError([Problem("target", "target and weight must be above 0")])
        if self.traffic_class not in {traffic.name for traffic in self.arm.classes}:
            raise ConfigError([Problem("traffic_class", f"no class is named {self.traffic_class!r}")])


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One coefficient file. `provenance` says for each coefficient where it comes from; `fits` are the
    coefficients that the calibration rows determine, the others are kept. A simulated figure is the mean over
    `seeds` runs.
    """

    description: str
    gpu: str
    model: str
    engine: EngineConfig
    provenance: Mapping[Coefficient, str]
    fits: tuple[Coefficient, ...] = ()
    seeds: int = 3
    calibration: tuple[CalibrationRow, ...] = ()

    def __post_init__(self) -> None:
        missing = {"base_s", "prefill_token_s", "sequence_s", "context_token_s"} - set(self.provenance)
        if missing:
            raise ConfigError([Problem("provenance", f"says nothing of {', '.join(sorted(missing))}")])
