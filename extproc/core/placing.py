"""Where waiting requests of several replicas go: whole requests, one place after the other.

The inner loop of `allocation`, in plain lists since it asks endpoint by endpoint. It must not know who is
allowed how much.
"""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

from extproc.core.credits import SLOTS, TOKENS, Waiting

_MAX_PLACEMENTS = 32
"""Waiting demand of one replica and priority is placed in at most so many pieces per round."""


class Turn:
    """One replica's waiting requests of one priority, while they are placed; ordered by what it has."""

    __slots__ = ("_each", "_oldest", "_piece", "r", "total", "wanted")

    def __init__(self, total: int, r: int, wanted: int, row: Waiting) -> None:
        self.total = total
        self.r = r
        self.wanted = wanted
        self._oldest: int | None = row.oldest_tokens or None
        self._each = -(-row.tokens // row.requests)
        self._piece = max(1, -(-row.requests // _MAX_PLACEMENTS))

    def __lt__(self, other: Turn) -> bool:
        return (self.total, self.r) < (other.total, other.r)

    @property
    def least(self) -> int:
        """The fewest tokens that a piece may need."""
        return min(self._each, self._oldest or self._each)

    def next_piece(self) -> tuple[int, int]:
        """How many requests come next, and the tokens of each."""
        if self._oldest is not None:
            return 1, self._oldest
        return min(self._piece, self.wanted), self._each

    def place(self, requests: int) -> None:
        self._oldest = None
        self.total += requests
        self.wanted -= requests


class Rooms:
    """Endpoints by room, the most really free place first; plain lists, since it is asked one by one.

    An endpoint with less than `least` tokens left is of no use to anybody.
    """

    def __init__(self, free: npt.NDArray[np.int64], left: npt.NDArray[np.int64], least: int) -> None:
        self._free: list[list[int]] = free.tolist()
        self._left: list[list[int]] = left.tolist()
        self._least = least
        self._heap = [
            (-free_slots, -left_slots, e)
            for e, ((free_slots, _), (left_slots, _)) in enumerate(zip(self._free, self._left, strict=True))
            if left_slots > 0
        ]
        heapq.heapify(self._heap)

    def take(self, requests: int, tokens_each: int) -> tuple[int, int] | None:
        """(endpoint, how many of `requests` it takes), booked here; None: no endpoint takes even one."""
        passed_over = []
        found = None
        while self._heap and found is None:
            entry = heapq.heappop(self._heap)
            left = self._left[entry[2]]
            fitting = min(requests, left[SLOTS])
            if tokens_each:
                fitting = min(fitting, left[TOKENS] // tokens_each)
            if fitting > 0:
                found = entry[2], fitting
            elif left[TOKENS] >= self._least:
                passed_over.append(entry)
        for entry in passed_over:
            heapq.heappush(self._heap, entry)
        if found is not None:
            self._book(*found, tokens_each)
        return found

    def _book(self, e: int, requests: int, tokens_each: int) -> None:
        free, left = self._free[e], self._left[e]
        for room in (free, left):
            room[SLOTS] -= requests
            room[TOKENS] -= requests * tokens_each
        if left[SLOTS] > 0:
            heapq.heappush(self._heap, (-free[SLOTS], -left[SLOTS], e))
