"""The protocol between replicas and their allocator, as values and pure functions.

A replica reports what it holds and needs; the allocator answers with a grant. It must not know the store
that carries them (Redis in production, a list in the simulator), nor clocks: who is alive is told to it.

A replica holds max(grant, in use): a smaller grant means "don't refill", never "drop a running request".
Safety, at every moment and for every delay of messages: what the replicas hold never sums above an
endpoint's capacity. Two rules give it: a new grant is written only after the last one was acknowledged,
and grows only out of what nobody has reserved, where a replica that has not acknowledged yet reserves the
grant before, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from extproc.core.allocation import (
    SLOTS,
    TOKENS,
    UNLIMITED,
    Credits,
    IntArray,
    PoolTable,
    Reclaim,
    ReplicaDemand,
    allocate,
    step_grants,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What a replica may use from now on; `sequence` 0 is "nothing granted yet".

    `replaced` is what the grant before it allowed: the replica may use that until it has read this one.
    """

    sequence: int = 0
    replaced: Mapping[str, Credits] = field(default_factory=dict)
    credits: Mapping[str, Credits] = field(default_factory=dict)
    reclaims: Sequence[Reclaim] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One replica's state: the grant it acts on, its load and queues.

    `measured` is the engines' own count of requests (running + waiting) by address, for claims of replicas
    that no longer report.
    """

    grant_sequence: int = 0
    demand: ReplicaDemand = field(default_factory=ReplicaDemand)
    measured: Mapping[str, int] = field(default_factory=dict)


NO_GRANT = Grant()


def use_by_address(demand: ReplicaDemand) -> dict[str, Credits]:
    """In-flight load of all priorities, by address."""
    totals = {address: [0, 0] for address in demand.addresses}
    for use in demand.in_use.values():
        for address, slots, tokens in zip(demand.addresses, use.slots, use.tokens, strict=True):
            totals[address][SLOTS] += slots
            totals[address][TOKENS] += tokens
    return {address: Credits(*pair) for address, pair in totals.items()}


def claims_left_behind(departed: Iterable[Report], live: Iterable[Report]) -> dict[str, Credits]:
    """What requests of replicas that no longer report still occupy, by address.

    Their last reported load, but no more than the engines run beyond what the live replicas know of: the
    streams of a killed process end at once, those of a paused one go on. Where no live replica has a
    measurement the last reported load stands.
    """
    measured: dict[str, int] = {}
    known: dict[str, int] = {}
    for report in live:
        for address, count in report.measured.items():
            measured[address] = max(measured.get(address, 0), count)
        for address, use in use_by_address(report.demand).items():
            known[address] = known.get(address, 0) + use.slots
    claims: dict[str, Credits] = {}
    for report in departed:
        for address, use in use_by_address(report.demand).items():
            earlier = claims.get(address, Credits(0, 0))
            claims[address] = Credits(earlier.slots + use.slots, earlier.tokens + use.tokens)
    for address, claim in claims.items():
        if address in measured and claim.slots:
            running = min(claim.slots, max(0, measured[address] - known.get(address, 0)))
            claims[address] = Credits(running, claim.tokens * running // claim.slots)
    return {address: claim for address, claim in claims.items() if claim.slots}


def next_grants(
    capacity: Mapping[str, Credits],
    reports: Mapping[str, Report],
    grants: Mapping[str, Grant],
    ghosts: Mapping[str, Credits] | None = None,
) -> dict[str, Grant]:
    """The grants to write now; only those that differ from what the replica has, and only acknowledged ones.

    `grants` is what was written last by replica, `ghosts` comes from `claims_left_behind`.
    """
    table = PoolTable(capacity, list(reports))
    demands = {replica: report.demand for replica, report in reports.items()}
    ghost_claims = table.by_address(ghosts or {})
    last = [grants.get(replica, NO_GRANT) for replica in table.replicas]
    waits_for_ack = [
        reports[replica].grant_sequence != grant.sequence
        for replica, grant in zip(table.replicas, last, strict=True)
    ]
    written = table.zeros()
    reserved = table.zeros()
    for r, replica in enumerate(table.replicas):
        written[r] = table.by_address(last[r].credits)
        reserved[r] = np.maximum(written[r], table.by_address(use_by_address(demands[replica])))
        if waits_for_ack[r]:
            reserved[r] = np.maximum(reserved[r], table.by_address(last[r].replaced))
    allocation = allocate(table, demands, ghost_claims)
    targets = allocation.targets
    targets[np.array(waits_for_ack, dtype=bool)] = written[np.array(waits_for_ack, dtype=bool)]
    stepped = step_grants(table.capacity, targets, reserved, ghost_claims)
    return {
        replica: _grant(table, stepped[r], last[r], allocation.reclaims, replica)
        for r, replica in enumerate(table.replicas)
        if not waits_for_ack[r]
        and (
            not np.array_equal(stepped[r], written[r])
            or any(reclaim.replica == replica for reclaim in allocation.reclaims)
        )
    }


def _grant(table: PoolTable, row: IntArray, last: Grant, reclaims: Sequence[Reclaim], replica: str) -> Grant:
    credits = {
        address: Credits(slots, tokens)
        for address, (slots, tokens) in zip(table.addresses, row.tolist(), strict=True)
    }
    mine = tuple(reclaim for reclaim in reclaims if reclaim.replica == replica)
    return Grant(sequence=last.sequence + 1, replaced=last.credits, credits=credits, reclaims=mine)


def even_share(capacity: Mapping[str, Credits], replica_index: int, replica_count: int) -> dict[str, Credits]:
    """The fallback of a replica that is cut off: its part when all parts are equal.

    The parts of indices 0 to count - 1 sum to the capacity, so that replicas which fall back together
    don't exceed it. An unlimited amount stays unlimited.
    """
    shares = {}
    for position, address in enumerate(sorted(capacity)):
        turn = (replica_index - position) % replica_count
        parts = [
            amount if amount >= UNLIMITED else amount // replica_count + (turn < amount % replica_count)
            for amount in capacity[address]
        ]
        shares[address] = Credits(*parts)
    return shares
