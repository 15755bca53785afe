"""Joins the lists of all sources to one pool, and says what changed.

An endpoint is a name, an address and a start. The start is the source's own (a pod's uid) or made here: an
entry that comes back after it was gone, or whose process was seen to restart, is a new endpoint, so that it
neither inherits nor loses counters. Must not know where lists come from or what is done with changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from extproc.config.endpoints import EndpointEntry
from extproc.core.types import Endpoint, EndpointId


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One endpoint of the pool, and where its metrics are."""

    endpoint: Endpoint
    metrics_address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What a new list changed, to be applied in this order: removals first, since addresses move."""

    removed: tuple[Member, ...] = ()
    added: tuple[Member, ...] = ()
    updated: tuple[Member, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.removed or self.added or self.updated)


@dataclass(slots=True)
class _Seat:
    """A (name, address) that is in the pool now."""

    entry: EndpointEntry
    member: Member
    restarts: int = field(default=0)


class Membership:
    """The pool as all sources together see it."""

    def __init__(self, sources: int) -> None:
        self._lists: list[Mapping[str, EndpointEntry]] = [{} for _ in range(sources)]
        self._seats: dict[tuple[str, str], _Seat] = {}
        self._generation = 0

    def __len__(self) -> int:
        return len(self._seats)

    def members(self) -> list[Member]:
        """Everyone who is in the pool now."""
        return [seat.member for seat in self._seats.values()]

    def replace(self, source: int, entries: Sequence[EndpointEntry]) -> Changes:
        """Source number `source` now has these entries. An address counts once: the first source wins."""
        listed: dict[str, EndpointEntry] = {}
        for entry in entries:
            listed.setdefault(entry.address, entry)
        self._lists[source] = listed
        wanted: dict[str, EndpointEntry] = {}
        for known in self._lists:
            for address, entry in known.items():
                wanted.setdefault(address, entry)
        return self._reconcile({(entry.name, entry.address): entry for entry in wanted.values()})

    def restart(self, endpoint_id: EndpointId) -> Changes:
        """Another process answers there now: a new endpoint takes the seat. Unknown ids change nothing."""
        for seat in self._seats.values():
            if seat.member.endpoint.id == endpoint_id:
                before = seat.member
                self._generation += 1
                seat.restarts = self._generation
                seat.member = self._member(seat.entry, seat.restarts)
                return Changes(removed=(before,), added=(seat.member,))
        return Changes()

    def _reconcile(self, wanted: dict[tuple[str, str], EndpointEntry]) -> Changes:
        removed, added, updated = [], [], []
        for key, seat in list(self._seats.items()):
            entry = wanted.get(key)
            if entry is None or entry.start != seat.entry.start:
                removed.append(seat.member)
                del self._seats[key]
        for key, entry in wanted.items():
            known = self._seats.get(key)
            if known is None:
                self._generation += 1
                restarts = 0 if entry.start else self._generation
                seat = self._seats[key] = _Seat(entry, self._member(entry, restarts), restarts)
                added.append(seat.member)
            elif known.entry != entry:
                known.entry = entry
                known.member = self._member(entry, known.restarts)
                updated.append(known.member)
        return Changes(removed=tuple(removed), added=tuple(added), updated=tuple(updated))

    def _member(self, entry: EndpointEntry, restarts: int) -> Member:
        start = f"{entry.start}+{restarts}" if restarts else entry.start
        endpoint = Endpoint(
            id=EndpointId(f"{entry.name}|{entry.address}|{start}"),
            name=entry.name,
            address=entry.address,
            labels=dict(entry.labels),
            max_requests=entry.max_requests,
            max_tokens=entry.max_tokens,
            is_draining=entry.draining,
        )
        return Member(endpoint=endpoint, metrics_address=entry.metrics_address or entry.address)
