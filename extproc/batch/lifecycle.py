"""Moves jobs through their states: validates new ones, expires late ones, writes the files of those that end.

Every process with a worker runs one; a duty lease per job and step keeps to one at a time, and every move
compares the state it starts from, so a step that was cut short is simply done again by anyone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from extproc.batch.inputs import OFFSET, InputReader
from extproc.batch.intake import IntakeLimits
from extproc.batch.job import FileId, Job, JobState, LineError
from extproc.batch.outage import Outage
from extproc.batch.outputs import write_outputs
from extproc.batch.stores.contract import INDEX_PURPOSE, FileRecord, JobStore, StoreUnavailableError
from extproc.batch.validation import InputCheck, run_check
from extproc.clock import Clock

logger = logging.getLogger(__name__)

_DUTY_LEASE_S = 15.0
_INTERVAL_S = 0.25


class Lifecycle:
    """`worker` names this process among others; `new_token()` gives a fresh random id; `on_started()` is
    called when a job has become ready for work.
    """

    def __init__(
        self,
        store: JobStore,
        clock: Clock,
        limits: IntakeLimits,
        *,
        worker: str,
        new_token: Callable[[], str],
        on_started: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._limits = limits
        self._worker = worker
        self._new_token = new_token
        self._on_started = on_started
        self._inputs = InputReader(store)
        self._outage = Outage("jobs can't be looked after")
        self._wake = asyncio.Event()

    def nudge(self) -> None:
        """A job was created or cancelled: look at once."""
        self._wake.set()

    async def run(self) -> None:
        """Look after all open jobs until cancelled."""
        while True:
            try:
                for job in await self._store.list_open_jobs():
                    await self._look_after_alone(job)
            except StoreUnavailableError as error:
                self._outage.failed(error)
            else:
                self._outage.succeeded()
            try:
                async with asyncio.timeout(_INTERVAL_S):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    async def _look_after_alone(self, job: Job) -> None:
        """An error of ours over one job must not stop the others."""
        try:
            await self._look_after(job)
        except StoreUnavailableError:
            raise
        except Exception:
            logger.exception("job %s can't be looked after", job.id)

    async def _look_after(self, job: Job) -> None:
        if job.state is JobState.IN_PROGRESS:
            await self._end_if_done(job)
            return
        duty = f"{job.state.value}:{job.id}"
        if not await self._store.take_duty(duty, self._worker, _DUTY_LEASE_S):
            return
        try:
            if job.state is JobState.VALIDATING:
                await self._validate(job, duty)
            else:
                await self._write_files(job, duty)
        finally:
            await self._store.drop_duty(duty, self._worker)

    # Validating

    async def _validate(self, job: Job, duty: str) -> None:
        record = await self._store.get_file(job.input_file_id)
        if record is None:
            missing = LineError(
                code="file_not_found", message="the input file was deleted", param="input_file_id"
            )
            await self._fail(job, [missing])
            return
        index_id = FileId(f"index-{self._new_token()}")
        check = InputCheck(job.endpoint, self._limits)
        async for _ in run_check(check, self._store, job.input_file_id, record.size_bytes, index_id):
            if not await self._store.take_duty(duty, self._worker, _DUTY_LEASE_S):
                await self._store.delete_file(index_id)
                return
        if check.intake.errors:
            await self._store.delete_file(index_id)
            await self._fail(job, check.intake.errors)
            return
        await self._start(job, check.intake.requests, index_id)

    async def _start(self, job: Job, requests: int, index_id: FileId) -> None:
        now = self._clock.wall_time()
        started = replace(
            job,
            state=JobState.IN_PROGRESS,
            total=requests,
            index_file_id=index_id,
            in_progress_at=now,
        )
        size_bytes = (requests + 1) * OFFSET.size
        index = FileRecord(
            id=index_id, filename="lines", purpose=INDEX_PURPOSE, size_bytes=size_bytes, created_at=now
        )
        if await self._store.move_job(started, JobState.VALIDATING, [index]):
            logger.info("job %s: %d requests accepted", job.id, started.total)
            self._on_started()
        else:
            await self._store.delete_file(index_id)

    async def _fail(self, job: Job, errors: list[LineError]) -> None:
        failed = replace(job, state=JobState.FAILED, errors=tuple(errors), failed_at=self._clock.wall_time())
        if await self._store.move_job(failed, JobState.VALIDATING):
            logger.info("job %s: refused, %d problems", job.id, len(errors))

    # Ending

    async def _end_if_done(self, job: Job) -> None:
        now = self._clock.wall_time()
        if now >= job.deadline:
            ending = JobState.EXPIRED
        elif (await self._store.count(job.id)).finished == job.total:
            ending = JobState.COMPLETED
        else:
            return
        ended = replace(job, state=JobState.FINALIZING, ending=ending, finalizing_at=now)
        if await self._store.move_job(ended, JobState.IN_PROGRESS):
            await self._look_after(ended)

    async def _write_files(self, job: Job, duty: str) -> None:
        await self._store.drop_open_items(job.id)
        records: list[FileRecord] = []
        now = self._clock.wall_time()
        async for records in write_outputs(self._store, self._inputs, job, self._new_token(), now):
            if not records and not await self._store.take_duty(duty, self._worker, _DUTY_LEASE_S):
                return
        by_kind = {record.filename.rpartition("_")[2]: record.id for record in records}
        done = self._final(job, by_kind.get("output.jsonl"), by_kind.get("error.jsonl"))
        if await self._store.move_job(done, job.state, records):
            logger.info("job %s: %s", job.id, done.state.value)
            if job.index_file_id is not None:
                await self._store.delete_file(job.index_file_id)

    def _final(self, job: Job, output: FileId | None, errors: FileId | None) -> Job:
        now = self._clock.wall_time()
        done = replace(job, state=job.ending, output_file_id=output, error_file_id=errors)
        match job.ending:
            case JobState.EXPIRED:
                return replace(done, expired_at=now)
            case JobState.CANCELLED:
                return replace(done, cancelled_at=now)
            case _:
                return replace(done, completed_at=now)
