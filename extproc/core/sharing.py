"""What a replica tells the allocator of its pool: demand and whole capacities, from the books.

Reads only. Costs a walk over the bookings; it runs a few times a second, never per request.
"""

from __future__ import annotations

from extproc.core.band import Band
from extproc.core.books import Books
from extproc.core.credits import UNLIMITED, BandUse, Credits, ReplicaDemand, Waiting
from extproc.core.footprint import Footprint
from extproc.core.queues import RequestQueues


def replica_demand(queues: RequestQueues, books: Books) -> ReplicaDemand:
    """In-flight load by priority and address, and what waits. Victims count until their streams end."""
    counts_kv = books.policies.detector.counts_kv
    indices: dict[str, int] = {}
    loads: dict[int, dict[int, list[int]]] = {}
    for entry in books.ledger:
        index = indices.setdefault(entry.endpoint.address, len(indices))
        load = loads.setdefault(entry.request.priority, {}).setdefault(index, [0, 0])
        load[0] += 1
        load[1] += _tokens(entry.footprint, counts_kv)
    positions = range(len(indices))
    in_use = {
        priority: BandUse(
            [load[index][0] if index in load else 0 for index in positions],
            [load[index][1] if index in load else 0 for index in positions],
        )
        for priority, load in loads.items()
    }
    waiting = [
        _waiting(queues.bands[priority], counts_kv)
        for priority in queues.active_priorities()
        if len(queues.bands[priority])
    ]
    return ReplicaDemand(addresses=tuple(indices), in_use=in_use, waiting=waiting)


def _waiting(band: Band, counts_kv: bool) -> Waiting:
    oldest = next(iter(band))
    return Waiting(
        band.priority,
        len(band),
        _tokens(band.queued_footprint, counts_kv),
        _tokens(oldest.footprint, counts_kv),
    )


def replica_capacity(books: Books) -> dict[str, Credits]:
    """Capacity of every open endpoint before leases; empty when the detector knows none."""
    detector = books.policies.detector
    capacity = {}
    for endpoint in books.pool.open.values():
        whole = detector.whole_capacity(endpoint)
        if whole is not None:
            tokens = min(UNLIMITED, _tokens(whole, detector.counts_kv))
            capacity[endpoint.address] = Credits(min(UNLIMITED, whole.requests), tokens)
    return capacity


def _tokens(footprint: Footprint, counts_kv: bool) -> int:
    return footprint.kv_tokens if counts_kv else footprint.tokens
