"""What saving progress costs: synthetic streams through the real journal into a real store, against no store.

The difference of processor time between the two runs is the store's work: encoding deltas, the grouped writes
and everything below them in this process.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Sequence
from dataclasses import dataclass, replace

from extproc.batch.job import FileId, ItemKey, Job, JobId, JobState
from extproc.batch.journal import Journal, Lease
from extproc.batch.meters import BatchMeters
from extproc.batch.progress import Generation, Progress
from extproc.batch.stores.contract import Change, JobStore
from extproc.clock import Clock
from extproc.config.batch import WorkerConfig
from extproc.tasks import TaskKeeper

_TICK_S = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCost:
    """`core_fraction` of one core was spent on saving `tokens` tokens in `writes` grouped writes."""

    streams: int
    tokens_per_s: float
    seconds: float
    tokens: int
    writes: int
    core_fraction: float


class _CountingStore:
    """Passes changes on, or swallows them."""

    def __init__(self, store: JobStore | None) -> None:
        self._store = store
        self.writes = 0

    async def apply(self, changes: Sequence[Change]) -> set[ItemKey]:
        self.writes += 1
        return set() if self._store is None else await self._store.apply(changes)


async def measure_store_cost(
    store: JobStore, clock: Clock, *, streams: int, tokens_per_s: float, seconds: float
) -> StoreCost:
    """Run the streams twice, without and with the store."""
    job = Job(
        id=JobId(f"cost-{clock.wall_time():.6f}"),
        endpoint="/v1/completions",
        input_file_id=FileId("none"),
        completion_window="1h",
        created_at=clock.wall_time(),
        deadline=clock.wall_time() + 3600.0,
    )
    job = await store.insert_job(job)
    running = replace(job, state=JobState.IN_PROGRESS, total=streams)
    await store.move_job(running, JobState.VALIDATING)
    claimed = await store.claim(streams, 3600.0)
    keys = [(item.key, item.token) for item in claimed]
    idle_s, _, _ = await _run(None, clock, keys, tokens_per_s, seconds)
    busy_s, tokens, writes = await _run(store, clock, keys, tokens_per_s, seconds)
    return StoreCost(
        streams=streams,
        tokens_per_s=tokens_per_s,
        seconds=seconds,
        tokens=tokens,
        writes=writes,
        core_fraction=(busy_s - idle_s) / seconds,
    )


async def _run(
    store: JobStore | None, clock: Clock, keys: list[tuple[ItemKey, int]], tokens_per_s: float, seconds: float
) -> tuple[float, int, int]:
    """Processor seconds, tokens and writes of one run; without a store nothing is encoded either."""
    counting = _CountingStore(store)
    leases = [Lease(key, token, Progress([Generation(prompt_ids=(1, 2, 3))])) for key, token in keys]
    failures: list[BaseException] = []
    keeper = TaskKeeper(lambda name, error: failures.append(error))
    journal = Journal(counting, clock, WorkerConfig(), BatchMeters(), lambda lease: None)
    writing = keeper.spawn(journal.run(), name="journal") if store is not None else None
    cpu_at_start, started = _cpu_s(), clock.now()
    sent = 0
    while (passed_s := clock.now() - started) < seconds:
        due = int(passed_s * tokens_per_s * len(leases))
        for number in range(sent, due):
            lease = leases[number % len(leases)]
            lease.progress.generations[0].append((number % 50_000,), " word")
            if store is not None:
                journal.mark(lease)
        sent = due
        await asyncio.sleep(_TICK_S)
    journal.close()
    if writing is not None:
        await writing
    cpu_s = _cpu_s() - cpu_at_start
    await keeper.close()
    if failures:
        raise failures[0]
    return cpu_s, sent, counting.writes


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
