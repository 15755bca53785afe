"""What a replica tells the allocator of its pool: demand and whole capacities, from the books.

Reads only: one row for each priority and endpoint that has something in flight.
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
    places = list(books.ledger.places())
    addresses = dict.fromkeys(endpoint.address for _, loads in places for endpoint in loads)
    indices = {address: index for index, address in enumerate(addresses)}
    in_use = {}
    for priority, loads in places:
        slots, tokens = [0] * len(indices), [0] * len(indices)
        for endpoint, (requests, weight, kv_tokens) in loads.items():
            # Two endpoints may have one address for a while: a server that came back under another name.
            index = indices[endpoint.address]
            slots[index] += requests
            tokens[index] += kv_tokens if counts_kv else weight
        in_use[priority] = BandUse(slots, tokens)
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
