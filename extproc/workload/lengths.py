"""Distributions of prompt and output lengths in tokens; every draw is at least one token."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """Always `tokens`."""

    tokens: int
    type: Literal["fixed"] = "fixed"

    def draw(self, rng: Random) -> int:
        return max(1, self.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformLength:
    """Every whole number from `low` to `high` equally likely."""

    low: int
    high: int
    type: Literal["uniform"] = "uniform"

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"low {self.low} is above high {self.high}")

    def draw(self, rng: Random) -> int:
        return max(1, rng.randint(self.low, self.high))


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNormalLength:
    """Log-normal around `median` with `sigma` (of the natural logarithm), clipped to [`low`, `high`]."""

    median: int
    sigma: float
    low: int = 1
    high: int = 1_000_000
    type: Literal["lognormal"] = "lognormal"

    def draw(self, rng: Random) -> int:
        return max(1, self.low, min(self.high, round(rng.lognormvariate(math.log(self.median), self.sigma))))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceLength:
    """One of `tokens`, by `weights` (equal weights when empty)."""

    tokens: tuple[int, ...]
    weights: tuple[float, ...] = ()
    type: Literal["choice"] = "choice"

    def __post_init__(self) -> None:
        if not self.tokens or (self.weights and len(self.weights) != len(self.tokens)):
            raise ValueError("weights must be as many as tokens, of which there must be one at least")

    def draw(self, rng: Random) -> int:
        return max(1, rng.choices(self.tokens, self.weights or None)[0])


Lengths = Fixed | UniformLength | LogNormalLength | ChoiceLength
