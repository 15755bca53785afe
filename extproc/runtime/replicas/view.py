"""What a member of a group shows: readings of the metric catalogue, and plain data for the live page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from extproc.core.credits import UNLIMITED, Credits
from extproc.runtime.meters import Reading
from extproc.runtime.replicas.status import ReplicaStatus

STATES = ("starting", "leased", "cut-off", "fallback", "active", "standby")


def read_group(status: ReplicaStatus) -> Iterator[Reading]:
    """Told at each scrape of our own metrics."""
    for state in STATES:
        yield Reading("extproc_replica_state", (state,), float(status.state == state))
    for name, value in (
        ("leader", float(status.is_leader)),
        ("members", len(status.members)),
        ("lease_seconds", status.lease_left_s),
        ("grants_total", status.grants_taken),
        ("reclaims_total", status.reclaims_taken),
        ("allocation_rounds_total", status.allocation_rounds),
        ("store_calls_total", status.store_calls),
        ("store_errors_total", status.store_errors),
    ):
        yield Reading(f"extproc_replica_{name}", (), value)
    for name, claims in (("credits", status.credits), ("capacity", status.capacity)):
        for address, claim in claims.items():
            yield Reading(f"extproc_replica_{name}", (address, "requests"), claim.slots)
            if not _is_unlimited(claim.tokens):
                yield Reading(f"extproc_replica_{name}", (address, "tokens"), claim.tokens)


def show_group(status: ReplicaStatus) -> dict[str, Any]:
    """For /debug/state and the live page; amounts without a limit are null."""
    shown: dict[str, Any] = {
        "name": status.replica,
        "state": status.state,
        "leader": status.leader.rpartition(":")[0] if ":" in status.leader else status.leader,
        "is_leader": status.is_leader,
        "lease_left_s": status.lease_left_s,
        "grants": status.grants_taken,
        "reclaims": status.reclaims_taken,
        "store_errors": status.store_errors,
        "capacity": _total(status.capacity.values()),
        "credits": _total(status.credits.values()),
        "credits_by_endpoint": {
            address: {"slots": claim.slots, "tokens": _limited(claim.tokens)}
            for address, claim in status.credits.items()
        },
        "members": [],
    }
    for name in sorted({*status.members, *status.shares}):
        share = status.shares.get(name)
        member: dict[str, Any] = {"name": name, "is_leader": name == shown["leader"]}
        if share is not None:
            member |= {"slots": share.slots, "tokens": _limited(share.tokens)}
            member |= {"inflight": share.in_flight, "waiting": share.waiting}
        shown["members"].append(member)
    return shown


def why_credits_bind(status: ReplicaStatus, queued: int) -> str:
    """One sentence on what a waiting request waits for in the group; empty when the group plays no part."""
    if status.state == "starting":
        return "this replica has no credits yet: it waits for its group's first grant"
    if status.state == "standby":
        return f"this replica stands by; {status.leader or 'nobody'} serves"
    mine, whole = _sum(status.credits.values()), _sum(status.capacity.values())
    if not queued or mine.slots >= whole.slots or status.state == "active":
        return ""
    if status.state == "fallback":
        return (
            f"cut off from the group, this replica uses its even share: {mine.slots} of {whole.slots} slots"
        )
    others = ", ".join(
        f"{name} {share.slots}" for name, share in sorted(status.shares.items()) if name != status.replica
    )
    return f"this replica holds {mine.slots} of the pool's {whole.slots} slots; others: {others or 'none'}"


def _sum(claims: Iterable[Credits]) -> Credits:
    slots = tokens = 0
    for claim in claims:
        slots += claim.slots
        tokens += claim.tokens
    return Credits(slots, tokens)


def _total(claims: Iterable[Credits]) -> dict[str, int | None]:
    total = _sum(claims)
    return {"slots": total.slots, "tokens": _limited(total.tokens)}


def _limited(tokens: int) -> int | None:
    return None if _is_unlimited(tokens) else tokens


def _is_unlimited(tokens: int) -> bool:
    return tokens >= UNLIMITED // 1024
