"""The embedded store: one SQLite file in WAL mode and a folder of files beside it.

Survives `kill -9` at any instant. Several processes of one machine may share it. Everything runs in one
thread of its own, so a slow disk never stops the event loop.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from extproc.batch.job import Counts, FileId, ItemKey, Job, JobId, JobState, check_job_transition
from extproc.batch.stores.contract import (
    Change,
    Claimed,
    FileRecord,
    Result,
    StoreUnavailableError,
)
from extproc.batch.stores.file_area import FileArea
from extproc.batch.stores.sqlite_tables import Tables
from extproc.clock import Clock

T = TypeVar("T")

_ORPHAN_AGE_S = 86400.0
"""Files that no record names are removed at start after this: what a crash left half written."""


class SqliteStore:
    """`folder` holds `batch.db` and `files/`. `is_durable`: also survives a power cut (fsync per commit)."""

    def __init__(self, folder: Path, clock: Clock, *, is_durable: bool = False) -> None:
        self._folder = folder
        self._clock = clock
        self._is_durable = is_durable
        self._files = FileArea(folder / "files")
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="batch-sqlite")
        self._opened: Tables | None = None

    async def open(self) -> None:
        await self._run(self._open)

    async def close(self) -> None:
        await self._run(self._close)
        self._thread.shutdown()

    def _open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._files.open()
        connection = sqlite3.connect(
            self._folder / "batch.db", timeout=10.0, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(f"PRAGMA synchronous={'FULL' if self._is_durable else 'NORMAL'}")
        self._opened = Tables(connection)
        known = {record.id for record in self._opened.list_files()}
        self._files.sweep(known, written_before=self._now() - _ORPHAN_AGE_S)

    def _close(self) -> None:
        self._files.close()
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    @property
    def _tables(self) -> Tables:
        if self._opened is None:
            raise sqlite3.OperationalError("the database is not open")
        return self._opened

    async def _run(self, call: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, call)
        except (sqlite3.Error, OSError) as error:
            raise StoreUnavailableError(f"the store in {self._folder} failed: {error}") from error

    async def append_file(self, file_id: FileId, data: bytes) -> None:
        await self._run(lambda: self._files.append(file_id, data))

    async def seal_file(self, record: FileRecord) -> None:
        def seal() -> None:
            self._files.seal(record.id)
            self._tables.insert_file(record)

        await self._run(seal)

    async def delete_file(self, file_id: FileId) -> bool:
        def delete() -> bool:
            was_visible = self._tables.delete_file(file_id)
            self._files.delete(file_id)
            return was_visible

        return await self._run(delete)

    async def get_file(self, file_id: FileId) -> FileRecord | None:
        return await self._run(lambda: self._tables.get_file(file_id))

    async def list_files(self) -> list[FileRecord]:
        return await self._run(lambda: self._tables.list_files())

    async def read_file(self, file_id: FileId, offset: int, size: int) -> bytes:
        return await self._run(lambda: self._files.read(file_id, offset, size))

    async def insert_job(self, job: Job) -> Job:
        return await self._run(lambda: self._tables.insert_job(job))

    async def get_job(self, job_id: JobId) -> Job | None:
        return await self._run(lambda: self._tables.get_job(job_id))

    async def list_jobs(self, *, after: JobId | None = None, limit: int = 20) -> list[Job]:
        return await self._run(lambda: self._tables.list_jobs(after, limit))

    async def list_open_jobs(self) -> list[Job]:
        return await self._run(lambda: self._tables.list_open_jobs())

    async def move_job(self, job: Job, expected: JobState, files: Sequence[FileRecord] = ()) -> bool:
        check_job_transition(expected, job.state)

        def move() -> bool:
            for record in files:
                self._files.seal(record.id)
            return self._tables.move_job(job, expected, files)

        return await self._run(move)

    async def count(self, job_id: JobId) -> Counts:
        return await self._run(lambda: self._tables.count(job_id))

    async def get_totals(self, job_id: JobId) -> dict[str, int]:
        return await self._run(lambda: self._tables.get_totals(job_id))

    async def take_duty(self, name: str, worker: str, lease_s: float) -> bool:
        return await self._run(lambda: self._tables.take_duty(name, worker, lease_s, self._now()))

    async def drop_duty(self, name: str, worker: str) -> None:
        await self._run(lambda: self._tables.drop_duty(name, worker))

    async def claim(self, limit: int, lease_s: float) -> list[Claimed]:
        return await self._run(lambda: self._tables.claim(limit, lease_s, self._now()))

    async def renew(self, held: Sequence[tuple[ItemKey, int]], lease_s: float) -> set[ItemKey]:
        return await self._run(lambda: self._tables.renew(held, lease_s, self._now()))

    async def apply(self, changes: Sequence[Change]) -> set[ItemKey]:
        return await self._run(lambda: self._tables.apply(changes, self._now()))

    async def drop_open_items(self, job_id: JobId) -> None:
        await self._run(lambda: self._tables.drop_open_items(job_id))

    async def read_results(self, job_id: JobId, after_line: int, limit: int) -> list[Result]:
        return await self._run(lambda: self._tables.read_results(job_id, after_line, limit))

    async def tail_results(self, job_id: JobId, after_sequence: int, limit: int) -> list[Result]:
        return await self._run(lambda: self._tables.tail_results(job_id, after_sequence, limit))

    def _now(self) -> float:
        return self._clock.wall_time()
