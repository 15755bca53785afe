"""What a store of batch work must do; one conformance suite runs over every implementation.

The store hands out items under leases with fencing tokens: every claim of an item gives a higher token, and a
change that carries an old one is refused, so a worker that stalls and wakes cannot write over its successor.
Nothing here knows of HTTP, models or schedules beyond the order of claims.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from extproc.batch.job import Counts, FileId, ItemKey, ItemState, Job, JobId, JobState
from extproc.errors import ExtprocError

INDEX_PURPOSE = "line-index"
"""Purpose of the files that hold where a job's lines start; not for users."""


class StoreUnavailableError(ExtprocError):
    """The store could not be reached or could not write; the call may or may not have taken effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """A stored file. `created_at` is in epoch seconds."""

    id: FileId
    filename: str
    purpose: str
    size_bytes: int
    created_at: float


@dataclass(frozen=True, slots=True)
class Claimed:
    """An item under lease: its fencing token and the log of what was saved of it."""

    key: ItemKey
    token: int
    entries: tuple[bytes, ...]


Amounts = Mapping[str, int]
"""What happened since an item's last change, added to its job's totals; names are lower case."""


@dataclass(frozen=True, slots=True)
class Save:
    """Append one entry to the item's log."""

    key: ItemKey
    token: int
    entry: bytes
    amounts: Amounts = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Return:
    """Give the item back, for another turn after `delay_s`; `is_sunk`: tokens are saved, so it goes first."""

    key: ItemKey
    token: int
    delay_s: float
    is_sunk: bool
    entry: bytes | None = None
    amounts: Amounts = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finish:
    """The item's one result; its log is forgotten. `state` is SUCCEEDED or FAILED."""

    key: ItemKey
    token: int
    state: ItemState
    result: bytes
    amounts: Amounts = field(default_factory=dict)


Change = Save | Return | Finish


class Result(NamedTuple):
    """One result line. `sequence` grows in the order in which results came, per store."""

    sequence: int
    line: int
    state: ItemState
    body: bytes


class JobStore(Protocol):
    """Files, jobs, items and results. Every method raises `StoreUnavailableError` when the store fails."""

    async def open(self) -> None:
        """Connect and create what is missing."""
        ...

    async def close(self) -> None:
        """Release connections; open uploads are lost."""
        ...

    # Files: written once in order, then sealed; unsealed files are invisible.

    async def append_file(self, file_id: FileId, data: bytes) -> None:
        """Add bytes to an unsealed file, creating it."""
        ...

    async def seal_file(self, record: FileRecord) -> None:
        """Make a complete file visible and durable."""
        ...

    async def delete_file(self, file_id: FileId) -> bool:
        """Remove a file, sealed or not; False when there was no sealed one."""
        ...

    async def get_file(self, file_id: FileId) -> FileRecord | None:
        """The record of a sealed file."""
        ...

    async def list_files(self) -> list[FileRecord]:
        """All sealed files, newest first."""
        ...

    async def read_file(self, file_id: FileId, offset: int, size: int) -> bytes:
        """Up to `size` bytes of a sealed file from `offset`; empty at its end."""
        ...

    # Jobs

    async def insert_job(self, job: Job) -> Job:
        """Store a new job; returns it with its sequence. The id must be new."""
        ...

    async def get_job(self, job_id: JobId) -> Job | None:
        """The job as it is now."""
        ...

    async def list_jobs(self, *, after: JobId | None = None, limit: int = 20) -> list[Job]:
        """Newest first, those older than `after`."""
        ...

    async def list_open_jobs(self) -> list[Job]:
        """All that are not in a final state, earliest deadline first."""
        ...

    async def move_job(self, job: Job, expected: JobState, files: Sequence[FileRecord] = ()) -> bool:
        """Replace the job's record and seal `files`, all or nothing, if its state is still `expected`.

        Into a final state: its items, logs and results are forgotten, its counts are kept.
        """
        ...

    async def count(self, job_id: JobId) -> Counts:
        """Where the job's lines are."""
        ...

    async def get_totals(self, job_id: JobId) -> dict[str, int]:
        """The sums of the `amounts` of all accepted changes of the job's items."""
        ...

    async def take_duty(self, name: str, worker: str, lease_s: float) -> bool:
        """Become (or stay) the one worker with this duty until `lease_s` from now."""
        ...

    async def drop_duty(self, name: str, worker: str) -> None:
        """Give the duty up."""
        ...

    # Work

    async def claim(self, limit: int, lease_s: float) -> list[Claimed]:
        """Lease up to `limit` items of the jobs in progress.

        Order: earliest deadline, then the job's sequence; within a job what was returned (sunk tokens first,
        then line order) before untouched lines. Returned items whose delay is over and items whose lease has
        run out count as returned.
        """
        ...

    async def renew(self, held: Sequence[tuple[ItemKey, int]], lease_s: float) -> set[ItemKey]:
        """Extend leases; returns the keys that are no longer held, or whose job is no longer in progress."""
        ...

    async def apply(self, changes: Sequence[Change]) -> set[ItemKey]:
        """Perform the changes in order, each atomically, except those whose token is not the present lease's.

        Returns the keys of the refused ones. Performing the same changes twice has the effect of once, but
        for the amounts of a Save.
        """
        ...

    async def drop_open_items(self, job_id: JobId) -> None:
        """Take back all leases and returned items of a job that is being closed; untouched lines stay so."""
        ...

    async def read_results(self, job_id: JobId, after_line: int, limit: int) -> list[Result]:
        """Results in line order, those after `after_line`."""
        ...

    async def tail_results(self, job_id: JobId, after_sequence: int, limit: int) -> list[Result]:
        """Results in the order in which they came, those after `after_sequence`."""
        ...
