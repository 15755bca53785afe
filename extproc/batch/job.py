"""Jobs and their items: states, allowed transitions, counts. Pure: no clock, no store, no HTTP.

A job is one OpenAI batch; an item is one line of its input file. Items that no worker has touched yet are not
recorded anywhere: the store keeps a cursor of how many lines have been handed out, so that a job of a million
lines costs nothing but its input file until it is worked on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, NewType

from extproc.errors import InvariantError

JobId = NewType("JobId", str)
FileId = NewType("FileId", str)


class JobState(Enum):
    """The states of OpenAI's Batch API; the value is its spelling."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


JOB_TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    JobState.VALIDATING: frozenset({JobState.IN_PROGRESS, JobState.FAILED, JobState.CANCELLED}),
    JobState.IN_PROGRESS: frozenset({JobState.FINALIZING, JobState.CANCELLING}),
    JobState.FINALIZING: frozenset({JobState.COMPLETED, JobState.EXPIRED}),
    JobState.CANCELLING: frozenset({JobState.CANCELLED}),
    JobState.COMPLETED: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.EXPIRED: frozenset(),
    JobState.CANCELLED: frozenset(),
}

FINAL_STATES = frozenset(state for state, following in JOB_TRANSITIONS.items() if not following)


class ItemState(Enum):
    """What a touched line is doing; an untouched one has no record."""

    LEASED = "leased"
    """A worker has it."""
    WAITING = "waiting"
    """Returned, not to be taken before its `not_before`."""
    READY = "ready"
    """Returned, to be taken at once."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DROPPED = "dropped"
    """The job ended, by its deadline or a cancel, before this line was done."""


ITEM_TRANSITIONS: dict[ItemState, frozenset[ItemState]] = {
    ItemState.LEASED: frozenset(ItemState),
    ItemState.WAITING: frozenset({ItemState.READY, ItemState.LEASED}),
    ItemState.READY: frozenset({ItemState.LEASED}),
    ItemState.SUCCEEDED: frozenset(),
    ItemState.FAILED: frozenset(),
    ItemState.DROPPED: frozenset(),
}

FINISHED_ITEM_STATES = frozenset(state for state, following in ITEM_TRANSITIONS.items() if not following)


class ItemKey(NamedTuple):
    """One line (1-based) of one job; the unit of work and of results."""

    job_id: JobId
    line: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LineError:
    """Why an input file was refused, in the shape of OpenAI's `batch.errors.data`."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Where the lines of a job are; the parts always add up to `total`."""

    total: int = 0
    untouched: int = 0
    leased: int = 0
    waiting: int = 0
    ready: int = 0
    succeeded: int = 0
    failed: int = 0
    dropped: int = 0

    def __post_init__(self) -> None:
        if self.untouched + self.open_items + self.finished != self.total:
            raise InvariantError(f"the counts of a job do not add up: {self}")

    @property
    def open_items(self) -> int:
        """Touched and not finished."""
        return self.leased + self.waiting + self.ready

    @property
    def finished(self) -> int:
        """Lines with a result, good or bad."""
        return self.succeeded + self.failed + self.dropped


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One batch as it is stored. Times are epoch seconds; `deadline` is when unfinished lines expire.

    `sequence` orders jobs of equal deadline (the store gives it). `ending` is the final state that FINALIZING
    or CANCELLING leads to.
    """

    id: JobId
    sequence: int = 0
    endpoint: str
    input_file_id: FileId
    completion_window: str
    created_at: float
    deadline: float
    state: JobState = JobState.VALIDATING
    total: int = 0
    metadata: dict[str, str] = field(default_factory=dict)
    errors: tuple[LineError, ...] = ()
    ending: JobState = JobState.COMPLETED
    index_file_id: FileId | None = None
    output_file_id: FileId | None = None
    error_file_id: FileId | None = None
    in_progress_at: float | None = None
    finalizing_at: float | None = None
    completed_at: float | None = None
    failed_at: float | None = None
    expired_at: float | None = None
    cancelling_at: float | None = None
    cancelled_at: float | None = None


def check_job_transition(current: JobState, following: JobState) -> None:
    """Raise `InvariantError` for a transition that the life of a job does not allow."""
    if following not in JOB_TRANSITIONS[current]:
        raise InvariantError(f"a job cannot go from {current.value} to {following.value}")


def parse_window(text: str) -> float | None:
    """Seconds of a completion window such as `24h`, `45s`, `1h30m`, `7d`; None when it is not one.

    The deadline of a job is its creation plus this.
    """
    seconds = 0.0
    number = ""
    units = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
    for character in text:
        if character.isdecimal() or (character == "." and "." not in number):
            number += character
        elif character in units and number not in ("", "."):
            seconds += float(number) * units.pop(character)
            number = ""
        else:
            return None
    return seconds if number == "" and 0 < seconds <= 366 * 86400.0 else None
