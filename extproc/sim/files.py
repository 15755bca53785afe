"""The simulator's files: hardware and scenarios, read by the package's one YAML loader."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import extproc
from extproc.config.loader import load_file
from extproc.core.config import FlowControlConfig
from extproc.errors import ConfigError, Problem
from extproc.sim.hardware import Hardware
from extproc.sim.scenario import Delays, EndpointSpec, Fault, Scenario, Scraping, Sharing
from extproc.sim.server_config import EngineConfig, SchedulingPolicy
from extproc.workload.traffic import TrafficClass


def hardware_folder() -> Path:
    """Where the shipped hardware files are: config/hardware of the checkout, or of the working directory."""
    shipped = Path(extproc.__file__).parent.parent / "config" / "hardware"
    return shipped if shipped.is_dir() else Path("config/hardware")


def hardware_path(name: str) -> Path:
    """A path as it is; a bare name is looked up among the shipped files. Raises ConfigError."""
    if name.endswith((".yaml", ".yml")) or "/" in name:
        return Path(name)
    path = hardware_folder() / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(found.stem for found in hardware_folder().glob("*.yaml"))) or "none"
        raise ConfigError([Problem("hardware", f"no hardware is named {name!r}; known: {known}")])
    return path


def load_hardware(name: str) -> Hardware:
    """The hardware file `name` (a path, or the name of a shipped one)."""
    return load_file(hardware_path(name), Hardware)


def load_engine(name: str) -> EngineConfig:
    """The engine settings and step costs of a hardware file."""
    return load_hardware(name).engine


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolEntry:
    """`count` equal servers in a scenario file: a hardware file, and what differs from it.

    One server keeps its `name`; several are named `name-0`, `name-1` and so on.
    """

    name: str
    hardware: str
    count: int = 1
    joins_at_s: float = 0.0
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    kv_blocks: int | None = None
    block_tokens: int | None = None
    scheduling: SchedulingPolicy | None = None
    has_prefix_cache: bool | None = None
    max_requests: int | None = None
    max_tokens: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 1 <= self.count <= 10_000:
            raise ConfigError([Problem("count", f"must be from 1 to 10,000, not {self.count}")])

    def endpoints(self) -> list[EndpointSpec]:
        """The servers of this entry. Raises ConfigError for unknown hardware or impossible limits."""
        engine = load_engine(self.hardware)
        names = {each.name for each in dataclasses.fields(EngineConfig)}
        overrides = {name: value for name in names if (value := getattr(self, name, None)) is not None}
        engine = dataclasses.replace(engine, **overrides)
        return [
            EndpointSpec(
                name=self.name if self.count == 1 else f"{self.name}-{number}",
                engine=engine,
                joins_at_s=self.joins_at_s,
                max_requests=self.max_requests,
                max_tokens=self.max_tokens,
                labels=self.labels,
            )
            for number in range(self.count)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioFile:
    """The file format of `extproc simulate`: a scenario whose servers are named by hardware."""

    name: str
    description: str = ""
    pool: tuple[PoolEntry, ...]
    classes: tuple[TrafficClass, ...]
    flow_control: FlowControlConfig = field(default_factory=FlowControlConfig)
    delays: Delays = field(default_factory=Delays)
    scraping: Scraping = field(default_factory=Scraping)
    faults: tuple[Fault, ...] = ()
    horizon_s: float
    seed: int = 0
    replicas: int = 1
    sharing: Sharing = field(default_factory=Sharing)
    exempt_from_priority: int | None = None
    has_visible_output: bool = True
    timeline_interval_s: float | None = None

    def scenario(self) -> Scenario:
        """Resolve hardware and check everything together. Raises ConfigError."""
        return Scenario(
            name=self.name,
            pool=tuple(spec for entry in self.pool for spec in entry.endpoints()),
            **{
                each.name: getattr(self, each.name)
                for each in dataclasses.fields(self)
                if each.name not in ("name", "description", "pool")
            },
        )


def load_scenario(path: str | Path) -> ScenarioFile:
    """Read a scenario file; `.scenario()` of it is what runs. Raises ConfigError with lines."""
    loaded = load_file(path, ScenarioFile)
    try:
        loaded.scenario()
    except ConfigError as error:
        raise ConfigError(error.problems, source=str(path)) from error
    return loaded
