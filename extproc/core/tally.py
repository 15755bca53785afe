"""Counts per priority of what became of requests; written by the controller, read by its statistics."""

from __future__ import annotations

from collections import Counter

from extproc.core.drain import DrainRate
from extproc.core.outcomes import EndReason, Outcome


class BandTally:
    """Counters of one priority since the start, and how fast it drains."""

    __slots__ = ("drain", "ends", "outcomes")

    def __init__(self, now: float) -> None:
        self.drain = DrainRate(now)
        self.outcomes: Counter[Outcome] = Counter()
        self.ends: Counter[EndReason] = Counter()


class Tally:
    """All priorities seen so far."""

    def __init__(self) -> None:
        self.bands: dict[int, BandTally] = {}
        self.promised_requests = 0
        self.ignored_events = 0

    def band(self, priority: int, now: float) -> BandTally:
        tally = self.bands.get(priority)
        if tally is None:
            tally = self.bands[priority] = BandTally(now)
        return tally
