"""All bands together: global limits, displacement, and every way of leaving a queue unserved in time.

It must not know endpoints, only whether there are any. Waiting is charged on two clocks: one runs while
the pool has open endpoints, the other while it has none; each request expires when either has used up its
budget. So an outage neither eats the normal TTL nor, by flapping, renews it.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator

from extproc.core.band import Band, BandConfig, QueuedRequest
from extproc.core.heap import RemovableHeap
from extproc.core.types import RequestId

_ROUNDING_S = 1e-3
"""Sums of times may differ in their last bits; looking for overdue requests so much too early is harmless."""

BandTemplate = Callable[[int], BandConfig]


class RequestQueues:
    """Queued requests of all priorities. Bands exist while they are configured or have requests."""

    def __init__(self, band_config: BandTemplate, max_requests: int | None, max_bytes: int | None) -> None:
        self._band_config = band_config
        self.max_requests = max_requests
        self.max_bytes = max_bytes
        self.bands: dict[int, Band] = {}
        self.requests = 0
        self.bytes = 0
        self._items: dict[RequestId, QueuedRequest] = {}
        self._active: list[int] = []
        self._ttls: RemovableHeap[QueuedRequest] = RemovableHeap()
        self._no_endpoint_ttls: RemovableHeap[QueuedRequest] = RemovableHeap()
        self._without_outage: dict[RequestId, tuple[QueuedRequest, float]] = {}
        """Requests that have not seen the pool empty, and when (in `_empty_s`) they must not any more: their
        timers are started by the first outage, which most of them never see."""
        self._deadlines: RemovableHeap[QueuedRequest] = RemovableHeap()
        self._targets: RemovableHeap[QueuedRequest] = RemovableHeap()
        self._empty_since: float | None = None
        self._empty_total_s = 0.0
        self.nothing_due_before = float("inf")
        """Nobody expires or misses a target before; a bound, not the time itself."""

    def __len__(self) -> int:
        return self.requests

    def __iter__(self) -> Iterator[QueuedRequest]:
        return iter(list(self._items.values()))

    def get(self, request_id: RequestId) -> QueuedRequest | None:
        return self._items.get(request_id)

    def band(self, priority: int) -> Band:
        """The band of this priority, made from its template when it is new."""
        band = self.bands.get(priority)
        if band is None:
            band = self.bands[priority] = Band(priority, self._band_config(priority))
        return band

    def config_of(self, priority: int) -> BandConfig:
        """What holds for the band of this priority, whether it exists yet or not."""
        band = self.bands.get(priority)
        return self._band_config(priority) if band is None else band.config

    def active_priorities(self) -> list[int]:
        """Priorities with queued requests, highest first."""
        return [-negated for negated in self._active]

    @property
    def is_pool_empty(self) -> bool:
        return self._empty_since is not None

    def set_pool_empty(self, is_empty: bool, now: float) -> None:
        """Starts or stops the clock that charges waiting without endpoints."""
        if is_empty == (self._empty_since is not None):
            return
        if self._empty_since is None:
            self._empty_since = now
            for item, due in self._without_outage.values():
                self._start(item, self._no_endpoint_ttls, due)
            self._without_outage.clear()
        else:
            self._empty_total_s += now - self._empty_since
            self._empty_since = None
        self.nothing_due_before = now  # the other clock runs now, with its own timers

    def own_limit_broken(self, item: QueuedRequest) -> str | None:
        """The limit of its band or flow that this queued request breaks, in words; None if none."""
        band = self.bands[item.request.priority]
        config = band.config
        if len(band) > config.max_requests:
            return f"band {band.priority} already holds its limit of {config.max_requests} queued requests"
        if band.queued_bytes > config.max_bytes:
            return f"band {band.priority} has reached its limit of {config.max_bytes} queued bytes"
        limit = config.max_requests_per_flow
        if limit is not None and band.flow_size(item.request.fairness_id) > limit:
            return f"this fairness id already holds its limit of {limit} queued requests"
        return None

    def is_over_global_limits(self) -> bool:
        over_requests = self.max_requests is not None and self.requests > self.max_requests
        return over_requests or (self.max_bytes is not None and self.bytes > self.max_bytes)

    def room_by_displacing(self, priority: int) -> list[QueuedRequest] | None:
        """Whom below `priority` to displace, lowest band first and newest first; None: it doesn't suffice."""
        over_requests = 0 if self.max_requests is None else self.requests - self.max_requests
        over_bytes = 0 if self.max_bytes is None else self.bytes - self.max_bytes
        victims: list[QueuedRequest] = []
        for negated in reversed(self._active):
            if -negated >= priority:
                break
            for item in self.bands[-negated].newest_first():
                if over_requests <= 0 and over_bytes <= 0:
                    return victims
                victims.append(item)
                over_requests -= 1
                over_bytes -= item.request.size_bytes
        return victims if over_requests <= 0 and over_bytes <= 0 else None

    def push(self, item: QueuedRequest, no_endpoint_ttl_s: float | None, now: float) -> None:
        """Queues the request and starts its timers; the caller has checked the limits."""
        band = self.band(item.request.priority)
        if not len(band):
            bisect.insort(self._active, -band.priority)
        band.push(item)
        self._items[item.request.id] = item
        self.requests += 1
        self.bytes += item.request.size_bytes
        soonest = float("inf")
        if item.ttl_s is not None:
            self._start(item, self._ttls, now - self._empty_s(now) + item.ttl_s)
            soonest = now + item.ttl_s
        if no_endpoint_ttl_s is not None:
            due = self._empty_s(now) + no_endpoint_ttl_s
            if self._empty_since is None:
                self._without_outage[item.request.id] = item, due
            else:
                self._start(item, self._no_endpoint_ttls, due)
                soonest = min(soonest, now + no_endpoint_ttl_s)
        deadline_s = item.request.deadline_s
        if deadline_s is not None and band.config.missed_deadlines == "drop":
            self._start(item, self._deadlines, deadline_s)
            soonest = min(soonest, deadline_s)
        target_s = band.missed_at(item)
        if target_s is not None and target_s > now:
            self._start(item, self._targets, target_s)
            soonest = min(soonest, target_s)
        self.nothing_due_before = min(self.nothing_due_before, soonest - _ROUNDING_S)

    def reconfigure(self, band_config: BandTemplate, max_requests: int | None, max_bytes: int | None) -> None:
        """New limits and band policies; queued requests stay, in order of arrival where policies changed."""
        self._band_config = band_config
        self.max_requests, self.max_bytes = max_requests, max_bytes
        for priority, old in list(self.bands.items()):
            if band_config(priority) != old.config:
                band = self.bands[priority] = Band(priority, band_config(priority))
                for item in old:
                    band.push(item)

    def serve(self, item: QueuedRequest) -> None:
        """Takes out a request that is dispatched."""
        self.bands[item.request.priority].serve(item)
        self._forget(item)

    def remove(self, item: QueuedRequest) -> None:
        """Takes out a request that isn't served."""
        self.bands[item.request.priority].remove(item)
        self._forget(item)

    def next_expiry(self) -> float | None:
        """When the next queued request expires or misses its target if nothing changes."""
        if not self.requests:
            return None  # every timer is some queued request's
        due = [when for when, _ in self._expiries()]
        target = self._targets.peek()
        if target is not None:
            due.append(target.key[0])
        return min(due) if due else None

    def pop_overdue(self, now: float) -> tuple[QueuedRequest, bool] | None:
        """Takes out one request whose time is up, and whether that was its deadline; None if none is.

        Needed only from `nothing_due_before` on.
        """
        for when, heap in self._expiries():
            if when <= now:
                item = heap.peek_item()
                assert item is not None
                self.remove(item)
                return item, heap is self._deadlines
        return None

    def demote_late(self, now: float) -> bool:
        """Sorts requests anew whose targets are missed; True if there were any.

        After `pop_overdue`; sets `nothing_due_before` afresh.
        """
        any_late = False
        while (late := self._targets.peek()) is not None and late.key[0] <= now:
            item = self._targets.pop()
            assert item is not None
            self.bands[item.request.priority].demote(item)
            any_late = True
        self.nothing_due_before = self.next_expiry() or float("inf")
        return any_late

    def _expiries(self) -> list[tuple[float, RemovableHeap[QueuedRequest]]]:
        """The running timers: when each heap's first entry is due, on the caller's clock."""
        found = []
        deadline = self._deadlines.peek()
        if deadline is not None:
            found.append((deadline.key[0], self._deadlines))
        if self._empty_since is None:
            ttl = self._ttls.peek()
            if ttl is not None:
                found.append((ttl.key[0] + self._empty_total_s, self._ttls))
        else:
            ttl = self._no_endpoint_ttls.peek()
            if ttl is not None:
                used = self._empty_total_s - self._empty_since
                found.append((ttl.key[0] - used, self._no_endpoint_ttls))
        return found

    def _empty_s(self, now: float) -> float:
        """How long the pool has been without endpoints in total, until `now`."""
        running = 0.0 if self._empty_since is None else now - self._empty_since
        return self._empty_total_s + running

    def _forget(self, item: QueuedRequest) -> None:
        request_id = item.request.id
        del self._items[request_id]
        self._without_outage.pop(request_id, None)
        self.requests -= 1
        self.bytes -= item.request.size_bytes
        priority = item.request.priority
        if not len(self.bands[priority]):
            del self._active[bisect.bisect_left(self._active, -priority)]
        for heap, handle in item.timers:
            heap.remove(handle)
        item.timers.clear()

    @staticmethod
    def _start(item: QueuedRequest, heap: RemovableHeap[QueuedRequest], due: float) -> None:
        item.timers.append((heap, heap.push((due,), item)))
