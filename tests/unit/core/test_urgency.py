"""Which waiting work makes a replica report out of turn."""

from __future__ import annotations

import pytest

from extproc.core.credits import ReplicaDemand, Report, Waiting
from extproc.core.urgency import NO_NEED, Need, gap_s, is_anybody_pressed, is_urgent, need_of


@pytest.mark.parametrize(
    ("need", "reported", "expected"),
    [
        (Need(10, 1), NO_NEED, True),
        (Need(10, 1), Need(-1, 500), True),
        (Need(10, 2), Need(10, 1), True),
        (Need(10, 1), Need(10, 1), False),
        (Need(10, 1), Need(10, 4), False),
        (Need(0, 9), Need(10, 1), False),
        (Need(-1, 1), NO_NEED, True),
        (Need(-1, 900), Need(-1, 1), False),
        (NO_NEED, NO_NEED, False),
        (NO_NEED, Need(10, 1), False),
    ],
)
def test_more_important_work_than_was_reported_is_urgent(need: Need, reported: Need, expected: bool) -> None:
    assert is_urgent(need, reported) is expected


def test_the_need_of_a_report_is_its_highest_band() -> None:
    waiting = [Waiting(-1, 70, 0), Waiting(10, 2, 0), Waiting(0, 9, 0)]
    assert need_of(ReplicaDemand(waiting=waiting)) == Need(10, 2)
    assert need_of(ReplicaDemand()) is NO_NEED


def test_only_work_that_is_not_sheddable_presses() -> None:
    batch = Report(demand=ReplicaDemand(waiting=[Waiting(-1, 70, 0)]))
    chat = Report(demand=ReplicaDemand(waiting=[Waiting(0, 1, 0)]))
    assert not is_anybody_pressed({"a": batch})
    assert is_anybody_pressed({"a": batch, "b": chat})


def test_turns_that_follow_each_other_come_slower_and_slower() -> None:
    gaps = [gap_s(turns) for turns in range(200)]
    assert gaps == sorted(gaps)
    assert gaps[0] < gaps[20] < gaps[-1]
