"""Warm standby: one replica serves, the others wait with everything loaded.

The elected one is ready; readiness (gRPC health, which Envoy checks) is all that moves the traffic. It must
not know where the election is held.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from extproc.clock import Clock
from extproc.config.replicas import ReplicasConfig
from extproc.runtime.replicas.status import ReplicaStatus
from extproc.runtime.replicas.store import ReplicaStore, StoreError

logger = logging.getLogger(__name__)

_TRIES_PER_LEASE = 4


class Election(Protocol):
    """Where one of the replicas is elected; every call may raise StoreError."""

    @property
    def calls(self) -> int:
        """Requests made so far."""
        ...

    async def acquire(self) -> str:
        """Take the lease if it is free, renew it if it is ours; who holds it now."""
        ...

    async def resign(self) -> None: ...


class RedisElection:
    """The lease is the group's leadership in Redis."""

    def __init__(self, store: ReplicaStore, lease_s: float) -> None:
        self._store = store
        self._lease_s = lease_s

    @property
    def calls(self) -> int:
        return self._store.calls

    async def acquire(self) -> str:
        answer = await self._store.report(b"", b"", lease_s=self._lease_s, leader_lease_s=self._lease_s)
        return answer.leader.rpartition(":")[0]

    async def resign(self) -> None:
        try:
            await self._store.leave()
        finally:
            await self._store.close()


class StandbyMember:
    """Ready while it holds the lease. Its lease counts from before each renewal, so two never overlap."""

    def __init__(
        self,
        config: ReplicasConfig,
        replica: str,
        election: Election,
        clock: Clock,
        set_ready: Callable[[bool], None],
    ) -> None:
        self._config = config
        self.replica = replica
        self._election = election
        self._clock = clock
        self._set_ready = set_ready
        self._holder = ""
        self._valid_until = float("-inf")
        self._is_active = False
        self._is_failing = False
        self._errors = 0
        self._terms = 0
        self._is_leaving = False

    @property
    def is_ready(self) -> bool:
        return self._is_active

    async def run(self) -> None:
        while not self._is_leaving:
            started = self._clock.now()
            await self.exchange()
            await self._clock.sleep_until(started + self._config.period_s)

    async def exchange(self) -> None:
        """One try to hold the lease. Never raises for the store's faults."""
        sent_at = self._clock.now()
        try:
            # A call that hangs must not keep us active beyond the lease.
            async with asyncio.timeout(self._config.lease_s / _TRIES_PER_LEASE):
                self._holder = await self._election.acquire()
        except (StoreError, TimeoutError) as error:
            self._errors += 1
            if not self._is_failing:
                reason = str(error) or "no answer in time"
                logger.warning("replica %s can't reach the election: %s", self.replica, reason)
            self._is_failing = True
        else:
            self._is_failing = False
            if self._is_leaving:
                await self._resign()
            elif self._holder == self.replica:
                self._valid_until = sent_at + self._config.lease_s
            else:
                self._valid_until = float("-inf")
        self._settle()
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError

    def _settle(self) -> None:
        is_active = self._clock.now() < self._valid_until
        if is_active == self._is_active:
            return
        self._is_active = is_active
        self._terms += is_active
        logger.info("replica %s %s", self.replica, "serves now" if is_active else "stands by now")
        self._set_ready(is_active)

    async def begin_drain(self) -> None:
        """Let another take over at once: it serves what is new while our streams end."""
        self._is_leaving = True
        self._valid_until = float("-inf")
        self._settle()
        await self._resign()

    async def _resign(self) -> None:
        try:
            await self._election.resign()
        except StoreError as error:
            logger.warning("replica %s could not resign: %s", self.replica, error)

    async def leave(self) -> None:
        if not self._is_leaving:
            await self.begin_drain()

    def status(self) -> ReplicaStatus:
        return ReplicaStatus(
            replica=self.replica,
            state="active" if self._is_active else "standby",
            is_leader=self._is_active,
            leader=self._holder,
            members=[self.replica],
            shares={},
            capacity={},
            credits={},
            grants_taken=self._terms,
            reclaims_taken=0,
            allocation_rounds=0,
            store_calls=self._election.calls,
            store_errors=self._errors,
            lease_left_s=max(0.0, self._valid_until - self._clock.now()),
        )
