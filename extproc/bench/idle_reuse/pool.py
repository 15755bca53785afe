"""How long the connections of Envoy's HTTP/1.1 pool had been unused when a request took them; pure.

The pool hands out the connection that was used last, so a long gap happens only after the pool as a whole
was quiet: a burst after a pause, or a request that needs one more connection than were busy of late.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request at one server. After a cut (an eviction) its connection is gone."""

    traffic_class: str
    sent_s: float
    ended_s: float
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class Reuse:
    """A request that took a connection unused for `idle_s`."""

    traffic_class: str
    idle_s: float


def reuses(exchanges: Iterable[Exchange], *, keep_alive_s: float) -> list[Reuse]:
    """Every request that found an open connection, the server closing them after `keep_alive_s`."""
    ready: list[float] = []  # when each unused connection became so, the latest last
    busy: list[float] = []
    found = []
    for exchange in sorted(exchanges, key=lambda each: each.sent_s):
        while busy and busy[0] <= exchange.sent_s:
            ready.append(heapq.heappop(busy))
        while ready and exchange.sent_s - ready[0] > keep_alive_s:
            ready.pop(0)
        if ready:
            found.append(Reuse(exchange.traffic_class, exchange.sent_s - ready.pop()))
        if not exchange.is_cut:
            heapq.heappush(busy, exchange.ended_s)
    return found


def density_at(found: Sequence[Reuse], traffic_class: str, *, idle_s: float, span_s: float = 1.0) -> float:
    """Reuses by the class per second of idle time, over the `span_s` below `idle_s`."""
    near = sum(each.traffic_class == traffic_class and idle_s - span_s <= each.idle_s for each in found)
    return near / span_s
