"""Whether a request waits for what other replicas have free before it evicts work of its own replica.

Only where replicas share the pool. A place that is free at another replica comes here within some ten
milliseconds, while an evicted request has to be computed again: when its prompt is long, that costs the pool
far more than the wait costs one request. It must not know how credits travel.
"""

from __future__ import annotations

from collections.abc import Sequence

from extproc.core.books import Books
from extproc.core.inflight import InflightRequest
from extproc.core.pool import EndpointState

_RECOMPUTE_S_PER_TOKEN = 5e-6
"""A lower bound: 200,000 prompt tokens a second are more than today's engines compute."""


class Borrowing:
    """Remembers until when the last request that was told to wait does so."""

    def __init__(self, books: Books) -> None:
        self._books = books
        self.until = float("-inf")

    def waits(self, arrived_at: float, victims: Sequence[InflightRequest], wait_s: float, now: float) -> bool:
        """Whether a request that came at `arrived_at` leaves these victims alone for now.

        True for at most `wait_s` after its arrival, where others share the endpoint and where computing the
        victims again would take longer than that.
        """
        until = arrived_at + wait_s
        if now >= until or not self._is_shared(victims[0].endpoint):
            return False
        lost_tokens = sum(victim.request.prompt_tokens + victim.output_tokens for victim in victims)
        if lost_tokens * _RECOMPUTE_S_PER_TOKEN < wait_s:
            return False
        self.until = until
        return True

    def _is_shared(self, endpoint: EndpointState) -> bool:
        """Another replica holds a part of it."""
        whole = self._books.policies.detector.whole_capacity(endpoint)
        leased = endpoint.leased_slots
        return whole is not None and leased is not None and leased < whole.requests
