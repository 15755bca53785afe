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
from dataclasses import dataclass

import numpy as np

from extproc.core.allocation import IntArray, PoolTable, allocate, step_grants
from extproc.core.credits import (
    NO_GRANT,
    SLOTS,
    TOKENS,
    UNLIMITED,
    Credits,
    Grant,
    Reclaim,
    ReplicaDemand,
    Report,
)
from extproc.core.urgency import is_anybody_pressed

NOTHING = Credits(0, 0)


def use_by_address(demand: ReplicaDemand) -> dict[str, Credits]:
    """In-flight load of all priorities, by address."""
    totals = {address: [0, 0] for address in demand.addresses}
    for use in demand.in_use.values():
        for address, slots, tokens in zip(demand.addresses, use.slots, use.tokens, strict=True):
            totals[address][SLOTS] += slots
            totals[address][TOKENS] += tokens
    return {address: Credits(*pair) for address, pair in totals.items()}


def claims_left_behind(
    departed: Mapping[str, Report], grants: Mapping[str, Grant], live: Iterable[Report]
) -> dict[str, Credits]:
    """What requests of replicas that no longer report may still occupy, by address.

    As much as they last held, but no more than the engines run beyond what the live replicas know of: the
    streams of a killed process end at once, those of a paused one go on. Where no live replica has a
    measurement all that they held counts.
    """
    measured: dict[str, int] = {}
    known: dict[str, int] = {}
    for report in live:
        for address, count in report.measured.items():
            measured[address] = max(measured.get(address, 0), count)
        for address, use in use_by_address(report.demand).items():
            known[address] = known.get(address, 0) + use.slots
    claims: dict[str, Credits] = {}
    for name, report in departed.items():
        held = use_by_address(report.demand)
        for address, granted in grants.get(name, NO_GRANT).credits.items():
            held[address] = _larger(granted, held.get(address, NOTHING))
        for address, claim in held.items():
            earlier = claims.get(address, NOTHING)
            claims[address] = Credits(earlier.slots + claim.slots, earlier.tokens + claim.tokens)
    for address, claim in claims.items():
        if address in measured and claim.slots:
            running = min(claim.slots, max(0, measured[address] - known.get(address, 0)))
            claims[address] = Credits(running, claim.tokens * running // claim.slots)
    return {address: claim for address, claim in claims.items() if claim.slots}


def _larger(one: Credits, other: Credits) -> Credits:
    return Credits(max(one.slots, other.slots), max(one.tokens, other.tokens))


@dataclass(frozen=True, slots=True)
class Round:
    """What one allocation yields. `is_pending`: somebody must not wait for a period, and gets more as soon as
    others have given up what was asked of them.
    """

    grants: Mapping[str, Grant]
    is_pending: bool = False


def next_grants(
    capacity: Mapping[str, Credits],
    reports: Mapping[str, Report],
    grants: Mapping[str, Grant],
    ghosts: Mapping[str, Credits] | None = None,
    *,
    at_least_replicas: int = 1,
) -> Round:
    """The grants to write now; only those that differ from what the replica has, and only acknowledged ones.

    `grants` is what was written last by replica, `ghosts` comes from `claims_left_behind`. Nobody gets more
    than its even share among `at_least_replicas`: while some of so many may live on their fallback, unseen.
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
    in_use = table.zeros()
    reserved = table.zeros()
    for r, replica in enumerate(table.replicas):
        written[r] = table.by_address(last[r].credits)
        in_use[r] = table.in_use(demands[replica])
        reserved[r] = np.maximum(written[r], in_use[r])
        if waits_for_ack[r]:
            reserved[r] = np.maximum(reserved[r], table.by_address(last[r].replaced))
    if _may_stay(table, demands, written, in_use, ghost_claims):
        return Round({})
    allocation = allocate(table, demands, ghost_claims)
    targets = allocation.targets.copy()
    targets[np.array(waits_for_ack, dtype=bool)] = written[np.array(waits_for_ack, dtype=bool)]
    if at_least_replicas > 1:
        targets = np.minimum(targets, np.maximum(table.capacity // at_least_replicas, written))
    stepped = step_grants(table.capacity, targets, written, reserved, ghost_claims)
    is_urgent = is_anybody_pressed(reports)
    grants = {
        replica: _grant(table, stepped[r], last[r], allocation.reclaims, replica, is_urgent=is_urgent)
        for r, replica in enumerate(table.replicas)
        if not waits_for_ack[r]
        and (
            not np.array_equal(stepped[r], written[r])
            or any(reclaim.replica == replica for reclaim in allocation.reclaims)
        )
    }
    is_settled = np.array_equal(np.maximum(allocation.targets, stepped), stepped)
    return Round(grants, is_pending=is_urgent and not is_settled)


def _may_stay(
    table: PoolTable,
    demands: Mapping[str, ReplicaDemand],
    written: IntArray,
    in_use: IntArray,
    ghosts: IntArray,
) -> bool:
    """Nobody waits, all is given out, and everybody has at least half an even share of what is idle: moving
    more would be noise.
    """
    if any(demand.waiting for demand in demands.values()):
        return False
    idle = np.maximum(table.capacity - ghosts - in_use.sum(axis=0), 0)
    enough = in_use + idle // (2 * max(1, len(table.replicas)))
    is_given_out = (np.maximum(written, in_use).sum(axis=0) == np.maximum(table.capacity - ghosts, 0)).all()
    return bool(is_given_out and (written >= enough).all())


def _grant(
    table: PoolTable,
    row: IntArray,
    last: Grant,
    reclaims: Sequence[Reclaim],
    replica: str,
    *,
    is_urgent: bool,
) -> Grant:
    slots, tokens = row[:, SLOTS].tolist(), row[:, TOKENS].tolist()
    credits = dict(zip(table.addresses, map(Credits, slots, tokens), strict=True))
    mine = tuple(reclaim for reclaim in reclaims if reclaim.replica == replica)
    return Grant(
        sequence=last.sequence + 1,
        replaced=last.credits,
        credits=credits,
        reclaims=mine,
        is_urgent=is_urgent,
    )


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


def fallback_credits(
    shares: Mapping[str, Credits],
    in_use: Mapping[str, Credits],
    measured: Mapping[str, int],
    capacity: Mapping[str, Credits],
    replica_count: int,
) -> dict[str, Credits]:
    """What a replica that is cut off may use: its even share, as far as the engines have room.

    Others may still run more than their share, so where the endpoint was measured the replica adds to what
    it has in use at most its part of the places that are free there. Parts are rounded up: the last free
    place must not stay empty, and while somebody is above his share at most one less than the number of
    replicas can be taken too many.
    """
    credits = {}
    for address, share in shares.items():
        slots = share.slots
        if address in measured:
            free = max(0, capacity[address].slots - measured[address])
            slots = min(slots, in_use.get(address, NOTHING).slots + -(-free // replica_count))
        credits[address] = Credits(slots, share.tokens)
    return credits
