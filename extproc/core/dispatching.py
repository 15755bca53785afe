"""The decision: which queued requests go now, and where. One pass after every event, to the fixpoint.

Bands are visited from the highest; a band's head goes if its lane's candidates are below the band's
ceiling and one of them takes it, or if eviction makes room. A blocked head closes its candidate endpoints to
everything that comes after it: later flows and lanes of its band, and all lower bands (unless the band
lets them borrow). So nobody takes a place that a more important request waits for, and requests with
other endpoints pass. Bands without queued requests play no part.
"""

from __future__ import annotations

from extproc.core.ageing import Ageing
from extproc.core.band import Band, QueuedRequest
from extproc.core.books import Books
from extproc.core.ceiling import Ceiling
from extproc.core.commands import Command, Dispatch, Revoke
from extproc.core.footprint import NO_FOOTPRINT, Footprint
from extproc.core.inflight import InflightRequest
from extproc.core.outcomes import Outcome
from extproc.core.picker import Pick
from extproc.core.pool import Candidates, EndpointState, LaneKey
from extproc.core.queues import RequestQueues
from extproc.core.revocation import BlockedHead, Revocations
from extproc.core.tally import Tally
from extproc.core.types import Request


class _Closed:
    """What earlier blocked heads have closed in this pass."""

    __slots__ = ("endpoints", "everything", "lanes")

    def __init__(self) -> None:
        self.everything = False
        self.endpoints = _NO_ENDPOINTS
        self.lanes = _NO_LANES

    def copy(self) -> _Closed:
        twin = _Closed()
        twin.endpoints, twin.lanes = set(self.endpoints), set(self.lanes)
        return twin

    def close(self, lane: LaneKey, candidates: Candidates) -> None:
        if candidates.is_whole_pool:
            self.everything = True
        elif self.lanes is _NO_LANES:
            self.lanes, self.endpoints = {lane}, set(candidates)
        else:
            self.lanes.add(lane)
            self.endpoints.update(candidates)


_NO_ENDPOINTS: set[EndpointState] = set()
_NO_LANES: set[LaneKey] = set()
"""Shared by the passes that close nothing, most of them; never added to."""
_NOTHING_CLOSED = _Closed()
"""For requests that compete with nobody; never closed any further."""


class Dispatcher:
    """Runs passes over the queues; policies are looked up in `books`."""

    def __init__(
        self,
        queues: RequestQueues,
        books: Books,
        revocations: Revocations,
        tally: Tally,
        ageing: Ageing,
    ) -> None:
        self.queues = queues
        self.revocations = revocations
        self.ageing = ageing
        self.gated: set[int] = set()
        """Priorities whose head was held back in the last pass."""
        self.is_sheddable_held = False
        self.passed_at = float("-inf")
        """When the last pass ran."""
        self._books = books
        self._tally = tally

    def run(self, now: float, commands: list[Command]) -> None:
        """Dispatches all that may go now."""
        self.gated.clear()
        self.passed_at = now
        if not self.queues or self.queues.is_pool_empty:
            return
        while self._pass(now, commands):
            pass  # an aged head has earned its turn meanwhile

    def _pass(self, now: float, commands: list[Command]) -> bool:
        """Once through the bands; True: from the top again."""
        closed = _Closed()
        priorities = self.queues.active_priorities()
        aged = self._aged_band(priorities, now)
        if aged is not None and self.ageing.has_turn:
            self._serve_aged(aged, priorities[0], closed, now, commands)
        for priority in priorities:
            if closed.everything:
                return False
            if priority < 0 and self.is_sheddable_held:
                self.gated.add(priority)
                continue
            band = self.queues.bands[priority]
            ceiling = self._books.policies.ceilings.ceiling(priority, now)
            seen = closed.copy() if band.config.borrow else closed
            is_above_aged = aged is not None and priority > aged.priority
            while self._serve_head(band, ceiling, seen, now, commands):
                if is_above_aged:
                    self.ageing.higher_dispatched()
                    if self.ageing.has_turn:
                        return True
        return False

    def _aged_band(self, priorities: list[int], now: float) -> Band | None:
        """The lowest band below the first whose head has waited too long."""
        if self.ageing.config is None:
            return None
        for priority in reversed(priorities[1:]):
            head = self.queues.bands[priority].head()
            is_held = priority < 0 and self.is_sheddable_held
            if head is not None and not is_held and self.ageing.is_aged(head.arrived_at, now):
                return self.queues.bands[priority]
        return None

    def _serve_aged(
        self, aged: Band, highest: int, closed: _Closed, now: float, commands: list[Command]
    ) -> None:
        """The turn of an aged head, before everybody; if it doesn't fit yet, the next place is its."""
        ceiling = self._books.policies.ceilings.ceiling(highest, now)
        if self._serve_head(aged, ceiling, closed, now, commands):
            self.ageing.turn_used()

    def pass_by(
        self, request: Request, lane: LaneKey, footprint: Footprint, now: float, commands: list[Command]
    ) -> bool:
        """Dispatches a newcomer that nobody waits in front of, without queueing it; False: it doesn't fit.

        What a pass over a queue of this one request would do, but for eviction. No flow is owed anything
        while nothing is queued, so the fairness policies needn't know of it.
        """
        self.gated.clear()
        self.passed_at = now
        if request.priority < 0 and self.is_sheddable_held:
            return False
        candidates = self._books.pool.candidates(lane)
        ceiling = self._books.policies.ceilings.ceiling(request.priority, now)
        pick = self._pick(request, footprint, candidates, _NOTHING_CLOSED, ceiling, now)
        if pick is None:
            return False
        self._book(request, footprint, pick, 0.0, now, commands)
        return True

    def run_for(self, item: QueuedRequest, now: float, commands: list[Command]) -> None:
        """The pass after an arrival: needed only if the newcomer is next in its lane.

        Otherwise nothing has changed for the heads that the last pass found blocked; only eviction that waits
        for confirmations sizes itself to all that is queued.
        """
        band = self.queues.bands[item.request.priority]
        if len(band) == 1 or band.is_lane_head(item) or self.revocations.sizes_to_queue:
            self.run(now, commands)

    def place_anyway(self, item: QueuedRequest, now: float, commands: list[Command]) -> bool:
        """Mode observe: dispatches whatever the gate says, best where it fits; False: no candidate."""
        candidates = self._books.pool.candidates(item.lane)
        ceiling = self._books.policies.ceilings.ceiling(item.request.priority, now)
        pick = self._pick(item.request, item.footprint, candidates, _NOTHING_CLOSED, ceiling, now)
        if pick is None:
            picker = self._books.policies.picker
            pick = picker.pick(item.request, candidates, lambda endpoint: True, now)
        if pick is not None:
            self._dispatch(item, pick, now, commands)
        return pick is not None

    def _serve_head(
        self, band: Band, ceiling: Ceiling, closed: _Closed, now: float, commands: list[Command]
    ) -> bool:
        """Dispatches the band's next request; False when there is none that may go, which is then closed."""
        while not closed.everything and (item := band.head(closed.lanes)) is not None:
            candidates = self._books.pool.candidates(item.lane)
            band.reestimate(item, self._books.policies.estimator)
            pick = self._pick(item.request, item.footprint, candidates, closed, ceiling, now)
            if pick is None and self.revocations.config.enabled and len(candidates):
                pick = self._evict_for(item, band, candidates, closed, ceiling, now, commands)
            if pick is not None:
                self._dispatch(item, pick, now, commands)
                return True
            self.gated.add(band.priority)
            closed.close(item.lane, candidates)
        return False

    def _pick(
        self,
        request: Request,
        footprint: Footprint,
        candidates: Candidates,
        closed: _Closed,
        ceiling: Ceiling,
        now: float,
    ) -> Pick | None:
        policies, leftovers = self._books.policies, self.revocations.leftovers
        detector, pacing = policies.detector, policies.pacing
        if not detector.admits(candidates, footprint, ceiling, None, now):
            return None
        if candidates.is_whole_pool and not pacing.may_allow_any(request, len(candidates), now):
            return None

        def fits(endpoint: EndpointState) -> bool:
            if _is_out_of_reach(endpoint, closed):
                return False
            kept = leftovers.kept_from(endpoint, request.priority, now)
            asked = footprint if kept is NO_FOOTPRINT else footprint.plus(kept)
            if not detector.fits(endpoint, asked, ceiling, None, now):
                return False
            return pacing.allows(endpoint, request, now)

        return policies.picker.pick(request, candidates, fits, now)

    def _evict_for(
        self,
        item: QueuedRequest,
        band: Band,
        candidates: Candidates,
        closed: _Closed,
        ceiling: Ceiling,
        now: float,
        commands: list[Command],
    ) -> Pick | None:
        pacing = self._books.policies.pacing

        def is_usable(endpoint: EndpointState) -> bool:
            return not _is_out_of_reach(endpoint, closed) and pacing.allows(endpoint, item.request, now)

        blocked = BlockedHead(item, band, candidates, ceiling, is_usable)
        relief = self.revocations.relieve(blocked, now)
        for victim in relief.victims:
            self._revoke(victim, now, commands)
        if relief.endpoint is None:
            return None
        self._tally.promised_requests += 1
        return Pick(relief.endpoint)

    def _revoke(self, victim: InflightRequest, now: float, commands: list[Command]) -> None:
        self.revocations.begin(victim, now)
        priority = victim.request.priority
        band = self.queues.bands.get(priority)
        ahead = 0 if band is None else len(band)
        retry_after_s = self._tally.band(priority, now).drain.retry_after_s(ahead, now)
        commands.append(Revoke(victim.request.id, victim.endpoint.id, retry_after_s))

    def _dispatch(self, item: QueuedRequest, pick: Pick, now: float, commands: list[Command]) -> None:
        self.queues.serve(item)
        self._book(item.request, item.footprint, pick, now - item.arrived_at, now, commands)

    def _book(
        self,
        request: Request,
        footprint: Footprint,
        pick: Pick,
        queued_s: float,
        now: float,
        commands: list[Command],
    ) -> None:
        target = pick.endpoint
        self._books.dispatch(request, target, footprint, now)
        self.revocations.leftovers.dispatched(target, request.priority, footprint)
        tally = self._tally.band(request.priority, now)
        tally.outcomes[Outcome.DISPATCHED] += 1
        tally.drain.dispatched(now)
        fallbacks = tuple(endpoint.address for endpoint in pick.fallbacks) if pick.fallbacks else ()
        endpoint = target.endpoint
        commands.append(Dispatch(request.id, endpoint.id, endpoint.address, fallbacks, queued_s))


def _is_out_of_reach(endpoint: EndpointState, closed: _Closed) -> bool:
    """Kept for an earlier blocked head, or busy with the one request that probes it."""
    return endpoint in closed.endpoints or (endpoint.is_probing and endpoint.requests > 0)
