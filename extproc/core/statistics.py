"""A snapshot of the controller for gauges, the admin page and results: frozen values, no behaviour."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from extproc.core.ceiling import Ceiling
from extproc.core.outcomes import EndReason, Outcome
from extproc.core.types import EndpointId


@dataclass(frozen=True, slots=True, kw_only=True)
class BandStatistics:
    """Counts since the start (`outcomes`, `ends`, `evictions`), all else is now."""

    priority: int
    queued_requests: int
    queued_bytes: int
    queued_tokens: int
    queued_flows: int
    inflight_requests: int
    inflight_tokens: int
    inflight_kv_tokens: int
    ceiling: float
    """The lowest over the resources."""
    ceilings: Ceiling
    is_gated: bool
    """Its head was not let in at the last decision."""
    dispatches_per_s: float
    outcomes: Mapping[Outcome, int]
    ends: Mapping[EndReason, int]
    evictions: int
    """Revocations of this band's requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointStatistics:
    """`revoked_*` is held by victims whose streams haven't ended: capacity that is promised away."""

    endpoint_id: EndpointId
    address: str
    is_open: bool
    inflight_requests: int
    inflight_tokens: int
    inflight_kv_tokens: int
    revoked_requests: int
    revoked_kv_tokens: int
    saturation: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """`saturation` is what the ceilings are compared with; `resources` names its parts."""

    saturation: float
    resources: Mapping[str, float]
    queued_requests: int
    queued_bytes: int
    inflight_requests: int
    bands: tuple[BandStatistics, ...]
    """Highest priority first."""
    endpoints: tuple[EndpointStatistics, ...]
    stale_endpoints: int
    """Open endpoints whose measurements are missing or too old for the detector."""
    revocations_outstanding: int
    revocations_confirmed: int
    revocations_timed_out: int
    promised_requests: int
    """In flight on the promise of capacity whose victims haven't ended yet."""
    ignored_events: int
    """Events that named an unknown or already ended request or endpoint."""
