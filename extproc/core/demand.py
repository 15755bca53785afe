"""Which priorities have demand: queued or in flight now, or lately. Ceilings rank bands over these."""

from __future__ import annotations

import bisect


class DemandTracker:
    """Counts the requests (queued and in flight) of each priority and remembers when one was last seen."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._idle_since: dict[int, float] = {}
        self._sorted: list[int] = []

    def enter(self, priority: int) -> None:
        """A request of this priority arrived."""
        count = self._counts.get(priority, 0)
        self._counts[priority] = count + 1
        if count == 0:
            self._idle_since.pop(priority, None)
            index = bisect.bisect_left(self._sorted, priority)
            if index == len(self._sorted) or self._sorted[index] != priority:
                self._sorted.insert(index, priority)

    def leave(self, priority: int, now: float) -> None:
        """It is gone: answered, or its stream ended."""
        self._counts[priority] -= 1
        if not self._counts[priority]:
            del self._counts[priority]
            self._idle_since[priority] = now

    def forget_idle(self, window_s: float, now: float) -> None:
        """Drops priorities that have had no request for `window_s`."""
        for priority in [p for p, since in self._idle_since.items() if since + window_s <= now]:
            del self._idle_since[priority]
            self._sorted.remove(priority)

    def seen_within(self, window_s: float, now: float) -> list[int]:
        """What `forget_idle` would leave, lowest first."""
        idle = self._idle_since
        return [p for p in self._sorted if p not in idle or idle[p] + window_s > now]

    def oldest_idle(self) -> float | None:
        """Since when the longest idle remembered priority has been idle."""
        return min(self._idle_since.values(), default=None)

    def priorities(self) -> list[int]:
        """Lowest first; shared, not to be changed."""
        return self._sorted
