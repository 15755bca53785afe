"""Answers to requests that aren't served: the command, its `Retry-After`, and the count, always together."""

from __future__ import annotations

from extproc.core.band import QueuedRequest
from extproc.core.commands import Command, Displace, Expire, Reject
from extproc.core.demand import DemandTracker
from extproc.core.outcomes import Outcome
from extproc.core.queues import RequestQueues
from extproc.core.tally import Tally
from extproc.core.types import Request


class Refusals:
    """Takes requests out of the queues and says what became of them."""

    def __init__(self, queues: RequestQueues, demand: DemandTracker, tally: Tally) -> None:
        self._queues = queues
        self._demand = demand
        self._tally = tally

    def reject(self, request: Request, outcome: Outcome, message: str, now: float) -> Command:
        """At arrival; the request is in no queue (any more)."""
        self._count(request, outcome, now)
        return Reject(request.id, outcome, self.retry_after_s(request.priority, now), message)

    def expire(self, item: QueuedRequest, outcome: Outcome, now: float) -> Command:
        """Its time in the queue is over; it has been taken out."""
        self._count(item.request, outcome, now)
        self._demand.leave(item.request.priority, now)
        retry_after_s = self.retry_after_s(item.request.priority, now)
        return Expire(item.request.id, outcome, retry_after_s, now - item.arrived_at)

    def displace(self, item: QueuedRequest, now: float) -> Command:
        """Takes it out for a more important one."""
        self._queues.remove(item)
        self._count(item.request, Outcome.DISPLACED, now)
        self._demand.leave(item.request.priority, now)
        retry_after_s = self.retry_after_s(item.request.priority, now)
        return Displace(item.request.id, retry_after_s, now - item.arrived_at)

    def cancel(self, item: QueuedRequest, now: float) -> None:
        """The client has left: nobody to answer."""
        self._queues.remove(item)
        self._count(item.request, Outcome.CANCELLED, now)
        self._demand.leave(item.request.priority, now)

    def retry_after_s(self, priority: int, now: float) -> int:
        """When a new request of this priority would be served, behind what is queued in its band."""
        band = self._queues.bands.get(priority)
        ahead = 0 if band is None else len(band)
        return self._tally.band(priority, now).drain.retry_after_s(ahead, now)

    def _count(self, request: Request, outcome: Outcome, now: float) -> None:
        self._tally.band(request.priority, now).outcomes[outcome] += 1
