"""The value type of ceilings: how full each resource may be for a band to dispatch."""

from __future__ import annotations

from typing import NamedTuple

TOLERANCE = 1e-9
"""Sums of floats within this of a ceiling have reached it."""


class Ceiling(NamedTuple):
    """Fractions of the capacity in requests and in tokens; most policies give both the same."""

    requests: float
    tokens: float

    @property
    def lowest(self) -> float:
        return min(self.requests, self.tokens)


def level(value: float) -> Ceiling:
    """The same ceiling for every resource."""
    return Ceiling(value, value)
