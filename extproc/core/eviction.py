"""Who may be evicted in flight, and in which order; it revokes nothing itself.

A request may be a victim while its priority is below `evictable_below`, for demand of a strictly higher
priority, and while it isn't revoked already. Within one priority resumable streams go first: their
output is saved. Orders:

| order | within the lowest priority, after resumable first |
|---|---|
| priority-then-newest | newest dispatch |
| least-work-lost | resumable: smallest prompt to recompute; others: newest dispatch (fewest tokens lost) |
| most-freed | largest KV footprint: the fewest victims for a given need |
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from extproc.core.checks import FieldChecks
from extproc.core.heap import Entry, Key, RemovableHeap
from extproc.core.inflight import InflightRequest
from extproc.core.pool import EndpointState
from extproc.core.types import RequestId

VictimOrder = Literal["priority-then-newest", "least-work-lost", "most-freed"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DemandSizingConfig:
    """Revoke what all blocked heads need, less what is free or being freed.

    `promise: dispatch` sends the request in the same call to the endpoint of its victims; `wait` sends it
    when their streams have ended. `max_revocations_per_decision` None is unlimited.
    """

    type: Literal["demand"] = "demand"
    promise: Literal["dispatch", "wait"] = "dispatch"
    max_revocations_per_decision: int | None = None

    def __post_init__(self) -> None:
        FieldChecks(self).at_least("max_revocations_per_decision", 1, 1_000_000).finish()


@dataclass(frozen=True, kw_only=True, slots=True)
class DeficitSizingConfig:
    """As the peer does: (saturation - ceiling) over the mean footprint, at least one victim and at most
    `max_revocations_per_decision`; the next decision `grace_s` after the last stream has ended (None:
    0.01, or 2.3 with a detector that measures, the peer's values)."""

    type: Literal["deficit"] = "deficit"
    max_revocations_per_decision: int = 2
    grace_s: float | None = None

    def __post_init__(self) -> None:
        checks = FieldChecks(self).at_least("max_revocations_per_decision", 1, 1_000_000)
        checks.at_least("grace_s", 0, 3600).finish()


SizingConfig = DemandSizingConfig | DeficitSizingConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class EvictionConfig:
    """In-flight eviction. A revocation not confirmed after `confirm_timeout_s` counts as confirmed."""

    enabled: bool = False
    evictable_below: int = 0
    order: VictimOrder = "priority-then-newest"
    sizing: SizingConfig = DemandSizingConfig()
    confirm_timeout_s: float = 10.0
    keep_leftover_s: float = 1.0
    """How long what victims freed beyond the need stays reserved for its demand's band; 0: not at all."""
    borrow_wait_s: float = 0.025
    """Where replicas share the pool: how long a request waits, at most, for what others have free before it
    evicts work that takes longer than that to compute again; 0: not at all."""

    def __post_init__(self) -> None:
        checks = FieldChecks(self).at_least("evictable_below", -(2**31), 2**31 - 1)
        checks.above("confirm_timeout_s", 0, 3600).at_least("keep_leftover_s", 0, 3600)
        checks.at_least("borrow_wait_s", 0, 1).finish()


class VictimIndex:
    """Evictable in-flight requests in victim order, over the pool and per endpoint."""

    def __init__(self, config: EvictionConfig) -> None:
        self._config = config
        self._all: RemovableHeap[InflightRequest] = RemovableHeap()
        self._by_endpoint: dict[EndpointState, RemovableHeap[InflightRequest]] = {}
        self._handles: dict[
            RequestId, tuple[EndpointState, Entry[InflightRequest], Entry[InflightRequest]]
        ] = {}

    def __len__(self) -> int:
        return len(self._all)

    def add(self, entry: InflightRequest) -> None:
        if not self._config.enabled or entry.request.priority >= self._config.evictable_below:
            return
        key = self._key(entry)
        heap = self._by_endpoint.get(entry.endpoint)
        if heap is None:
            heap = self._by_endpoint[entry.endpoint] = RemovableHeap()
        handles = (entry.endpoint, self._all.push(key, entry), heap.push(key, entry))
        self._handles[entry.request.id] = handles

    def discard(self, entry: InflightRequest) -> None:
        """The request ended or was revoked; unknown ones are ignored."""
        handles = self._handles.pop(entry.request.id, None)
        if handles is None:
            return
        endpoint, in_all, in_endpoint = handles
        self._all.remove(in_all)
        heap = self._by_endpoint[endpoint]
        heap.remove(in_endpoint)
        if not heap:
            del self._by_endpoint[endpoint]

    def best(self) -> InflightRequest | None:
        """The first victim of all."""
        return self._all.peek_item()

    def victims(self, below_priority: int) -> Iterator[InflightRequest]:
        """Possible victims for demand of this priority, in victim order; lazy."""
        return _below(self._all, below_priority)

    def victims_on(self, endpoint: EndpointState, below_priority: int) -> Iterator[InflightRequest]:
        """The same on one endpoint."""
        heap = self._by_endpoint.get(endpoint)
        return iter(()) if heap is None else _below(heap, below_priority)

    def _key(self, entry: InflightRequest) -> Key:
        request = entry.request
        unsaved = not request.is_resumable
        match self._config.order:
            case "priority-then-newest":
                return (request.priority, unsaved, -entry.sequence)
            case "least-work-lost":
                recomputed = 0 if unsaved else request.prompt_tokens
                return (request.priority, unsaved, recomputed, -entry.sequence)
            case "most-freed":
                return (request.priority, -entry.footprint.kv_tokens, unsaved, -entry.sequence)


def _below(heap: RemovableHeap[InflightRequest], priority: int) -> Iterator[InflightRequest]:
    for entry in heap.ascending():
        if entry.request.priority >= priority:
            return
        yield entry
