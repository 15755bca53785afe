"""Bounded label values: what a client sends may become a label only up to a fixed count.

Every series of a metric costs memory here and in Prometheus for ever, so values that come from requests
(model, fairness id, numeric priority) pass through a `LabelCap`. It knows nothing of metrics.
"""

from __future__ import annotations

from collections.abc import Iterable

OVERFLOW = "__other__"
"""The value of everything beyond the cap. A client that sends it lands there too, and gains nothing by it."""

MAX_LABEL_CHARS = 64


class LabelCap:
    """Hands out at most `limit` distinct label values; pinned ones always keep their name.

    A value is kept as it is when it is pinned, or came early enough; it is `OVERFLOW` when the cap is
    reached, when it is longer than 64 characters, or when it holds control characters.
    """

    def __init__(self, limit: int, *, pinned: Iterable[str] = ()) -> None:
        self._limit = limit
        self._pinned = frozenset(pinned)
        self._seen: set[str] = set()

    def label(self, value: str) -> str:
        """The label value to use for `value`."""
        if value in self._seen or value in self._pinned:
            return value
        if len(self._seen) >= self._limit or not _is_fit(value):
            return OVERFLOW
        self._seen.add(value)
        return value

    def release(self, value: str) -> bool:
        """Give the place of `value` back, when what it named is gone; True when it had one."""
        if value not in self._seen:
            return False
        self._seen.remove(value)
        return True

    def __len__(self) -> int:
        return len(self._seen)


def _is_fit(value: str) -> bool:
    return 0 < len(value) <= MAX_LABEL_CHARS and value != OVERFLOW and value.isprintable()
