"""When a replica reports out of turn: more important work has begun to wait than its allocator knows of.

Sheddable work (negative priorities) is urgent only when nothing waited before; it can wait a period. It must
not know how reports travel.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from extproc.core.credits import ReplicaDemand, Report


class Need(NamedTuple):
    """The highest priority that waits, and how many of it; ordered by urgency."""

    priority: float
    requests: int


_GAPS_S = ((8, 0.002), (18, 0.005), (50, 0.02))
_LONGEST_GAP_S = 0.05


def gap_s(turns: int) -> float:
    """The least time between two reports after so many out of turn in a row: a burst is served in a few quick
    turns; where many don't help, the pool is full and quick ones only cost.
    """
    return next((gap for limit, gap in _GAPS_S if turns < limit), _LONGEST_GAP_S)


NO_NEED = Need(float("-inf"), 0)


def need_of(demand: ReplicaDemand) -> Need:
    """What a report tells of this."""
    return max((Need(row.priority, row.requests) for row in demand.waiting), default=NO_NEED)


def is_urgent(need: Need, reported: Need) -> bool:
    """Whether `need` is worth a report out of turn after `reported`."""
    if need.priority < 0:
        return need.requests > 0 and reported.requests == 0
    return need > reported


def is_anybody_pressed(reports: Mapping[str, Report]) -> bool:
    """Some replica has work waiting that must not wait for a period: credits should move at once."""
    return any(row.priority >= 0 for report in reports.values() for row in report.demand.waiting)
