"""One replica's loop: report, take the grant, and, when it leads, allocate for all.

It must not know how requests are decided: it sees its pool through `LeasedPool`. Nothing here is on the
request path, except `guard`, one comparison per event, which keeps a process that was paused from using
credits that ran out meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Protocol

from extproc.clock import Clock
from extproc.config.replicas import ReplicasConfig
from extproc.core.credits import NO_GRANT, Credits, Grant, Reclaim, ReplicaDemand, Report
from extproc.core.leasing import even_share, fallback_credits, use_by_address
from extproc.core.urgency import NO_NEED, Need, gap_s, is_urgent, need_of
from extproc.errors import PeerProtocolError
from extproc.runtime.replicas.leader import Allocator
from extproc.runtime.replicas.letters import decode_grant, decode_summary, encode
from extproc.runtime.replicas.status import MemberSummary, ReplicaStatus
from extproc.runtime.replicas.store import Answer, ReplicaStore, StoreError

logger = logging.getLogger(__name__)


class LeasedPool(Protocol):
    """What the agent sees of its replica's flow control."""

    def capacity(self) -> Mapping[str, Credits]:
        """The whole capacity of every endpoint, by address."""
        ...

    def demand(self) -> ReplicaDemand: ...

    def measured(self) -> Mapping[str, int]:
        """The engines' own count of requests by address, as far as it is fresh."""
        ...

    def need(self) -> Need:
        """The highest priority that waits, and how many of it."""
        ...

    def lease(self, credits: Mapping[str, Credits], *, hold_sheddable: bool) -> None:
        """From now on use at most so much; addresses that are left out have nothing."""
        ...

    def reclaim(self, reclaims: Sequence[Reclaim]) -> None: ...


class ReplicaAgent:
    """Keeps the credits of one replica up to date; `run` until cancelled, then `leave`."""

    def __init__(
        self,
        config: ReplicasConfig,
        replica: str,
        store: ReplicaStore,
        pool: LeasedPool,
        clock: Clock,
        set_ready: Callable[[bool], None] = lambda is_ready: None,
    ) -> None:
        self._config = config
        self.replica = replica
        self._store = store
        self._pool = pool
        self._clock = clock
        self._allocator = Allocator(store, config.lease_s)
        self._grant: Grant = NO_GRANT
        self._credits: Mapping[str, Credits] = {}
        self._members: Sequence[str] = (replica,)
        self._shares: Mapping[str, bytes] = {}
        self._leader = ""
        self._valid_until = float("-inf")
        self._state = "starting"
        self._wake = asyncio.Event()
        self._turns = 0
        """Reports out of turn since the last one that came by the period."""
        self._set_ready = set_ready
        self.is_ready = False
        """Whether it may serve. Without a first grant it may not: others may hold all of the capacity."""
        self._reported = NO_NEED
        self._grants_taken = 0
        self._reclaims_taken = 0
        self._errors = 0
        self._is_failing = False
        self._has_bad_grant = False

    # ---- on every event of the driver

    def guard(self, now: float) -> None:
        """Call before an event is handled: lets go of credits whose lease ran out."""
        if now > self._valid_until and self._state in ("leased", "cut-off"):
            self._fall_back()

    def noticed(self) -> None:
        """Call after an event was handled: what must not wait for the next period is reported at once."""
        if is_urgent(self._pool.need(), self._reported):
            self._wake.set()

    # ---- the loop

    async def run(self) -> None:
        """Report once a period, sooner when woken."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen(), name="replica-listen")
            while True:
                started = self._clock.now()
                await self.exchange()
                _stop_if_cancelled()
                await self._pause(started)

    async def _pause(self, started: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, started + self._config.period_s - self._clock.now())):
                await self._wake.wait()
            self._turns += 1
        except TimeoutError:
            self._turns = 0
        await self._clock.sleep_until(started + gap_s(self._turns))
        self._wake.clear()

    async def _listen(self) -> None:
        while True:
            try:
                async with aclosing(self._store.listen()) as messages:
                    async for _ in messages:
                        self._wake.set()
            except StoreError:
                pass
            _stop_if_cancelled()
            await self._clock.sleep_until(self._clock.now() + self._config.period_s)

    async def exchange(self) -> None:
        """One report and what follows from the answer. Never raises for the store's faults."""
        sent_at = self._clock.now()
        report = Report(
            grant_sequence=self._grant.sequence,
            demand=self._pool.demand(),
            measured=self._pool.measured(),
        )
        config = self._config
        need = need_of(report.demand)
        wakes_others = is_urgent(need, self._reported)
        self._reported = need
        try:
            answer = await self._store.report(
                encode(report),
                encode(self._summary(report.demand)),
                lease_s=config.lease_s,
                leader_lease_s=config.leader_lease_s,
            )
            self._take(answer, sent_at)
            if self.is_leader:
                now = self._clock.now()
                if await self._allocator.round(self._leader, self._pool.capacity(), now):
                    self._wake.set()
            elif wakes_others:
                await self._store.wake_others()
        except StoreError as error:
            self._failed(error)

    def _summary(self, demand: ReplicaDemand) -> MemberSummary:
        credits = self._credits.values()
        return MemberSummary(
            slots=sum(credit.slots for credit in credits),
            tokens=sum(credit.tokens for credit in credits),
            in_flight=sum(sum(use.slots) for use in demand.in_use.values()),
            waiting=sum(waiting.requests for waiting in demand.waiting),
        )

    @property
    def is_leader(self) -> bool:
        return self._leader.rpartition(":")[0] == self.replica

    def _take(self, answer: Answer, sent_at: float) -> None:
        was_cut_off = self._state == "fallback"
        known = len(self._members)
        self._leader = answer.leader
        if was_cut_off and self.is_leader:
            self._allocator.settle(max(known, len(answer.shares)), sent_at)
        self._shares = answer.shares
        if len(answer.shares) >= known or self._state == "leased":
            self._members = sorted(answer.shares)
        # The lease counts from when the report was sent: Redis started its own count later.
        self._valid_until = sent_at + self._config.lease_s
        if self._is_failing:
            logger.info("replica %s: redis answers again", self.replica)
            self._is_failing = False
        self._apply(answer.grant)

    def _apply(self, letter: bytes | None) -> None:
        try:
            grant = NO_GRANT if letter is None else decode_grant(letter)
        except PeerProtocolError as error:
            if not self._has_bad_grant:
                logger.error("replica %s: %s (said once)", self.replica, error)
            self._has_bad_grant = True
            grant = NO_GRANT
        else:
            self._has_bad_grant = False
        if grant.sequence == self._grant.sequence and self._state in ("leased", "starting"):
            # Once more: an endpoint may have come back under a new identity, without credits.
            self._pool.lease(self._credits, hold_sheddable=False)
            return
        self._grant = grant
        self._credits = grant.credits
        self._state = "leased" if grant.sequence else "starting"
        self._grants_taken += 1
        if grant.sequence and not self.is_ready:
            self.is_ready = True
            self._set_ready(True)
        self._reclaims_taken += len(grant.reclaims)
        if grant.reclaims:
            self._pool.reclaim(grant.reclaims)
        self._pool.lease(grant.credits, hold_sheddable=False)
        if grant.is_urgent:
            # The allocator gives nothing more before it has the receipt.
            self._wake.set()

    def _failed(self, error: StoreError) -> None:
        self._errors += 1
        if not self._is_failing:
            logger.warning("replica %s goes on without its group: %s", self.replica, error)
            self._is_failing = True
        if self._state == "leased":
            self._state = "cut-off"
        self.guard(self._clock.now())
        if self._state == "fallback":
            self._use_fallback()

    def _fall_back(self) -> None:
        self._state = "fallback"
        self._grant = NO_GRANT
        logger.warning(
            "replica %s lost its lease: it goes on with one share of %d%s",
            self.replica,
            len({*self._members, self.replica}),
            ", priorities 0 and above only" if self._holds_sheddable else "",
        )
        self._use_fallback()

    def _use_fallback(self) -> None:
        members = sorted({*self._members, self.replica})
        capacity = self._pool.capacity()
        index = members.index(self.replica)
        shares = even_share(capacity, index, len(members))
        in_use = use_by_address(self._pool.demand())
        self._credits = fallback_credits(shares, in_use, self._pool.measured(), capacity, len(members))
        self._pool.lease(self._credits, hold_sheddable=self._holds_sheddable)

    @property
    def _holds_sheddable(self) -> bool:
        return self._config.fallback == "hold-sheddable"

    async def begin_drain(self) -> None:
        """Nothing to do: what is in flight keeps its credits, and no report asks for more."""

    async def leave(self) -> None:
        """Hand the credits back after a drain. Failing is harmless: the lease ends by itself."""
        try:
            await self._store.leave()
        except StoreError as error:
            logger.warning("replica %s could not say good-bye: %s", self.replica, error)
        await self._store.close()

    def status(self) -> ReplicaStatus:
        return ReplicaStatus(
            replica=self.replica,
            state=self._state,
            is_leader=self.is_leader,
            leader=self._leader,
            members=self._members,
            shares={
                name: summary
                for name, data in self._shares.items()
                if (summary := decode_summary(data)) is not None
            },
            capacity=self._pool.capacity(),
            credits=self._credits,
            grants_taken=self._grants_taken,
            reclaims_taken=self._reclaims_taken,
            allocation_rounds=self._allocator.rounds,
            store_calls=self._store.calls,
            store_errors=self._errors,
            lease_left_s=max(0.0, self._valid_until - self._clock.now()),
        )


def _stop_if_cancelled() -> None:
    """The Redis client may swallow a cancellation that meets its own timeout; ours must not get lost."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
