"""Endpoints ordered by a score that depends on nothing but each endpoint itself.

Kept up to date change by change, so that the best of a thousand endpoints costs no scan. Equal scores are in
random order: each endpoint draws a number whenever its place changes.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

from extproc.core.heap import Entry, RemovableHeap
from extproc.core.pool import Candidates, EndpointState

_SCAN_BELOW = 0.25
"""Candidate sets smaller than this part of the pool are sorted by themselves instead of searched for."""


class Ranking:
    """Highest score first. Unknown endpoints are ignored by everything but `put`."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._heap: RemovableHeap[EndpointState] = RemovableHeap()
        self._entries: dict[EndpointState, Entry[EndpointState]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, endpoint: EndpointState, score: float) -> None:
        """The endpoint's score now; the same score leaves its place."""
        entry = self._entries.get(endpoint)
        if entry is not None:
            if entry.key[0] == -score:
                return
            self._heap.remove(entry)
        self._entries[endpoint] = self._heap.push((-score, self._rng.random()), endpoint)

    def redraw(self, endpoint: EndpointState) -> None:
        """A new place among its equals, so that one whose score stays isn't first for ever."""
        entry = self._entries.get(endpoint)
        if entry is not None:
            self._heap.remove(entry)
            self._entries[endpoint] = self._heap.push((entry.key[0], self._rng.random()), endpoint)

    def discard(self, endpoint: EndpointState) -> None:
        entry = self._entries.pop(endpoint, None)
        if entry is not None:
            self._heap.remove(entry)

    def score(self, endpoint: EndpointState) -> float | None:
        """None for an endpoint that isn't ranked."""
        entry = self._entries.get(endpoint)
        return None if entry is None else -entry.key[0]

    def known(self, candidates: Candidates) -> list[EndpointState]:
        """The ranked ones among the candidates, in no order."""
        entries = self._entries
        return [endpoint for endpoint in candidates if endpoint in entries]

    def scores(self, endpoints: Iterable[EndpointState]) -> list[float]:
        """Of endpoints that are all ranked."""
        entries = self._entries
        return [-entries[endpoint].key[0] for endpoint in endpoints]

    def best_first(self, candidates: Candidates) -> Iterator[EndpointState]:
        """The ranked candidates, best first; the cost is that of what is consumed."""
        if candidates.is_whole_pool:
            return self._heap.ascending()
        if len(candidates) < _SCAN_BELOW * len(self._entries):
            entries = self._entries
            known = [(entries[endpoint].key, endpoint) for endpoint in candidates if endpoint in entries]
            known.sort(key=_key)
            return (endpoint for _, endpoint in known)
        return (endpoint for endpoint in self._heap.ascending() if endpoint in candidates)


def _key(row: tuple[tuple[float, ...], EndpointState]) -> tuple[float, ...]:
    return row[0]
