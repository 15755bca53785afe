"""The ledger of dispatched requests: booked in the call that dispatches, released exactly once.

It must not know queues or policies. All counters are integers, changed by the same amount at booking and
at release, so they return to zero whatever the order of events.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from extproc.core.footprint import NO_FOOTPRINT, Footprint
from extproc.core.pool import EndpointState
from extproc.core.types import Request, RequestId

_REQUESTS, _TOKENS, _KV_TOKENS = 0, 1, 2


class InflightRequest:
    """One booking. `sequence` grows with every dispatch; `revoked_at` is set while a revocation is out."""

    __slots__ = (
        "dispatched_at",
        "endpoint",
        "first_output_at",
        "footprint",
        "output_tokens",
        "request",
        "revoked_at",
        "sequence",
    )

    def __init__(
        self, request: Request, endpoint: EndpointState, footprint: Footprint, sequence: int, now: float
    ) -> None:
        self.request = request
        self.endpoint = endpoint
        self.footprint = footprint
        self.sequence = sequence
        self.dispatched_at = now
        self.first_output_at: float | None = None
        self.output_tokens = 0
        self.revoked_at: float | None = None


class InflightLedger:
    """Books load on endpoints and per priority; the only writer of an endpoint's load counters."""

    def __init__(self) -> None:
        self._entries: dict[RequestId, InflightRequest] = {}
        self._by_priority: dict[int, Footprint] = {}
        self._by_place: dict[int, dict[EndpointState, list[int]]] = {}
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[InflightRequest]:
        return iter(self._entries.values())

    def get(self, request_id: RequestId) -> InflightRequest | None:
        return self._entries.get(request_id)

    def of_priority(self, priority: int) -> Footprint:
        return self._by_priority.get(priority, NO_FOOTPRINT)

    def priorities(self) -> Iterator[int]:
        """Priorities that have something in flight, in no order."""
        return iter(self._by_priority)

    def places(self) -> Iterator[tuple[int, Mapping[EndpointState, Sequence[int]]]]:
        """For each priority: requests, tokens and KV tokens in flight on each endpoint that has some."""
        return iter(self._by_place.items())

    def book(
        self, request: Request, endpoint: EndpointState, footprint: Footprint, now: float
    ) -> InflightRequest:
        self._sequence += 1
        entry = InflightRequest(request, endpoint, footprint, self._sequence, now)
        self._entries[request.id] = entry
        self._count(request.priority, footprint, 1)
        self._load(entry, 1)
        endpoint.last_dispatch_at = now
        return entry

    def move(self, entry: InflightRequest, endpoint: EndpointState) -> None:
        """A fallback served the request: its load belongs there."""
        if entry.revoked_at is not None:
            _load_revoked(entry.endpoint, entry.footprint, -1)
            _load_revoked(endpoint, entry.footprint, 1)
        self._load(entry, -1)
        entry.endpoint = endpoint
        self._load(entry, 1)

    def mark_revoked(self, entry: InflightRequest, now: float) -> None:
        entry.revoked_at = now
        _load_revoked(entry.endpoint, entry.footprint, 1)

    def release_tokens(self, entry: InflightRequest) -> Footprint:
        """Its tokens weigh nothing from now on; returns what was taken off."""
        taken = Footprint(0, entry.footprint.tokens, 0)
        if not taken.tokens:
            return taken
        entry.endpoint.tokens -= taken.tokens
        self._by_place[entry.request.priority][entry.endpoint][_TOKENS] -= taken.tokens
        if entry.revoked_at is not None:
            entry.endpoint.revoked_tokens -= taken.tokens
        self._count(entry.request.priority, taken, -1)
        entry.footprint = entry.footprint.minus(taken)
        return taken

    def release(self, request_id: RequestId) -> InflightRequest | None:
        """Ends a booking; None for an unknown or already released id."""
        entry = self._entries.pop(request_id, None)
        if entry is None:
            return None
        if entry.revoked_at is not None:
            _load_revoked(entry.endpoint, entry.footprint, -1)
        self._count(entry.request.priority, entry.footprint, -1)
        self._load(entry, -1)
        return entry

    def _count(self, priority: int, footprint: Footprint, sign: int) -> None:
        held = self._by_priority.get(priority, NO_FOOTPRINT)
        left = held.plus(footprint) if sign > 0 else held.minus(footprint)
        if left.requests:
            self._by_priority[priority] = left
        else:
            del self._by_priority[priority]

    def _load(self, entry: InflightRequest, sign: int) -> None:
        endpoint, footprint = entry.endpoint, entry.footprint
        requests, tokens = sign * footprint.requests, sign * footprint.tokens
        kv_tokens = sign * footprint.kv_tokens
        endpoint.requests += requests
        endpoint.tokens += tokens
        endpoint.kv_tokens += kv_tokens
        endpoint.prompt_tokens += sign * entry.request.prompt_tokens
        if endpoint.requests:
            endpoint.dispatch_times += sign * entry.dispatched_at
        else:
            endpoint.dispatch_times = 0.0  # exact again, whatever rounding has left
        places = self._by_place.get(entry.request.priority)
        if places is None:
            places = self._by_place[entry.request.priority] = {}
        load = places.get(endpoint)
        if load is None:
            places[endpoint] = [requests, tokens, kv_tokens]
            return
        load[_REQUESTS] += requests
        load[_TOKENS] += tokens
        load[_KV_TOKENS] += kv_tokens
        if not load[_REQUESTS]:
            del places[endpoint]
            if not places:
                del self._by_place[entry.request.priority]


def _load_revoked(endpoint: EndpointState, footprint: Footprint, sign: int) -> None:
    endpoint.revoked_requests += sign * footprint.requests
    endpoint.revoked_tokens += sign * footprint.tokens
    endpoint.revoked_kv_tokens += sign * footprint.kv_tokens
