"""The newest latencies of each band, for the live page: bounded, forgotten after a while, no buckets."""

from __future__ import annotations

from collections import deque

KEPT = 512
WINDOW_S = 60.0


class RecentLatencies:
    """At most 512 observations per key, each for a minute. Times are the caller's clock, in seconds."""

    def __init__(self, *, kept: int = KEPT, window_s: float = WINDOW_S) -> None:
        self._kept = kept
        self._window_s = window_s
        self._values: dict[int, deque[tuple[float, float]]] = {}

    def add(self, key: int, value_s: float, now: float) -> None:
        values = self._values.get(key)
        if values is None:
            values = self._values[key] = deque(maxlen=self._kept)
        values.append((now, value_s))

    def percentiles(self, key: int, fractions: tuple[float, ...], now: float) -> tuple[float | None, ...]:
        """Nearest-rank percentiles of what is not too old; None where there is nothing."""
        values = self._values.get(key)
        while values and values[0][0] < now - self._window_s:
            values.popleft()
        if not values:
            return (None,) * len(fractions)
        ordered = sorted(value for _, value in values)
        return tuple(ordered[min(len(ordered) - 1, int(len(ordered) * part))] for part in fractions)
