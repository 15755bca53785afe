"""How a load is driven, and its live counters; values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class PriorityPlace(Enum):
    """Where a request tells its class's number, if it isn't 0."""

    NOWHERE = "nowhere"
    BODY = "body"
    """The body's `priority`: extproc reads it unless configured otherwise, and removes it for the engine."""
    HEADER = "header"
    """`x-priority`: for gateways that are configured to trust it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """How a load is driven.

    `speedup` is model seconds per real second: arrivals come that much faster and recorded times are
    multiplied by it, so that a run against an emulator with the same speed-up reads in the model's seconds.
    The run ends when all work is done or at `horizon_s` (model seconds; what is still open then is
    unfinished). A run is invalid when more than 1% of its open-loop requests left later than `lag_limit_s`
    (real seconds). `objectives` names the objective header of a class; classes that are not in it send none.
    """

    base_url: str
    speedup: float = 1.0
    horizon_s: float | None = None
    max_open: int = 10_000
    lag_limit_s: float = 0.05
    stall_timeout_s: float | None = 300.0
    resume_delay_s: float = 0.02
    restart_backoff_s: float = 1.0
    restart_backoff_limit_s: float = 60.0
    keeps_gaps: bool = False
    objectives: Mapping[str, str] = field(default_factory=dict)
    priority_in: PriorityPlace = PriorityPlace.NOWHERE
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class LoadProgress:
    """Live counters, to be read at any time while a load runs."""

    sent: int = 0
    open: int = 0
    most_open: int = 0
    completed: int = 0
    output_tokens: int = 0
    evictions: int = 0
    refused: int = 0
    failed: int = 0
