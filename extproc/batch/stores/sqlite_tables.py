"""The tables of the embedded store and the statements on them; synchronous, one transaction per method.

`items` holds only lines that a worker has touched and not finished; a finished line moves to `results`, its
log is deleted. A job's `cursor` is how many of its lines have been handed out.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import msgspec

from extproc.batch.job import FINAL_STATES, Counts, FileId, ItemKey, ItemState, Job, JobId, JobState
from extproc.batch.stores.contract import Change, Claimed, FileRecord, Finish, Result, Return, Save

SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
    id TEXT PRIMARY KEY, filename TEXT NOT NULL, purpose TEXT NOT NULL, size_bytes INTEGER NOT NULL,
    created_at REAL NOT NULL);
CREATE TABLE IF NOT EXISTS jobs (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, state TEXT NOT NULL,
    deadline REAL NOT NULL, total INTEGER NOT NULL, cursor INTEGER NOT NULL DEFAULT 0,
    succeeded INTEGER NOT NULL DEFAULT 0, failed INTEGER NOT NULL DEFAULT 0, record BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS jobs_by_state ON jobs (state, deadline, sequence);
CREATE TABLE IF NOT EXISTS items (
    job TEXT NOT NULL, line INTEGER NOT NULL, state TEXT NOT NULL, token INTEGER NOT NULL, due REAL NOT NULL,
    is_sunk INTEGER NOT NULL, PRIMARY KEY (job, line)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS log (id INTEGER PRIMARY KEY, job TEXT NOT NULL, line INTEGER NOT NULL, entry BLOB
NOT NULL); CREATE INDEX IF NOT EXISTS log_by_item ON log (job, line, id); CREATE TABLE IF NOT EXISTS results (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT, job TEXT NOT NULL, line INTEGER NOT NULL, state TEXT NOT NULL,
    body BLOB NOT NULL, UNIQUE (job, line));
CREATE TABLE IF NOT EXISTS totals (
    job TEXT NOT NULL, name TEXT NOT NULL, value INTEGER NOT NULL, PRIMARY KEY (job, name)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS duties (name TEXT PRIMARY KEY, worker TEXT NOT NULL, until REAL NOT NULL);
"""

_LEASED, _WAITING, _READY = ItemState.LEASED.value, ItemState.WAITING.value, ItemState.READY.value
_IN_PROGRESS = JobState.IN_PROGRESS.value
_OPEN_JOB_STATES = tuple(state.value for state in JobState if state not in FINAL_STATES)

_encode_job = msgspec.json.Encoder().encode
_decode_job = msgspec.json.Decoder(Job).decode


class Tables:
    """One connection. `now` is in epoch seconds, since several processes compare it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection
        connection.executescript(SCHEMA)

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Holds the write lock from its start, so that what is read inside stays true."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    # Files

    def insert_file(self, record: FileRecord) -> None:
        """Make the file visible."""
        row = (record.id, record.filename, record.purpose, record.size_bytes, record.created_at)
        self._db.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?)", row)

    def delete_file(self, file_id: FileId) -> bool:
        """Make the file invisible."""
        return self._db.execute("DELETE FROM files WHERE id = ?", (file_id,)).rowcount > 0

    def get_file(self, file_id: FileId) -> FileRecord | None:
        """The file's record."""
        row = self._db.execute(f"{_SELECT_FILE} WHERE id = ?", (file_id,)).fetchone()
        return None if row is None else _file_of(row)

    def list_files(self) -> list[FileRecord]:
        """All visible files, newest first."""
        return [
            _file_of(row) for row in self._db.execute(f"{_SELECT_FILE} ORDER BY created_at DESC, id DESC")
        ]

    # Jobs

    def insert_job(self, job: Job) -> Job:
        """Give the job its sequence and store it."""
        with self._transaction():
            sql = "INSERT INTO jobs (id, state, deadline, total, record) VALUES (?, ?, ?, ?, x'')"
            sequence = (
                self._db.execute(sql, (job.id, job.state.value, job.deadline, job.total)).lastrowid or 0
            )
            stored = replace(job, sequence=sequence)
            self._db.execute("UPDATE jobs SET record = ? WHERE id = ?", (_encode_job(stored), job.id))
        return stored

    def get_job(self, job_id: JobId) -> Job | None:
        """The job's record."""
        row = self._db.execute("SELECT record FROM jobs WHERE id = ?", (job_id,)).fetchone()
        return None if row is None else _decode_job(row[0])

    def list_jobs(self, after: JobId | None, limit: int) -> list[Job]:
        """Newest first, older than `after`."""
        sql = "SELECT record FROM jobs WHERE sequence < ? ORDER BY sequence DESC LIMIT ?"
        newest = 2**62
        if after is not None:
            row = self._db.execute("SELECT sequence FROM jobs WHERE id = ?", (after,)).fetchone()
            newest = 0 if row is None else row[0]
        return [_decode_job(record) for (record,) in self._db.execute(sql, (newest, limit))]

    def list_open_jobs(self) -> list[Job]:
        """Not final, earliest deadline first."""
        marks = ", ".join("?" * len(_OPEN_JOB_STATES))
        sql = f"SELECT record FROM jobs WHERE state IN ({marks}) ORDER BY deadline, sequence"
        return [_decode_job(record) for (record,) in self._db.execute(sql, _OPEN_JOB_STATES)]

    def move_job(self, job: Job, expected: JobState, files: Sequence[FileRecord]) -> bool:
        """Compare the state, then replace record and files; a final state forgets the job's work."""
        with self._transaction():
            sql = "UPDATE jobs SET state = ?, deadline = ?, total = ?, record = ? WHERE id = ? AND state = ?"
            row = (job.state.value, job.deadline, job.total, _encode_job(job), job.id, expected.value)
            if self._db.execute(sql, row).rowcount == 0:
                return False
            for record in files:
                self.insert_file(record)
            if job.state in FINAL_STATES:
                self._db.execute("UPDATE jobs SET cursor = total WHERE id = ?", (job.id,))
                for table in ("items", "log", "results"):
                    self._db.execute(f"DELETE FROM {table} WHERE job = ?", (job.id,))
        return True

    def count(self, job_id: JobId) -> Counts:
        """Where the lines are; what was touched and is nowhere any more was dropped."""
        with self._transaction():
            sql = "SELECT total, cursor, succeeded, failed FROM jobs WHERE id = ?"
            row = self._db.execute(sql, (job_id,)).fetchone()
            sql = "SELECT state, count(*) FROM items WHERE job = ? GROUP BY state"
            open_items = dict(self._db.execute(sql, (job_id,)).fetchall())
        if row is None:
            return Counts()
        total, cursor, succeeded, failed = row
        return Counts(
            total=total,
            untouched=total - cursor,
            leased=open_items.get(_LEASED, 0),
            waiting=open_items.get(_WAITING, 0),
            ready=open_items.get(_READY, 0),
            succeeded=succeeded,
            failed=failed,
            dropped=cursor - succeeded - failed - sum(open_items.values()),
        )

    def get_totals(self, job_id: JobId) -> dict[str, int]:
        """The job's totals."""
        return dict(self._db.execute("SELECT name, value FROM totals WHERE job = ?", (job_id,)).fetchall())

    def take_duty(self, name: str, worker: str, lease_s: float, now: float) -> bool:
        """Take, keep or inherit the duty."""
        sql = (
            "INSERT INTO duties VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE SET worker = excluded.worker,"
            " until = excluded.until WHERE duties.worker = excluded.worker OR duties.until <= ?"
        )
        return self._db.execute(sql, (name, worker, now + lease_s, now)).rowcount > 0

    def drop_duty(self, name: str, worker: str) -> None:
        """Give the duty up, if it is still ours."""
        self._db.execute("DELETE FROM duties WHERE name = ? AND worker = ?", (name, worker))

    # Work

    def claim(self, limit: int, lease_s: float, now: float) -> list[Claimed]:
        """Lease items in the contract's order."""
        keys: list[tuple[ItemKey, int]] = []
        with self._transaction():
            sql = "SELECT id, total, cursor FROM jobs WHERE state = ? ORDER BY deadline, sequence"
            for job, total, cursor in self._db.execute(sql, (_IN_PROGRESS,)).fetchall():
                if len(keys) >= limit:
                    break
                keys += self._claim_returned(job, limit - len(keys), lease_s, now)
                keys += self._claim_untouched(job, total, cursor, limit - len(keys), lease_s, now)
            return [Claimed(key, token, self._entries(key)) for key, token in keys]

    def _claim_returned(
        self, job: JobId, limit: int, lease_s: float, now: float
    ) -> list[tuple[ItemKey, int]]:
        sql = (
            "SELECT line, token FROM items WHERE job = ? AND (state = ? OR due <= ?)"
            " ORDER BY is_sunk DESC, line LIMIT ?"
        )
        rows = self._db.execute(sql, (job, _READY, now, limit)).fetchall()
        sql = "UPDATE items SET state = ?, token = ?, due = ? WHERE job = ? AND line = ?"
        self._db.executemany(sql, [(_LEASED, token + 1, now + lease_s, job, line) for line, token in rows])
        return [(ItemKey(job, line), token + 1) for line, token in rows]

    def _claim_untouched(
        self, job: JobId, total: int, cursor: int, limit: int, lease_s: float, now: float
    ) -> list[tuple[ItemKey, int]]:
        lines = range(cursor + 1, min(cursor + limit, total) + 1)
        if not lines:
            return []
        sql = "INSERT INTO items VALUES (?, ?, ?, 1, ?, 0)"
        self._db.executemany(sql, [(job, line, _LEASED, now + lease_s) for line in lines])
        self._db.execute("UPDATE jobs SET cursor = ? WHERE id = ?", (lines[-1], job))
        return [(ItemKey(job, line), 1) for line in lines]

    def _entries(self, key: ItemKey) -> tuple[bytes, ...]:
        rows = self._db.execute("SELECT entry FROM log WHERE job = ? AND line = ? ORDER BY id", key)
        return tuple(entry for (entry,) in rows)

    def renew(self, held: Sequence[tuple[ItemKey, int]], lease_s: float, now: float) -> set[ItemKey]:
        """Extend leases of jobs in progress."""
        sql = (
            "UPDATE items SET due = ? WHERE job = ? AND line = ? AND token = ? AND state = ?"
            " AND (SELECT state FROM jobs WHERE id = items.job) = ?"
        )
        lost: set[ItemKey] = set()
        with self._transaction():
            for key, token in held:
                row = (now + lease_s, key.job_id, key.line, token, _LEASED, _IN_PROGRESS)
                if self._db.execute(sql, row).rowcount == 0:
                    lost.add(key)
        return lost

    def apply(self, changes: Sequence[Change], now: float) -> set[ItemKey]:
        """Perform the changes whose token is the present lease's."""
        refused: set[ItemKey] = set()
        sql = "SELECT 1 FROM items WHERE job = ? AND line = ? AND token = ? AND state = ?"
        with self._transaction():
            for change in changes:
                if self._db.execute(sql, (*change.key, change.token, _LEASED)).fetchone() is None:
                    refused.add(change.key)
                else:
                    self._perform(change, now)
        return refused

    def _perform(self, change: Change, now: float) -> None:
        sql = "INSERT INTO totals VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET value = value + excluded.value"
        job_id = change.key.job_id
        self._db.executemany(sql, [(job_id, name, amount) for name, amount in change.amounts.items()])
        match change:
            case Save(key=key, entry=entry):
                self._log(key, entry)
            case Return(key=key, delay_s=delay_s, is_sunk=is_sunk, entry=entry):
                if entry is not None:
                    self._log(key, entry)
                state = _WAITING if delay_s > 0 else _READY
                sql = "UPDATE items SET state = ?, due = ?, is_sunk = ? WHERE job = ? AND line = ?"
                self._db.execute(sql, (state, now + delay_s, is_sunk, *key))
            case Finish(key=key, state=state, result=result):
                self._db.execute("DELETE FROM items WHERE job = ? AND line = ?", key)
                self._db.execute("DELETE FROM log WHERE job = ? AND line = ?", key)
                sql = "INSERT INTO results (job, line, state, body) VALUES (?, ?, ?, ?)"
                self._db.execute(sql, (*key, state.value, result))
                column = "succeeded" if state is ItemState.SUCCEEDED else "failed"
                self._db.execute(f"UPDATE jobs SET {column} = {column} + 1 WHERE id = ?", (key.job_id,))

    def _log(self, key: ItemKey, entry: bytes) -> None:
        self._db.execute("INSERT INTO log (job, line, entry) VALUES (?, ?, ?)", (*key, entry))

    def drop_open_items(self, job_id: JobId) -> None:
        """Forget leases, returned items and their logs."""
        with self._transaction():
            self._db.execute("DELETE FROM items WHERE job = ?", (job_id,))
            self._db.execute("DELETE FROM log WHERE job = ?", (job_id,))

    def read_results(self, job_id: JobId, after_line: int, limit: int) -> list[Result]:
        """In line order."""
        return self._results("line", job_id, after_line, limit)

    def tail_results(self, job_id: JobId, after_sequence: int, limit: int) -> list[Result]:
        """In the order of their coming."""
        return self._results("sequence", job_id, after_sequence, limit)

    def _results(self, order: str, job_id: JobId, after: int, limit: int) -> list[Result]:
        sql = (
            f"SELECT sequence, line, state, body FROM results WHERE job = ? AND {order} > ?"
            f" ORDER BY {order} LIMIT ?"
        )
        rows = self._db.execute(sql, (job_id, after, limit))
        return [Result(sequence, line, ItemState(state), body) for sequence, line, state, body in rows]


_SELECT_FILE = "SELECT id, filename, purpose, size_bytes, created_at FROM files"


def _file_of(row: tuple[str, str, str, int, float]) -> FileRecord:
    file_id, filename, purpose, size_bytes, created_at = row
    return FileRecord(
        id=FileId(file_id), filename=filename, purpose=purpose, size_bytes=size_bytes, created_at=created_at
    )
