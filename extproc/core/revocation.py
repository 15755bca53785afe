"""How many to revoke, on which endpoint, and when; and what became of each revocation.

A blocked request of a higher priority is the demand. Sizing `demand` with promise `dispatch` answers with
an endpoint whose outstanding revocations, plus as few new victims as needed, make the request fit: it is
dispatched there in the same call, and the ledger counts victim and newcomer both until the victim's
stream has ended, so that nobody else can take the place. A band may only use promises of strictly lower
victims. `wait` and `deficit` only revoke; the freed capacity then goes to the highest waiting band.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from extproc.core.band import Band, QueuedRequest
from extproc.core.books import Books
from extproc.core.borrowing import Borrowing
from extproc.core.ceiling import Ceiling
from extproc.core.eviction import DeficitSizingConfig, EvictionConfig
from extproc.core.footprint import NO_FOOTPRINT
from extproc.core.inflight import InflightRequest
from extproc.core.leftovers import Leftovers
from extproc.core.pool import Candidates, EndpointState
from extproc.core.types import RequestId

T = TypeVar("T")

_ENDPOINTS_TRIED = 16
_MEASURED_GRACE_S = 2.3
_ACCOUNTED_GRACE_S = 0.01


@dataclass(slots=True)
class BlockedHead:
    """A request that is next in its band and was not let in. `is_usable` False: not on this endpoint."""

    item: QueuedRequest
    band: Band
    candidates: Candidates
    ceiling: Ceiling
    is_usable: Callable[[EndpointState], bool]

    @property
    def priority(self) -> int:
        return self.band.priority

    def may_use(self, endpoint: EndpointState) -> bool:
        return endpoint in self.candidates and self.is_usable(endpoint)


@dataclass(slots=True)
class Relief:
    """The answer to one blocked request: whom to revoke, and where it may go at once (None: nowhere yet)."""

    victims: list[InflightRequest] = field(default_factory=list)
    endpoint: EndpointState | None = None


class Revocations:
    """Plans and tracks revocations; `books` carries out the accounting."""

    def __init__(self, config: EvictionConfig, books: Books) -> None:
        self.config = config
        self._books = books
        self._outstanding: dict[RequestId, InflightRequest] = {}
        self._priorities: Counter[int] = Counter()
        self._endpoints: Counter[EndpointState] = Counter()
        self._cool_until = float("-inf")
        self._is_cooling_awaited = False
        self._borrowing = Borrowing(books)
        self.leftovers = Leftovers(config.keep_leftover_s)
        self.confirmed = 0
        self.timed_out = 0
        self.issued: Counter[int] = Counter()

    def reconfigure(self, config: EvictionConfig) -> None:
        """Other rules from now on; what is outstanding goes on."""
        self.config = config
        self.leftovers.keep_s = config.keep_leftover_s

    @property
    def outstanding(self) -> int:
        return len(self._outstanding)

    @property
    def sizes_to_queue(self) -> bool:
        """Whether a request behind the head can cause a revocation."""
        sizing = self.config.sizing
        return self.config.enabled and sizing.type == "demand" and sizing.promise == "wait"

    def relieve(self, blocked: BlockedHead, now: float) -> Relief:
        """What eviction can do for a blocked head."""
        if not self.config.enabled or blocked.ceiling.lowest <= 0:
            return Relief()
        sizing = self.config.sizing
        if isinstance(sizing, DeficitSizingConfig):
            return self._relieve_deficit(sizing, blocked, now)
        if not all(victim < blocked.priority for victim in self._priorities):
            # A promise was made at the cost of this band or a higher one: it isn't ours to use.
            return Relief()
        if sizing.promise == "wait":
            return self._relieve_waiting(blocked, now)
        return self._relieve_promised(blocked, now)

    def victims_for_others(
        self, endpoint: EndpointState, priority: int, slots: int, kv_tokens: int
    ) -> list[InflightRequest]:
        """The first victims on the endpoint that free so much for another replica, or all there are.

        What is being revoked there already counts: the same need is asked for again until it is met.
        """
        freed = endpoint.revoked
        victims: list[InflightRequest] = []
        for victim in self._books.policies.victims.victims_on(endpoint, priority):
            if freed.requests >= slots and freed.kv_tokens >= kv_tokens:
                break
            victims.append(victim)
            freed = freed.plus(victim.footprint)
        return victims

    def begin(self, entry: InflightRequest, now: float) -> None:
        """A revocation is issued."""
        self._books.revoke(entry, now)
        self._outstanding[entry.request.id] = entry
        self._priorities[entry.request.priority] += 1
        self._endpoints[entry.endpoint] += 1
        self.issued[entry.request.priority] += 1

    def end(self, entry: InflightRequest, now: float, *, timed_out: bool = False) -> None:
        """The stream of a revoked request has ended, or was given up."""
        if self._outstanding.pop(entry.request.id, None) is None:
            return
        _decrement(self._priorities, entry.request.priority)
        _decrement(self._endpoints, entry.endpoint)
        if entry.endpoint not in self._endpoints:
            self.leftovers.confirmed(entry.endpoint, now)
        self._cool_until = now + self._grace_s()
        if timed_out:
            self.timed_out += 1
        else:
            self.confirmed += 1

    def moved(self, before: EndpointState, after: EndpointState) -> None:
        """A revoked request turned out to run elsewhere."""
        _decrement(self._endpoints, before)
        self._endpoints[after] += 1

    def overdue(self, now: float) -> InflightRequest | None:
        """The oldest revocation if it has waited too long for its confirmation."""
        for entry in self._outstanding.values():
            due = (entry.revoked_at or 0.0) + self.config.confirm_timeout_s
            return entry if due <= now else None
        return None

    def next_wakeup(self, now: float) -> float | None:
        """The next timeout, or when a blocked head is through with waiting to cool or to borrow."""
        is_borrowing = self._borrowing.until > now
        if not (self._outstanding or self._is_cooling_awaited or self.leftovers or is_borrowing):
            return None
        times = [self._cool_until] if self._is_cooling_awaited and self._cool_until > now else []
        if is_borrowing:
            times.append(self._borrowing.until)
        for entry in self._outstanding.values():
            times.append((entry.revoked_at or 0.0) + self.config.confirm_timeout_s)
            break
        leftover_end = self.leftovers.next_end(now)
        if leftover_end is not None:
            times.append(leftover_end)
        return min(times, default=None)

    def _relieve_promised(self, blocked: BlockedHead, now: float) -> Relief:
        detector = self._books.policies.detector
        footprint, ceiling = blocked.item.footprint, blocked.ceiling
        if self._outstanding and detector.admits(blocked.candidates, footprint, ceiling, NO_FOOTPRINT, now):
            for endpoint in self._endpoints:
                if blocked.may_use(endpoint) and detector.fits(
                    endpoint, footprint, ceiling, NO_FOOTPRINT, now
                ):
                    return Relief(endpoint=endpoint)
        tried: set[EndpointState] = set()
        for victim in self._books.policies.victims.victims(blocked.priority):
            endpoint = victim.endpoint
            if endpoint in tried or not blocked.may_use(endpoint):
                continue
            victims = self._enough_on(endpoint, blocked, now)
            if victims is not None:
                if self._borrowing.waits(blocked.item.arrived_at, victims, self.config.borrow_wait_s, now):
                    return Relief()
                self._keep_leftover(endpoint, victims, blocked)
                return Relief(victims, endpoint)
            tried.add(endpoint)
            if len(tried) >= _ENDPOINTS_TRIED:
                break
        return Relief()

    def _keep_leftover(
        self, endpoint: EndpointState, victims: list[InflightRequest], blocked: BlockedHead
    ) -> None:
        freed = NO_FOOTPRINT
        for victim in victims:
            freed = freed.plus(victim.footprint)
        self.leftovers.freed(endpoint, blocked.priority, freed)

    def _enough_on(
        self, endpoint: EndpointState, blocked: BlockedHead, now: float
    ) -> list[InflightRequest] | None:
        """The fewest first victims on one endpoint that let the request in; None if all don't."""
        detector = self._books.policies.detector
        limit = self.config.sizing.max_revocations_per_decision
        footprint, ceiling = blocked.item.footprint, blocked.ceiling
        freed = NO_FOOTPRINT
        victims: list[InflightRequest] = []
        for victim in self._books.policies.victims.victims_on(endpoint, blocked.priority):
            if limit is not None and len(victims) >= limit:
                return None
            victims.append(victim)
            freed = freed.plus(victim.footprint)
            is_admitted = detector.admits(blocked.candidates, footprint, ceiling, freed, now)
            if is_admitted and detector.fits(endpoint, footprint, ceiling, freed, now):
                return victims
        return None

    def _relieve_waiting(self, blocked: BlockedHead, now: float) -> Relief:
        """Victims until all that the band has queued would fit."""
        limit = self.config.sizing.max_revocations_per_decision
        need = blocked.band.queued_footprint
        relief = Relief()
        freed = NO_FOOTPRINT
        for victim in self._books.policies.victims.victims(blocked.priority):
            if self._books.policies.detector.holds_all(blocked.candidates, need, blocked.ceiling, freed, now):
                break
            if limit is not None and len(relief.victims) >= limit:
                break
            if blocked.may_use(victim.endpoint):
                relief.victims.append(victim)
                freed = freed.plus(victim.footprint)
        return relief

    def _relieve_deficit(self, sizing: DeficitSizingConfig, blocked: BlockedHead, now: float) -> Relief:
        if self._outstanding:
            return Relief()
        if now < self._cool_until:
            self._is_cooling_awaited = True
            return Relief()
        self._is_cooling_awaited = False
        saturation = self._books.policies.detector.saturation(blocked.candidates, now)
        inflight = len(self._books.ledger)
        if saturation <= 0 or not inflight:
            return Relief()
        credit = saturation / inflight
        wanted = max(1, math.ceil((saturation - blocked.ceiling.lowest) / credit - 1e-9))
        wanted = min(wanted, sizing.max_revocations_per_decision)
        relief = Relief()
        for victim in self._books.policies.victims.victims(blocked.priority):
            if len(relief.victims) >= wanted:
                break
            if blocked.may_use(victim.endpoint):
                relief.victims.append(victim)
        return relief

    def _grace_s(self) -> float:
        sizing = self.config.sizing
        if not isinstance(sizing, DeficitSizingConfig):
            return 0.0
        if sizing.grace_s is not None:
            return sizing.grace_s
        return _MEASURED_GRACE_S if self._books.policies.detector.is_measured else _ACCOUNTED_GRACE_S


def _decrement(counts: Counter[T], key: T) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
