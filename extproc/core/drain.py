"""How fast a band drains, for `Retry-After`: an exponentially weighted dispatch rate."""

from __future__ import annotations

import math

_MEMORY_S = 30.0
RETRY_AFTER_MIN_S = 1
RETRY_AFTER_MAX_S = 60


class DrainRate:
    """Dispatches per second of one band, weighted over the last half minute."""

    __slots__ = ("_count", "_since", "_updated_at")

    def __init__(self, now: float) -> None:
        self._count = 0.0
        self._since = now
        self._updated_at = now

    def dispatched(self, now: float) -> None:
        self._count = self._decayed(now) + 1
        self._updated_at = now

    def per_second(self, now: float) -> float:
        """The rate; early on it is measured over the time there has been, at least one second."""
        seen_s = max(1.0, now - self._since)
        return self._decayed(now) / (_MEMORY_S * -math.expm1(-seen_s / _MEMORY_S))

    def retry_after_s(self, requests_ahead: int, now: float) -> int:
        """Whole seconds until a request behind so many others would be served, 1 to 60."""
        rate = self.per_second(now)
        if rate * RETRY_AFTER_MAX_S <= requests_ahead + 1:
            return RETRY_AFTER_MAX_S
        return max(RETRY_AFTER_MIN_S, math.ceil((requests_ahead + 1) / rate))

    def _decayed(self, now: float) -> float:
        return self._count * math.exp(-max(0.0, now - self._updated_at) / _MEMORY_S)
