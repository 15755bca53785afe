"""Job and item states, counts and completion windows."""

import pytest

from extproc.batch.job import (
    FINAL_STATES,
    FINISHED_ITEM_STATES,
    JOB_TRANSITIONS,
    Counts,
    ItemState,
    JobState,
    check_job_transition,
    parse_window,
)
from extproc.errors import InvariantError


def test_every_state_is_reachable_and_final_states_are_ends() -> None:
    reached = {JobState.VALIDATING}
    while more := {after for state in reached for after in JOB_TRANSITIONS[state]} - reached:
        reached |= more
    assert reached == set(JobState)
    assert {JobState.COMPLETED, JobState.FAILED, JobState.EXPIRED, JobState.CANCELLED} == FINAL_STATES


def test_a_final_job_never_moves_again() -> None:
    check_job_transition(JobState.IN_PROGRESS, JobState.CANCELLING)
    with pytest.raises(InvariantError, match="from completed to in_progress"):
        check_job_transition(JobState.COMPLETED, JobState.IN_PROGRESS)


def test_finished_items_have_results() -> None:
    assert {ItemState.SUCCEEDED, ItemState.FAILED, ItemState.DROPPED} == FINISHED_ITEM_STATES


def test_counts_must_add_up() -> None:
    counts = Counts(total=10, untouched=4, leased=1, waiting=1, ready=1, succeeded=2, failed=1)
    assert (counts.open_items, counts.finished) == (3, 3)
    with pytest.raises(InvariantError, match="do not add up"):
        Counts(total=10, untouched=4)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("24h", 86400.0),
        ("45s", 45.0),
        ("1h30m", 5400.0),
        ("0.5s", 0.5),
        ("7d", 604800.0),
        ("", None),
        ("45", None),
        ("s", None),
        ("1h2h", None),
        ("-1h", None),
        ("0s", None),
        ("400d", None),
        ("1.2.3s", None),
        ("24 h", None),
    ],
)
def test_completion_windows(text: str, seconds: float | None) -> None:
    assert parse_window(text) == seconds
