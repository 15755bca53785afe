"""Learns how long answers become, per (model, priority, fairness id), from completed requests.

Each key keeps its last observations in order of size, so that any quantile of them is one look-up. A key
without enough observations falls back to its (model, priority), then to None. Keys are bounded: the least
recently observed is forgotten.
"""

from __future__ import annotations

import bisect
from collections import OrderedDict, deque

from extproc.core.types import Request

_WINDOW = 128
_MAX_KEYS = 4096

LengthKey = tuple[str, int, str | None]


class _Window:
    """The last observations of one key."""

    __slots__ = ("_recent", "_sorted")

    def __init__(self) -> None:
        self._recent: deque[int] = deque()
        self._sorted: list[int] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, length: int) -> None:
        if len(self._recent) == _WINDOW:
            oldest = self._recent.popleft()
            del self._sorted[bisect.bisect_left(self._sorted, oldest)]
        self._recent.append(length)
        bisect.insort(self._sorted, length)

    def quantile(self, fraction: float) -> int:
        """The smallest observation that at least this fraction doesn't exceed."""
        index = min(len(self._sorted) - 1, int(fraction * len(self._sorted)))
        return self._sorted[index]


class OutputLengths:
    """Observed output lengths and their quantiles."""

    def __init__(self, fraction: float, min_samples: int) -> None:
        self._fraction = fraction
        self._min_samples = min_samples
        self._windows: OrderedDict[LengthKey, _Window] = OrderedDict()

    def observe(self, request: Request, output_tokens: int) -> None:
        for key in _keys(request):
            window = self._windows.get(key)
            if window is None:
                if len(self._windows) >= _MAX_KEYS:
                    self._windows.popitem(last=False)
                window = self._windows[key] = _Window()
            else:
                self._windows.move_to_end(key)
            window.add(output_tokens)

    def expected(self, request: Request) -> int | None:
        """The learnt quantile for a request like this; None before enough were seen."""
        for key in _keys(request):
            window = self._windows.get(key)
            if window is not None and len(window) >= self._min_samples:
                return window.quantile(self._fraction)
        return None


def _keys(request: Request) -> tuple[LengthKey, LengthKey]:
    narrow = (request.model, request.priority, str(request.fairness_id))
    return narrow, (request.model, request.priority, None)
