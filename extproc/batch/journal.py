"""Grouped writing of progress and results: a bounded number of store writes per interval, never one per
token.

Streams mark their lease when they have new tokens; a flush takes what is new of every marked lease and writes
it in one call, together with results and returned items. When the store fails, what was taken is kept and
written again (which has the effect of once); streams go on meanwhile. A change refused by the store means
that the lease is lost: its owner is told and nothing more is written for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from extproc.batch.job import ItemKey
from extproc.batch.meters import BatchMeters
from extproc.batch.progress import Progress
from extproc.batch.stores.contract import (
    Amounts,
    Change,
    Finish,
    Return,
    Save,
    StoreUnavailableError,
)
from extproc.clock import Clock
from extproc.config.batch import WorkerConfig

logger = logging.getLogger(__name__)

_RETRY_S = (0.05, 0.1, 0.2, 0.5, 1.0)


@dataclass(slots=True)
class Lease:
    """One claimed item while it is worked on.

    `is_over`: nothing may be written for it any more. `take_amounts()`: what happened since the last call.
    """

    key: ItemKey
    token: int
    progress: Progress = field(default_factory=lambda: Progress([]))
    part: int = 0
    is_over: bool = False
    take_amounts: Callable[[], Amounts] = dict


class ChangeSink(Protocol):
    """The one thing that the journal needs of a store."""

    async def apply(self, changes: Sequence[Change]) -> set[ItemKey]:
        """See `JobStore.apply`."""
        ...


class Journal:
    """Writes for all leases of one worker; `on_lost` is called for each lease that turns out to be lost."""

    def __init__(
        self,
        store: ChangeSink,
        clock: Clock,
        config: WorkerConfig,
        meters: BatchMeters,
        on_lost: Callable[[Lease], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._config = config
        self._meters = meters
        self._on_lost = on_lost
        self._marked: dict[ItemKey, Lease] = {}
        self._settling: list[tuple[Lease, Return | Finish, asyncio.Future[bool]]] = []
        self._wake = asyncio.Event()
        self._is_closing = False
        self.is_failing = False

    def mark(self, lease: Lease) -> None:
        """There are new tokens: save them within the interval, at once when there are many."""
        if lease.is_over:
            return
        self._marked[lease.key] = lease
        if lease.progress.generations[lease.part].unsaved_tokens >= self._config.save_tokens:
            self._wake.set()

    def settle(self, lease: Lease, change: Return | Finish) -> asyncio.Future[bool]:
        """Write the last change of a lease with the next flush; the future tells whether it was accepted.

        What was marked and not yet written must be in `change`: a result makes it needless, a return carries
        it.
        """
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._marked.pop(lease.key, None)
        if lease.is_over:
            future.set_result(False)
            return future
        lease.is_over = True
        self._settling.append((lease, change, future))
        self._wake.set()
        return future

    def abandon(self, lease: Lease) -> None:
        """The lease is lost: write nothing more for it."""
        lease.is_over = True
        self._marked.pop(lease.key, None)

    async def run(self) -> None:
        """Flush until closed; returns when everything is written."""
        while True:
            await self._wait_for_work()
            if self._marked or self._settling:
                await self._flush()
            elif self._is_closing:
                return

    def close(self) -> None:
        """Let `run` write what is there and return."""
        self._is_closing = True
        self._wake.set()

    async def _wait_for_work(self) -> None:
        if not self._is_closing:
            try:
                async with asyncio.timeout(self._config.save_interval_s):
                    await self._wake.wait()
            except TimeoutError:
                pass
        self._wake.clear()

    async def _flush(self) -> None:
        leases, self._marked = list(self._marked.values()), {}
        settling, self._settling = self._settling, []
        changes: list[Change] = [
            Save(lease.key, lease.token, lease.progress.take_entry(lease.part), lease.take_amounts())
            for lease in leases
        ]
        changes += [change for _, change, _ in settling]
        refused = await self._apply(changes)
        for lease in leases:
            if lease.key in refused and not lease.is_over:
                self.abandon(lease)
                self._on_lost(lease)
        for lease, _, future in settling:
            if not future.done():
                future.set_result(lease.key not in refused)
        self._meters.lost_leases.inc(len(refused))

    async def _apply(self, changes: list[Change]) -> set[ItemKey]:
        """Write until the store takes it."""
        attempt = 0
        while True:
            started = self._clock.now()
            try:
                refused = await self._store.apply(changes)
            except StoreUnavailableError as error:
                self._meters.store_failures.inc()
                if not self.is_failing:
                    logger.warning("progress can't be saved, trying on: %s", error)
                self.is_failing = True
                await self._clock.sleep_until(started + _RETRY_S[min(attempt, len(_RETRY_S) - 1)])
                attempt += 1
            else:
                self._meters.store_write_seconds.observe(self._clock.now() - started)
                if self.is_failing:
                    logger.info("progress is saved again")
                self.is_failing = False
                return refused
