"""The calendar of a simulation: what happens when, in virtual time.

Entries of the same time run by rank, then in the order in which they were made, so that a run is a pure
function of its inputs. It knows nothing of what its entries do.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from heapq import heappop, heappush

Action = Callable[[], None]


class Rank(IntEnum):
    """Which of several entries of one time goes first: what has ended frees room for what arrives."""

    ENGINE = 0
    MESSAGE = 1
    ARRIVAL = 2
    TIMER = 3
    SAMPLE = 4


class Calendar:
    """A heap of pending actions and the current virtual time in seconds."""

    __slots__ = ("_entries", "_sequence", "is_stopped", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self.is_stopped = False
        self._sequence = 0
        self._entries: list[tuple[float, int, int, Action]] = []

    def at(self, time: float, rank: Rank, action: Action) -> None:
        """Run `action` at `time`, not before now."""
        self._sequence += 1
        heappush(self._entries, (max(time, self.now), rank, self._sequence, action))

    def after(self, delay_s: float, rank: Rank, action: Action) -> None:
        self._sequence += 1
        heappush(self._entries, (self.now + delay_s, rank, self._sequence, action))

    def run(self, until: float) -> None:
        """Perform entries in order until `until` (inclusive), until none is left, or until stopped."""
        entries = self._entries
        while entries and entries[0][0] <= until and not self.is_stopped:
            time, _, _, action = heappop(entries)
            self.now = time
            action()
        if not self.is_stopped:
            self.now = max(self.now, until) if entries else self.now

    def stop(self) -> None:
        """End `run` after the current entry."""
        self.is_stopped = True
