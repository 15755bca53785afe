"""Checks that every policy's config class runs on itself; the message names the field and the limit."""

from __future__ import annotations

import math


class FieldChecks:
    """Collects what is wrong with one config object, so that all of it is reported at once.

    Use: `FieldChecks(self).at_least("max_concurrency", 1).finish()`. A field that is None is skipped
    (None means "off" or "default" in every config class).
    """

    def __init__(self, config: object) -> None:
        self._config = config
        self._problems: list[str] = []

    def at_least(self, field: str, low: float, high: float = 1e15) -> FieldChecks:
        """`low` <= value <= `high`; refuses NaN and infinities."""
        return self._bounded(field, low, high, exclusive=False)

    def above(self, field: str, low: float, high: float = 1e15) -> FieldChecks:
        """`low` < value <= `high`; refuses NaN and infinities."""
        return self._bounded(field, low, high, exclusive=True)

    def fraction(self, field: str) -> FieldChecks:
        """0 <= value <= 1."""
        return self._bounded(field, 0.0, 1.0, exclusive=False)

    def require(self, condition: bool, message: str) -> FieldChecks:
        """A rule over several fields; `message` names them."""
        if not condition:
            self._problems.append(message)
        return self

    def finish(self) -> None:
        """Raises `ValueError` with all problems, or does nothing."""
        if self._problems:
            raise ValueError("; ".join(self._problems))

    def _bounded(self, field: str, low: float, high: float, *, exclusive: bool) -> FieldChecks:
        value = getattr(self._config, field)
        if value is None:
            return self
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            self._problems.append(f"{field}: must be a finite number, got {value!r}")
        elif value < low or (exclusive and value == low) or value > high:
            relation = "above" if exclusive else "at least"
            self._problems.append(f"{field}: must be {relation} {low:g} and at most {high:g}, got {value!r}")
        return self
