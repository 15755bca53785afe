"""The `flow_control` section: every policy's config class, composed; times in seconds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from extproc.core.ageing import AgeingConfig
from extproc.core.band import BandConfig
from extproc.core.ceilings import CeilingConfig
from extproc.core.checks import FieldChecks
from extproc.core.concurrency import ConcurrencyDetectorConfig
from extproc.core.detectors import DetectorConfig
from extproc.core.eviction import EvictionConfig
from extproc.core.footprint import FootprintConfig
from extproc.core.holdback import StaticCeilingConfig
from extproc.core.pacing import PrefillPacingConfig
from extproc.core.picker import PickerConfig, ProfilesPickerConfig

_MAX_TTL_S = 7 * 86_400


@dataclass(frozen=True, kw_only=True, slots=True)
class FlowControlConfig:
    """All of flow control. `mode: observe` dispatches everything at once and counts what enforcing would do.

    `default_band` is the template of bands that aren't listed, `default_sheddable_band` of those below
    priority 0. Limits and times that are None don't exist. `no_endpoint_ttl_s` is how long requests wait
    while the pool has no open endpoint (0: not at all); `max_ttl_s` bounds a request's own TTL.
    """

    mode: Literal["enforce", "observe"] = "enforce"
    detector: DetectorConfig = field(default_factory=ConcurrencyDetectorConfig)
    footprint: FootprintConfig = field(default_factory=FootprintConfig)
    ceilings: CeilingConfig = field(default_factory=StaticCeilingConfig)
    bands: tuple[BandConfig, ...] = ()
    default_band: BandConfig = field(default_factory=BandConfig)
    default_sheddable_band: BandConfig | None = None
    max_requests: int | None = None
    max_bytes: int | None = None
    default_ttl_s: float | None = 60.0
    no_endpoint_ttl_s: float | None = 60.0
    max_ttl_s: float = 86_400.0
    eviction: EvictionConfig = field(default_factory=EvictionConfig)
    pacing: PrefillPacingConfig = field(default_factory=PrefillPacingConfig)
    ageing: AgeingConfig | None = None
    max_bands: int = 64
    """Priorities in use at once; more are served in the next lower band that there is."""
    picker: PickerConfig = field(default_factory=ProfilesPickerConfig)

    def __post_init__(self) -> None:
        checks = FieldChecks(self).at_least("max_requests", 1, 100_000_000).at_least("max_bytes", 1)
        checks.above("default_ttl_s", 0, _MAX_TTL_S).at_least("no_endpoint_ttl_s", 0, _MAX_TTL_S)
        checks.above("max_ttl_s", 0, _MAX_TTL_S)
        checks.at_least("max_bands", max(1, len(self.bands)), 4096)
        priorities = [band.priority for band in self.bands]
        doubled = sorted({p for p in priorities if priorities.count(p) > 1})
        checks.require(not doubled, f"bands: priority {doubled} is listed more than once").finish()

    @property
    def declared_priorities(self) -> tuple[int, ...]:
        return tuple(band.priority for band in self.bands)

    def band_config(self, priority: int) -> BandConfig:
        """The band's own entry, else the template for its sign."""
        for band in self.bands:
            if band.priority == priority:
                return band
        if priority < 0 and self.default_sheddable_band is not None:
            return self.default_sheddable_band
        return self.default_band
