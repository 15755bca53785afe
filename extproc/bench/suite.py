"""What a suite is: traffic, engine, arms and what the seed report claims; values and small functions only.

A suite crosses its loads with its arms and settings; one cell of that table is run under several seeds. The
same suite runs in virtual time, on a local stack and against a URL, so it says nothing about how it is
driven.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from extproc.core.config import FlowControlConfig
from extproc.workload.traffic import AfterEviction, TrafficClass


class Setting(Enum):
    """How the batch work meets the interactive traffic."""

    WAVE = "wave"
    """Equal lengths, everything submitted at once: the start-up wave flatters every arm."""
    STEADY = "steady"
    """Lengths vary by 0.5 to 1.5 and interactive traffic starts after a warm-up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One traffic pattern of a suite: what is sent in each setting, and when a run is over at the latest."""

    name: str
    traffic: Callable[[Setting], tuple[TrafficClass, ...]]
    horizon_s: float
    is_steady: bool = True
    """No bursts: evictions can be avoided by a reserve."""
    exceeds_slots: bool = False
    """Bursts of more requests than the engine has slots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way to run the gateway. `flow_control` None: everything is dispatched at once, nothing is held.

    `exempts_from` lifts the engine's slot and KV limits for that priority and above (the floor-shared
    yardsticks: nobody waits for a place, only for the shared GPU); `drops_batch` leaves the batch out
    (floor-alone). `engine` overrides engine settings by name; `slots` is what the gateway is told of an
    engine's sequence slots where that differs; `after_eviction` is what batch clients do.
    `confirm_unstarted_s` is how long the end of a victim that still waits inside the engine stays unseen,
    where it differs. `has_visible_output` False: the gateway never sees answers, as in lean mode.
    `least_runs` is for arms whose percentiles are pooled over many paired seeds.
    """

    name: str
    flow_control: FlowControlConfig | None
    exempts_from: int | None = None
    drops_batch: bool = False
    engine: Mapping[str, int | bool] = field(default_factory=dict)
    slots: int | None = None
    after_eviction: AfterEviction | None = None
    confirm_unstarted_s: float | None = None
    has_visible_output: bool = True
    endpoints: int | None = None
    least_runs: int = 0
    loads: tuple[str, ...] = ()
    """Only with these loads; empty: with all."""
    settings: tuple[Setting, ...] = ()
    """Only in these settings; empty: in all of the suite's."""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """What surrounds the engine, in seconds.

    `network_s` is a uniform range added to each interactive answer (a client outside the cluster),
    `gateway_s` the way through Envoy and extproc, `front_end_s` the engine's API server, `abort_s` from a
    revocation to the engine's abort, `resubmit_s` from a cut stream to the resumed request, `scrape_s`
    between two samples of an endpoint's metrics.
    """

    network_s: tuple[float, float] = (0.0, 0.0)
    gateway_s: float = 0.002
    front_end_s: float = 0.006
    abort_s: float = 0.003
    resubmit_s: float = 0.020
    scrape_s: float = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A benchmark of one of the seed reports (`seed` 000 or 002, `section` there).

    `hardware` names a coefficient file; `engine` overrides its settings; `measured` are the classes whose
    TTFT the suite is about, most important first.
    """

    name: str
    title: str
    seed: str
    section: str
    hardware: str
    loads: tuple[Load, ...]
    arms: tuple[Arm, ...]
    measured: tuple[str, ...] = ("interactive",)
    interactive: tuple[str, ...] = ()
    """Classes that the targets are about; empty: the measured ones."""
    reference: str = "eviction"
    """The arm that batch time and evictions are compared with."""
    engine: Mapping[str, int | bool] = field(default_factory=dict)
    endpoints: int = 1
    settings: tuple[Setting, ...] = (Setting.WAVE, Setting.STEADY)
    latencies: Latencies = field(default_factory=Latencies)
    window_s: tuple[float, float] | None = None
    """Arrivals that count for TTFT; None: those before the batch has ended."""
    notes: str = ""
    target_reasons: Mapping[str, str] = field(default_factory=dict)
    """Why a target of the arm `best` cannot be met, by what is measured; printed only where it is missed."""

    def load(self, name: str) -> Load:
        return next(load for load in self.loads if load.name == name)

    def arm(self, name: str) -> Arm:
        return next(arm for arm in self.arms if arm.name == name)

    def cells(self) -> list[Cell]:
        """Every combination that is run, in a stable order."""
        return [
            Cell(suite=self.name, load=load.name, arm=arm.name, setting=setting)
            for load in self.loads
            for setting in self.settings
            for arm in self.arms
            if (not arm.loads or load.name in arm.loads) and (not arm.settings or setting in arm.settings)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One row of a suite's table, by names, so that it travels between processes and into file names."""

    suite: str
    load: str
    arm: str
    setting: Setting

    @property
    def label(self) -> str:
        return f"{self.arm} @ {self.load} ({self.setting.value})"
