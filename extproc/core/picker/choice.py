"""How one endpoint is chosen when the scores are known.

Each chooser asks its `Field` for what it needs: scores, a few random candidates, or all of them in order.
It yields endpoints in the order in which they should be tried, so the first that takes the request is the
pick and the next ones are the fallbacks.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

from extproc.core.pool import EndpointState

_TRIES = 16
"""Random draws before all candidates are looked at."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MaxScoreConfig:
    """The highest score; equal scores at random."""

    type: Literal["max-score"] = "max-score"


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightedRandomConfig:
    """At random, in proportion to the score."""

    type: Literal["weighted-random"] = "weighted-random"


@dataclass(frozen=True, kw_only=True, slots=True)
class RandomConfig:
    """At random, whatever the scores."""

    type: Literal["random"] = "random"


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundRobinConfig:
    """The one whose turn is longest ago, whatever the scores."""

    type: Literal["round-robin"] = "round-robin"


@dataclass(frozen=True, kw_only=True, slots=True)
class PowerOfTwoConfig:
    """The better of two random ones: nearly as good as the best, and never a herd."""

    type: Literal["power-of-two"] = "power-of-two"


ChoiceConfig = MaxScoreConfig | WeightedRandomConfig | RandomConfig | RoundRobinConfig | PowerOfTwoConfig


class Field(Protocol):
    """The candidates of one request."""

    def score(self, endpoint: EndpointState) -> float: ...

    def highest_score(self) -> float:
        """No candidate scores more."""
        ...

    def best_first(self) -> Iterator[EndpointState]: ...

    def everyone(self) -> list[EndpointState]:
        """All candidates, in no order; may be the same list every time and must not be changed."""
        ...

    def __contains__(self, endpoint: EndpointState) -> bool: ...


class Chooser(Protocol):
    """One way to choose; may remember turns."""

    def in_order(self, field: Field) -> Iterator[EndpointState]:
        """Each candidate once, in the order of trying; consumed only as far as needed."""
        ...

    def opened(self, endpoint: EndpointState) -> None: ...

    def closed(self, endpoint: EndpointState) -> None: ...

    def dispatched(self, endpoint: EndpointState) -> None: ...


class _Stateless:
    """Choosers that remember nothing."""

    def opened(self, endpoint: EndpointState) -> None:
        return

    def closed(self, endpoint: EndpointState) -> None:
        return

    def dispatched(self, endpoint: EndpointState) -> None:
        return


class MaxScore(_Stateless):
    """See `MaxScoreConfig`."""

    def in_order(self, field: Field) -> Iterator[EndpointState]:
        return field.best_first()


class RandomChoice(_Stateless):
    """Uniform, or in proportion to the score.

    A random candidate is accepted with probability score / highest score; after some refusals the rest is put
    in random order by the key log(u) / score, which gives the same distribution.
    """

    def __init__(self, rng: random.Random, *, is_weighted: bool) -> None:
        self._rng = rng
        self._is_weighted = is_weighted

    def in_order(self, field: Field) -> Iterator[EndpointState]:
        rng, everyone = self._rng, field.everyone()
        tried: set[EndpointState] = set()
        highest = field.highest_score() if self._is_weighted else 0.0
        for _ in range(min(_TRIES, len(everyone))):
            endpoint = everyone[int(rng.random() * len(everyone))]
            if endpoint in tried:
                continue
            if highest > 0.0 and rng.random() * highest > field.score(endpoint):
                continue
            tried.add(endpoint)
            yield endpoint
        rest = [endpoint for endpoint in everyone if endpoint not in tried]
        rng.shuffle(rest)
        if highest > 0.0:
            keys = {e: rng.random() ** (1.0 / max(field.score(e) / highest, 1e-9)) for e in rest}
            rest.sort(key=keys.__getitem__, reverse=True)
        yield from rest


class PowerOfTwo(_Stateless):
    """Pairs of random candidates, the better of each pair first."""

    def __init__(self, rng: random.Random) -> None:
        self._uniform = RandomChoice(rng, is_weighted=False)

    def in_order(self, field: Field) -> Iterator[EndpointState]:
        drawn = self._uniform.in_order(field)
        for first in drawn:
            second = next(drawn, None)
            if second is None:
                yield first
            elif field.score(first) >= field.score(second):
                yield first
                yield second
            else:
                yield second
                yield first


class RoundRobin:
    """Turns over the whole pool: who is passed over because full keeps the turn."""

    def __init__(self) -> None:
        self._turns: OrderedDict[EndpointState, None] = OrderedDict()

    def in_order(self, field: Field) -> Iterator[EndpointState]:
        return (endpoint for endpoint in self._turns if endpoint in field)

    def opened(self, endpoint: EndpointState) -> None:
        self._turns.setdefault(endpoint, None)

    def closed(self, endpoint: EndpointState) -> None:
        self._turns.pop(endpoint, None)

    def dispatched(self, endpoint: EndpointState) -> None:
        if endpoint in self._turns:
            self._turns.move_to_end(endpoint)


def build_chooser(config: ChoiceConfig, rng: random.Random) -> Chooser:
    match config:
        case MaxScoreConfig():
            return MaxScore()
        case WeightedRandomConfig():
            return RandomChoice(rng, is_weighted=True)
        case RandomConfig():
            return RandomChoice(rng, is_weighted=False)
        case RoundRobinConfig():
            return RoundRobin()
        case PowerOfTwoConfig():
            return PowerOfTwo(rng)
