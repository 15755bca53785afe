"""The worker: claims as many items as the gateway can use soon, runs a turn for each, keeps their leases.

Several workers may run against one store, in one process or on many machines. A stopping worker claims
nothing more, returns what it holds with everything generated so far, and ends when that is written.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from random import Random

from extproc.batch.gateway import Gateway
from extproc.batch.inputs import InputReader
from extproc.batch.job import ItemKey, Job, JobId
from extproc.batch.journal import Journal, Lease
from extproc.batch.meters import BatchMeters
from extproc.batch.outage import Outage
from extproc.batch.planner import Disruption, RetryPolicy, Window
from extproc.batch.stores.contract import Claimed, JobStore, Return, StoreUnavailableError
from extproc.batch.turn import Tools, Turn, TurnEnd
from extproc.clock import Clock
from extproc.config.batch import BatchConfig
from extproc.tasks import TaskKeeper

logger = logging.getLogger(__name__)

_RENEW_S = 1.0
"""Leases are renewed, and cancelled jobs noticed, at least this often."""

_OWN_ERROR_DELAY_S = 5.0


@dataclass(slots=True)
class _Active:
    lease: Lease
    is_queued: bool = True
    is_ended: bool = False
    turn: Turn | None = None
    task: asyncio.Task[None] | None = field(default=None, repr=False)


class Worker:
    """One worker; `run` returns after `stop` when everything is given back and written."""

    def __init__(
        self, store: JobStore, config: BatchConfig, clock: Clock, rng: Random, meters: BatchMeters
    ) -> None:
        self._store = store
        self._config = config
        self._clock = clock
        self._meters = meters
        self._inputs = InputReader(store)
        self._journal = Journal(store, clock, config.worker, meters, self._on_lost)
        self._window = Window(config.window, clock.now())
        policy = RetryPolicy(config.retry)
        self._gateway = Gateway(config.gateway, clock, policy, rng, concurrency=config.window.maximum)
        self._tools = Tools(
            gateway=self._gateway,
            journal=self._journal,
            policy=policy,
            rng=rng,
            clock=clock,
            meters=meters,
            mode=config.worker.resume,
            queue_timeout_s=config.gateway.queue_timeout_s,
            request_timeout_s=config.gateway.request_timeout_s,
            on_headers=self._on_headers,
            on_ended=self._on_ended,
        )
        self._active: dict[ItemKey, _Active] = {}
        self._jobs: dict[JobId, Job] = {}
        self._hold_until = 0.0
        self._no_claims = Outage("nothing can be claimed")
        self._no_renewals = Outage("leases can't be renewed")
        self._wake = asyncio.Event()
        self._is_stopping = False
        self._failure: BaseException | None = None
        self._tasks = TaskKeeper(self._on_failure)

    @property
    def is_healthy(self) -> bool:
        """The store takes our writes and some gateway address answers."""
        return not self._journal.is_failing and self._gateway.open_circuits < len(self._config.gateway.urls)

    def nudge(self) -> None:
        """There may be new work: look at once."""
        self._wake.set()

    def stop(self) -> None:
        """Begin to stop; `run` returns when it is done."""
        self._is_stopping = True
        self._wake.set()

    async def run(self) -> None:
        """Work until `stop`. Raises when one of the worker's own loops fails."""
        async with self._gateway:
            writing = self._tasks.spawn(self._journal.run(), name="journal")
            self._tasks.spawn(self._keep_leases(), name="leases")
            try:
                await self._claim_loop()
                await self._give_back()
                self._journal.close()
                async with asyncio.timeout(self._config.worker.stop_timeout_s):
                    await asyncio.shield(writing)
            except TimeoutError:
                logger.warning("stopped before everything was written; leases will run out")
            finally:
                await self._tasks.close()
        if self._failure is not None:
            raise self._failure

    # Claiming

    async def _claim_loop(self) -> None:
        while not self._is_stopping:
            room = self._room()
            claimed: list[Claimed] = []
            if room > 0:
                try:
                    claimed = await self._store.claim(room, self._config.worker.lease_s)
                except StoreUnavailableError as error:
                    self._meters.store_failures.inc()
                    self._no_claims.failed(error)
                else:
                    self._no_claims.succeeded()
            for one in claimed:
                self._begin(one)
            await self._wait_for_change()

    def _room(self) -> int:
        now = self._clock.now()
        in_flight = self._in_flight()
        queued = sum(active.is_queued and not active.is_ended for active in self._active.values())
        self._meters.in_flight.set(in_flight)
        self._meters.queued.set(queued)
        room = self._window.room(in_flight, queued, now)
        # Ended requests whose results are not written yet hold memory, not capacity: bounded, not counted.
        room = min(room, 2 * self._window.limit - len(self._active))
        self._meters.window.set(self._window.limit)
        self._meters.open_circuits.set(self._gateway.open_circuits)
        if now < self._hold_until:
            return 0
        allowed = self._gateway.room(now)
        return room if allowed is None else min(room, allowed)

    def _in_flight(self) -> int:
        return sum(not active.is_ended for active in self._active.values())

    async def _wait_for_change(self) -> None:
        try:
            async with asyncio.timeout(self._config.worker.poll_interval_s):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    # Turns

    def _begin(self, claimed: Claimed) -> None:
        active = _Active(Lease(claimed.key, claimed.token))
        self._active[claimed.key] = active
        name = f"turn {claimed.key.job_id}:{claimed.key.line}"
        active.task = self._tasks.spawn(self._work(active, claimed), name=name)

    async def _work(self, active: _Active, claimed: Claimed) -> None:
        key = claimed.key
        try:
            active.turn = await self._make_turn(active.lease, claimed)
            route = self._gateway.pick_route(self._clock.now())
            if route is None:
                active.turn.give_back()
                return
            self._on_turn_end(active, await active.turn.run(route))
        except asyncio.CancelledError:
            if active.turn is not None:
                active.turn.give_back()
            raise
        except StoreUnavailableError as error:
            logger.warning("item %s:%d can't be read: %s", key.job_id, key.line, error)
            self._journal.settle(active.lease, Return(key, claimed.token, 1.0, bool(claimed.entries)))
        except Exception as error:
            logger.exception("an error of ours in item %s:%d", key.job_id, key.line)
            if active.turn is None:
                self._journal.settle(active.lease, Return(key, claimed.token, _OWN_ERROR_DELAY_S, False))
            else:
                await active.turn.fail(error)
        finally:
            if self._active.get(key) is active:
                del self._active[key]
            self._wake.set()

    async def _make_turn(self, lease: Lease, claimed: Claimed) -> Turn:
        job = self._jobs.get(claimed.key.job_id)
        if job is None:
            job = await self._store.get_job(claimed.key.job_id)
            assert job is not None  # it was claimed from
            self._jobs[job.id] = job
        raw = await self._inputs.read_line(job, claimed.key.line)
        return Turn(self._tools, lease, job, raw, claimed.entries)

    def _on_headers(self, lease: Lease, queue_s: float) -> None:
        active = self._active.get(lease.key)
        if active is not None and active.is_queued:
            active.is_queued = False
            self._window.on_dispatched(queue_s)
            self._meters.queue_seconds.observe(queue_s)
            self._wake.set()

    def _on_ended(self, lease: Lease) -> None:
        """The request has ended: its place is free, though its result is not written yet."""
        active = self._active.get(lease.key)
        if active is not None and not active.is_ended:
            active.is_ended = True
            self._wake.set()

    def _on_turn_end(self, active: _Active, end: TurnEnd) -> None:
        now = self._clock.now()
        if end.disruption in (Disruption.EVICTED, Disruption.BACKPRESSURE):
            self._window.on_pushback(self._in_flight(), now)
        if end.disruption is Disruption.BACKPRESSURE:
            # Whatever is sent now would be refused for the same reason.
            self._hold_until = max(self._hold_until, now + (end.retry_after_s or 0.0))

    # Leases

    async def _keep_leases(self) -> None:
        interval_s = min(_RENEW_S, self._config.worker.lease_s / 3)
        while True:
            await self._clock.sleep_until(self._clock.now() + interval_s)
            held = [
                (active.lease.key, active.lease.token)
                for active in self._active.values()
                if not active.lease.is_over
            ]
            try:
                lost = await self._store.renew(held, self._config.worker.lease_s) if held else set()
            except StoreUnavailableError as error:
                self._meters.store_failures.inc()
                self._no_renewals.failed(error)
                continue
            self._no_renewals.succeeded()
            tokens = dict(held)
            for key in lost:
                active = self._active.get(key)
                if active is not None and active.lease.token == tokens[key] and not active.lease.is_over:
                    self._meters.lost_leases.inc()
                    self._on_lost(active.lease)
            self._forget_idle_jobs()
            self._meters.unsaved_tokens.set(self._unsaved_tokens())

    def _on_lost(self, lease: Lease) -> None:
        """Another worker has it, or its job is being closed: stop generating at once."""
        self._journal.abandon(lease)
        active = self._active.get(lease.key)
        if active is not None and active.lease is lease and active.task is not None:
            active.task.cancel()

    def _forget_idle_jobs(self) -> None:
        busy = {key.job_id for key in self._active}
        self._jobs = {job_id: job for job_id, job in self._jobs.items() if job_id in busy}

    def _unsaved_tokens(self) -> int:
        return sum(
            generation.unsaved_tokens
            for active in self._active.values()
            for generation in active.lease.progress.generations
        )

    # Stopping

    async def _give_back(self) -> None:
        tasks = [active.task for active in self._active.values() if active.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _on_failure(self, name: str, error: BaseException) -> None:
        logger.error("%s failed", name, exc_info=error)
        if not name.startswith("turn "):
            self._failure = error
            self.stop()
