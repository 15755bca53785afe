"""A closer look than `statistics`: flows, ages, limits and who occupies which endpoint. Reads only.

Costs a walk over the bookings, so it is for views that ask about once a second, never for decisions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from extproc.core.band import Band
from extproc.core.books import Books
from extproc.core.inflight import InflightLedger
from extproc.core.pool import EndpointState
from extproc.core.queues import RequestQueues
from extproc.core.types import EndpointId, EndpointSample, FairnessId

EndpointCondition = Literal["ready", "draining", "unhealthy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BandDetail:
    """`flows` holds the queued requests of each flow that has any."""

    priority: int
    oldest_queued_s: float | None
    max_requests: int
    flows: Mapping[FairnessId, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointDetail:
    """`by_priority` counts the requests in flight."""

    endpoint_id: EndpointId
    name: str
    address: str
    condition: EndpointCondition
    by_priority: Mapping[int, int]
    tokens_by_priority: Mapping[int, int]
    sample: EndpointSample | None
    sample_age_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """Bands highest first; endpoints in the order in which they came.

    `departed` counts by priority what still runs on endpoints that have left the pool.
    """

    bands: tuple[BandDetail, ...]
    endpoints: tuple[EndpointDetail, ...]
    departed: Mapping[int, int]
    departed_tokens: Mapping[int, int]


def inspect(queues: RequestQueues, books: Books, now: float) -> Inspection:
    """The details at `now`; a band appears while it is configured or has been used."""
    bands = sorted(queues.bands.items(), reverse=True)
    requests, tokens = _occupants(books.ledger)
    gone = [state for state in requests if books.pool.states.get(state.id) is not state]
    return Inspection(
        bands=tuple(_band(band, priority, now) for priority, band in bands),
        endpoints=tuple(
            _endpoint(state, requests.get(state, Counter()), tokens.get(state, Counter()), now)
            for state in books.pool.states.values()
        ),
        departed=_sum(requests[state] for state in gone),
        departed_tokens=_sum(tokens[state] for state in gone),
    )


def _sum(counts: Iterable[Counter[int]]) -> Counter[int]:
    total: Counter[int] = Counter()
    for count in counts:
        total += count
    return total


def _occupants(
    ledger: InflightLedger,
) -> tuple[dict[EndpointState, Counter[int]], dict[EndpointState, Counter[int]]]:
    requests: dict[EndpointState, Counter[int]] = {}
    tokens: dict[EndpointState, Counter[int]] = {}
    for entry in ledger:
        requests.setdefault(entry.endpoint, Counter())[entry.request.priority] += 1
        tokens.setdefault(entry.endpoint, Counter())[entry.request.priority] += entry.footprint.tokens
    return requests, tokens


def _band(band: Band, priority: int, now: float) -> BandDetail:
    oldest = next(iter(band), None)
    return BandDetail(
        priority=priority,
        oldest_queued_s=None if oldest is None else max(0.0, now - oldest.arrived_at),
        max_requests=band.config.max_requests,
        flows=band.flow_sizes(),
    )


def _endpoint(
    state: EndpointState, requests: Counter[int], tokens: Counter[int], now: float
) -> EndpointDetail:
    condition: EndpointCondition = "ready"
    if state.endpoint.is_draining:
        condition = "draining"
    elif not state.is_healthy:
        condition = "unhealthy"
    sample = state.sample
    return EndpointDetail(
        endpoint_id=state.id,
        name=state.endpoint.name,
        address=state.address,
        condition=condition,
        by_priority=dict(requests),
        tokens_by_priority=dict(tokens),
        sample=sample,
        sample_age_s=None if sample is None else max(0.0, now - sample.sampled_at),
    )
