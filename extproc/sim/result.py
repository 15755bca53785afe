"""What a simulation yields: a record per request, totals per engine and gateway, and a timeline."""

from __future__ import annotations

from dataclasses import dataclass, field

from extproc.core.statistics import Statistics
from extproc.workload.record import RequestRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTotals:
    """Counts of one engine over the run."""

    name: str
    steps: int
    output_tokens: int
    prompt_tokens_computed: int
    prefix_queried_tokens: int
    prefix_hit_tokens: int
    preemptions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelinePoint:
    """The state of the pool at one moment; `gateways` has one entry per replica."""

    at_s: float
    gateways: tuple[Statistics, ...]
    running: int
    waiting: int
    kv_usage_fraction: float
    """Mean over the engines."""


@dataclass(slots=True, kw_only=True)
class RunResult:
    """`records` are in order of completion, those unfinished at the end last; empty when the caller took
    each record itself. `ended_at_s` is when the last work ended, at most the horizon.
    """

    records: list[RequestRecord] = field(default_factory=list)
    engines: tuple[EngineTotals, ...] = ()
    gateways: tuple[Statistics, ...] = ()
    timeline: list[TimelinePoint] = field(default_factory=list)
    ended_at_s: float = 0.0
    requests: int = 0

    @property
    def preemptions(self) -> int:
        """KV preemptions inside the engines."""
        return sum(engine.preemptions for engine in self.engines)

    @property
    def output_tokens(self) -> int:
        return sum(engine.output_tokens for engine in self.engines)

    @property
    def evictions(self) -> int:
        """Revocations issued by the gateways."""
        return sum(band.evictions for gateway in self.gateways for band in gateway.bands)
