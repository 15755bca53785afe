"""Grouped writes: few of them, in order, repeated until the store takes them; lost leases are told."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from extproc.batch.job import ItemKey, ItemState, JobId
from extproc.batch.journal import Journal, Lease
from extproc.batch.meters import BatchMeters
from extproc.batch.progress import Generation, Progress
from extproc.batch.stores.contract import Change, Finish, Return, Save, StoreUnavailableError
from extproc.clock import SystemClock
from extproc.config.batch import WorkerConfig


class RecordingStore:
    """Keeps every accepted call; fails the first `failures` ones; refuses the keys in `lost`."""

    def __init__(self, failures: int = 0, lost: set[ItemKey] | None = None) -> None:
        self.calls: list[list[Change]] = []
        self.failures = failures
        self.lost = lost or set()

    async def apply(self, changes: Sequence[Change]) -> set[ItemKey]:
        if self.failures:
            self.failures -= 1
            raise StoreUnavailableError("down")
        self.calls.append(list(changes))
        return {change.key for change in changes} & self.lost


def make_journal(store: RecordingStore, lost: list[Lease], **settings: float) -> Journal:
    config = WorkerConfig(**settings)  # type: ignore[arg-type]
    return Journal(store, SystemClock(), config, BatchMeters(), lost.append)


def make_lease(line: int = 1) -> Lease:
    return Lease(ItemKey(JobId("j"), line), 1, Progress([Generation(prompt_ids=(1,))]))


def add_tokens(journal: Journal, lease: Lease, count: int) -> None:
    for token in range(count):
        lease.progress.generations[0].append((token,), "x")
        journal.mark(lease)


def replayed(store: RecordingStore, lease: Lease) -> Generation:
    entries = [
        change.entry
        for call in store.calls
        for change in call
        if change.key == lease.key and isinstance(change, (Save, Return)) and change.entry is not None
    ]
    return Progress.replay(entries, 1).generations[0]


async def finish(journal: Journal) -> None:
    journal.close()
    await asyncio.wait_for(journal.run(), 20)


async def test_many_streams_share_one_write_per_interval() -> None:
    store = RecordingStore()
    journal = make_journal(store, [], save_interval_s=60.0, save_tokens=10_000)
    leases = [make_lease(line) for line in range(1, 33)]
    for lease in leases:
        add_tokens(journal, lease, 40)
    await finish(journal)
    assert len(store.calls) == 1
    assert all(len(replayed(store, lease).ids) == 40 for lease in leases)


async def test_many_tokens_are_written_before_the_interval_is_over() -> None:
    store = RecordingStore()
    journal = make_journal(store, [], save_interval_s=60.0, save_tokens=8)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(journal.run())
        add_tokens(journal, make_lease(), 8)
        async with asyncio.timeout(10):
            while not store.calls:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        journal.close()


async def test_a_failing_store_gets_every_token_later_and_in_order() -> None:
    store = RecordingStore(failures=3)
    journal = make_journal(store, [], save_interval_s=0.001)
    lease = make_lease()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(journal.run())
        for _ in range(10):
            add_tokens(journal, lease, 3)
            await asyncio.sleep(0.005)
        journal.close()
    assert replayed(store, lease).ids == [0, 1, 2] * 10
    assert not journal.is_failing


async def test_a_result_makes_pending_saves_needless() -> None:
    store = RecordingStore()
    journal = make_journal(store, [])
    lease = make_lease()
    add_tokens(journal, lease, 3)
    accepted = journal.settle(lease, Finish(lease.key, lease.token, ItemState.SUCCEEDED, b"r"))
    add_tokens(journal, lease, 3)
    await finish(journal)
    assert await accepted
    assert [[type(change) for change in call] for call in store.calls] == [[Finish]]


async def test_a_second_settlement_is_refused() -> None:
    store = RecordingStore()
    journal = make_journal(store, [])
    lease = make_lease()
    change = Finish(lease.key, lease.token, ItemState.SUCCEEDED, b"r")
    first, second = journal.settle(lease, change), journal.settle(lease, change)
    await finish(journal)
    assert (await first, await second) == (True, False)
    assert len(store.calls) == 1


async def test_lost_leases_are_told_once_and_never_written_again() -> None:
    lease = make_lease()
    store, lost = RecordingStore(lost={lease.key}), list[Lease]()
    journal = make_journal(store, lost, save_interval_s=0.001)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(journal.run())
        add_tokens(journal, lease, 1)
        async with asyncio.timeout(10):
            while not lost:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        add_tokens(journal, lease, 1)
        journal.close()
    assert lost == [lease]
    assert len(store.calls) == 1
