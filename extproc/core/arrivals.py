"""What becomes of a new request at once: dispatched, queued, or refused, with or without displacing others.

Limits count only what has to wait. A request that finds nothing queued is tried at once, without a queue;
any other is queued first, the pass runs, and only if it is still there must it fit. So a full queue never
refuses what can go at once.
"""

from __future__ import annotations

from msgspec.structs import replace

from extproc.core.band import QueuedRequest
from extproc.core.books import Books
from extproc.core.commands import Command
from extproc.core.config import FlowControlConfig
from extproc.core.demand import DemandTracker
from extproc.core.dispatching import Dispatcher
from extproc.core.footprint import Footprint
from extproc.core.outcomes import Outcome
from extproc.core.pool import LaneKey
from extproc.core.queues import RequestQueues
from extproc.core.refusals import Refusals
from extproc.core.tally import Tally
from extproc.core.types import Request


class Arrivals:
    """The controller's way in; `config` is replaced on reconfiguration, `is_draining` set on shutdown."""

    def __init__(
        self,
        config: FlowControlConfig,
        queues: RequestQueues,
        books: Books,
        demand: DemandTracker,
        tally: Tally,
        dispatcher: Dispatcher,
        refusals: Refusals,
    ) -> None:
        self.config = config
        self.is_draining = False
        self._queues = queues
        self._books = books
        self._demand = demand
        self._tally = tally
        self._dispatcher = dispatcher
        self._refusals = refusals

    def arrived(self, request: Request, now: float, commands: list[Command]) -> None:
        """Dispatches, queues or refuses a new request; an id that is still in use is ignored."""
        if self._queues.get(request.id) is not None or self._books.ledger.get(request.id) is not None:
            self._tally.ignored_events += 1
            return
        request = self._banded(request)
        self._queues.set_pool_empty(not self._books.pool.open, now)
        refusal = self._refusal_at_once(request, now)
        if refusal is not None:
            commands.append(self._refusals.reject(request, *refusal, now))
            return
        self._demand.enter(request.priority)
        lane = self._books.pool.lane_key(request)
        footprint = self._books.policies.estimator.footprint(request)
        is_observing = self.config.mode == "observe"
        if not (self._queues.requests or self._queues.is_pool_empty or is_observing):
            self._queues.band(request.priority)
            if self._dispatcher.pass_by(request, lane, footprint, now, commands):
                return
        item = self._enqueue(request, lane, footprint, now)
        if is_observing and self._dispatcher.place_anyway(item, now, commands):
            return
        self._dispatcher.run_for(item, now, commands)
        if self._queues.get(request.id) is item:
            self._make_room(item, now, commands)

    def _banded(self, request: Request) -> Request:
        """The request, in another band when clients use too many priorities: never in a higher one."""
        bands, limit = self._tally.bands, self.config.max_bands
        if request.priority in bands or len(bands) < limit:
            return request
        kept = {*self.config.declared_priorities, *self._queues.active_priorities()}
        kept.update(self._books.ledger.priorities())
        for idle in [priority for priority in bands if priority not in kept]:
            del bands[idle]
            self._queues.bands.pop(idle, None)
        if len(bands) < limit:
            return request
        lower = [priority for priority in bands if priority < request.priority]
        return replace(request, priority=max(lower, default=min(bands)))

    def _refusal_at_once(self, request: Request, now: float) -> tuple[Outcome, str] | None:
        if self.is_draining:
            return Outcome.REJECTED_SHUTTING_DOWN, "the gateway is shutting down"
        drops_missed = self._queues.config_of(request.priority).missed_deadlines == "drop"
        if request.deadline_s is not None and not request.deadline_s > now and drops_missed:
            return Outcome.EXPIRED_DEADLINE, "the request's deadline had passed when it arrived"
        if not self._books.pool.open and self.config.no_endpoint_ttl_s == 0:
            return Outcome.REJECTED_NO_ENDPOINTS, "the pool has no endpoint"
        if request.endpoint_subset is not None and not request.endpoint_subset:
            return Outcome.REJECTED_NO_ENDPOINTS, "the request's endpoint subset is empty"
        return None

    def _enqueue(self, request: Request, lane: LaneKey, footprint: Footprint, now: float) -> QueuedRequest:
        config = self.config
        band_ttl_s = self._queues.band(request.priority).config.ttl_s
        ttl_s = request.ttl_s
        if ttl_s is None:
            ttl_s = config.default_ttl_s if band_ttl_s is None else band_ttl_s
        if ttl_s is not None:
            ttl_s = min(max(0.0, ttl_s), config.max_ttl_s)
        item = QueuedRequest(request, lane, footprint, ttl_s, now)
        item.estimate_version = self._books.policies.estimator.version
        self._queues.push(item, config.no_endpoint_ttl_s, now)
        return item

    def _make_room(self, item: QueuedRequest, now: float, commands: list[Command]) -> None:
        """The new request has to wait: it must fit under the limits, by displacing lower ones if need be."""
        reason = self._queues.own_limit_broken(item)
        if reason is None and self._queues.is_over_global_limits():
            victims = self._queues.room_by_displacing(item.request.priority)
            if victims is None:
                reason = "the gateway's queue is full"
            else:
                commands.extend(self._refusals.displace(victim, now) for victim in victims)
        if reason is not None:
            self._queues.remove(item)
            self._demand.leave(item.request.priority, now)
            no_endpoint = self._queues.is_pool_empty
            outcome = Outcome.REJECTED_NO_ENDPOINTS if no_endpoint else Outcome.REJECTED_CAPACITY
            commands.append(self._refusals.reject(item.request, outcome, reason, now))
