"""When requests arrive: open-loop processes that yield times, and the closed loop that yields none.

All times are seconds from the start of a run and come in ascending order. An open-loop process knows nothing
of the answers; a closed loop sends its next request when one has ended, so only the driver can time it.
The frozen dataclasses are the config format too: `type` names the process in YAML.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Poisson:
    """Independent arrivals at a constant rate: exponential gaps with mean `1 / rate_per_s`."""

    rate_per_s: float
    start_s: float = 0.0
    end_s: float
    type: Literal["poisson"] = "poisson"

    def times(self, rng: Random) -> Iterator[float]:
        if self.rate_per_s <= 0:
            return
        at = self.start_s + rng.expovariate(self.rate_per_s)
        while at < self.end_s:
            yield at
            at += rng.expovariate(self.rate_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Uniform:
    """One arrival every `1 / rate_per_s` seconds exactly, the first at `start_s`."""

    rate_per_s: float
    start_s: float = 0.0
    end_s: float
    type: Literal["uniform"] = "uniform"

    def times(self, rng: Random) -> Iterator[float]:
        if self.rate_per_s <= 0:
            return
        index = 0
        while (at := self.start_s + index / self.rate_per_s) < self.end_s:
            yield at
            index += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class GammaBurst:
    """Gamma-distributed gaps: mean `1 / rate_per_s`, coefficient of variation `cv` (1 = Poisson, > 1
    bursty).
    """

    rate_per_s: float
    cv: float
    start_s: float = 0.0
    end_s: float
    type: Literal["gamma"] = "gamma"

    def times(self, rng: Random) -> Iterator[float]:
        if self.rate_per_s <= 0:
            return
        shape = 1.0 / (self.cv * self.cv)
        scale = 1.0 / (self.rate_per_s * shape)
        at = self.start_s + rng.gammavariate(shape, scale)
        while at < self.end_s:
            yield at
            at += rng.gammavariate(shape, scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bursts:
    """`count` bursts of `size` requests at one instant each, `every_s` apart, the first at `start_s`."""

    size: int
    every_s: float
    count: int
    start_s: float = 0.0
    type: Literal["bursts"] = "bursts"

    def times(self, rng: Random) -> Iterator[float]:
        for burst in range(self.count):
            at = self.start_s + burst * self.every_s
            for _ in range(self.size):
                yield at


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Poisson arrivals whose rate changes at given times: `rates_per_s[i]` holds from `at_s[i]` on."""

    at_s: tuple[float, ...]
    rates_per_s: tuple[float, ...]
    end_s: float
    type: Literal["steps"] = "steps"

    def __post_init__(self) -> None:
        if len(self.at_s) != len(self.rates_per_s) or not self.at_s:
            raise ValueError("at_s and rates_per_s must be equally long and not empty")
        if list(self.at_s) != sorted(self.at_s):
            raise ValueError("at_s must ascend")

    def times(self, rng: Random) -> Iterator[float]:
        ends = (*self.at_s[1:], self.end_s)
        for start, rate, end in zip(self.at_s, self.rates_per_s, ends, strict=True):
            yield from Poisson(rate_per_s=rate, start_s=start, end_s=min(end, self.end_s)).times(rng)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisySinusoid:
    """Poisson arrivals around a noisy sinusoid, with an optional surge: the production shape of the seeds.

    rate(t) = base x (1 + amplitude x sin(2 pi t / period + phase)) x noise(t) x (surge factor inside the
    surge)

    where noise is constant over `noise_period_s` and uniform in [1 - noise, 1 + noise].
    """

    base_per_s: float
    amplitude: float = 0.25
    period_s: float = 60.0
    phase: float = 0.0
    noise: float = 0.15
    noise_period_s: float = 5.0
    surge_factor: float = 1.0
    surges_s: tuple[tuple[float, float], ...] = ()
    start_s: float = 0.0
    end_s: float
    type: Literal["sinusoid"] = "sinusoid"

    def __post_init__(self) -> None:
        if not (0 <= self.amplitude <= 1 and 0 <= self.noise < 1):
            raise ValueError("amplitude must be in [0, 1] and noise in [0, 1)")

    def mean_rate(self, at: float) -> float:
        """The rate at `at` without the noise."""
        rate = self.base_per_s * (1 + self.amplitude * math.sin(math.tau * at / self.period_s + self.phase))
        if any(start <= at < end for start, end in self.surges_s):
            rate *= self.surge_factor
        return rate

    def times(self, rng: Random) -> Iterator[float]:
        """Thinning: candidates at the highest possible rate, kept with probability rate / highest."""
        highest = self.base_per_s * (1 + self.amplitude) * (1 + self.noise) * max(1.0, self.surge_factor)
        if highest <= 0:
            return
        cells = math.ceil((self.end_s - self.start_s) / self.noise_period_s) + 1
        noise = [1 + rng.uniform(-self.noise, self.noise) for _ in range(max(1, cells))]
        at = self.start_s + rng.expovariate(highest)
        while at < self.end_s:
            rate = self.mean_rate(at) * noise[int((at - self.start_s) / self.noise_period_s)]
            if rng.uniform(0.0, highest) < rate:
                yield at
            at += rng.expovariate(highest)


@dataclass(frozen=True, slots=True, kw_only=True)
class AtTimes:
    """Arrivals at the given seconds, ascending: a replayed trace."""

    at_s: tuple[float, ...]
    type: Literal["times"] = "times"

    def times(self, rng: Random) -> Iterator[float]:
        yield from self.at_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """`concurrency` requests at any time: the next one starts when one has ended (until `requests` or
    `end_s`).

    Latencies of a closed loop say how the server fares at that concurrency, never how users fare at a rate: a
    slow answer delays the next request. Reports label such classes.
    """

    concurrency: int
    requests: int | None = None
    start_s: float = 0.0
    end_s: float | None = None
    type: Literal["closed"] = "closed"


OpenArrivals = Poisson | Uniform | GammaBurst | Bursts | Steps | NoisySinusoid | AtTimes
Arrivals = OpenArrivals | ClosedLoop
