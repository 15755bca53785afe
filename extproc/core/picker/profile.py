"""One way to pick: its scorers, how they add up, and how one endpoint is chosen by the sum."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from extproc.core.checks import FieldChecks
from extproc.core.picker.affinity import (
    Affinity,
    AffinityConfig,
    LoraAffinity,
    LoraScorerConfig,
    PoolLoad,
    PrefixScorerConfig,
    SessionScorerConfig,
    build_affinity,
)
from extproc.core.picker.choice import ChoiceConfig, Field, MaxScoreConfig, build_chooser
from extproc.core.picker.prefix_index import PrefixIndex
from extproc.core.picker.protocol import Fits, Pick, Scores
from extproc.core.picker.ranking import Ranking
from extproc.core.picker.scorers import (
    UNKNOWN,
    InflightScorerConfig,
    KvUsageScorerConfig,
    LoadScorerConfig,
    PreferConfig,
    QueueScorerConfig,
    fixed_score,
    pool_scores,
)
from extproc.core.pool import Candidates, EndpointState
from extproc.core.types import Request

ScorerConfig = LoadScorerConfig | AffinityConfig

_NOT_PREFERRED = -2e6
"""Below every sum of weights, and below a sticky session."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MatchConfig:
    """Which requests a profile is for: all conditions that are given must hold."""

    min_priority: int | None = None
    max_priority: int | None = None
    models: tuple[str, ...] = ()

    def matches(self, request: Request) -> bool:
        if self.min_priority is not None and request.priority < self.min_priority:
            return False
        if self.max_priority is not None and request.priority > self.max_priority:
            return False
        return not self.models or request.model in self.models


def default_scorers() -> tuple[ScorerConfig, ...]:
    """The default profile: our own books first, then what engines report, and cached prefixes."""
    return (
        InflightScorerConfig(weight=2.0),
        QueueScorerConfig(weight=2.0),
        KvUsageScorerConfig(weight=2.0),
        PrefixScorerConfig(weight=3.0),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ProfileConfig:
    """`labels` must be on an endpoint for it to be a candidate at all; `prefer` puts endpoints beyond its
    limits last. `max_endpoints` is how many addresses Envoy is given: the pick and its fallbacks."""

    name: str = "default"
    match: MatchConfig = field(default_factory=MatchConfig)
    labels: Mapping[str, str] = field(default_factory=dict)
    prefer: PreferConfig | None = None
    scorers: tuple[ScorerConfig, ...] = field(default_factory=default_scorers)
    choice: ChoiceConfig = field(default_factory=MaxScoreConfig)
    max_endpoints: int = 1

    def __post_init__(self) -> None:
        checks = FieldChecks(self).at_least("max_endpoints", 1, 16)
        kinds = [scorer.type for scorer in self.scorers]
        doubled = sorted({kind for kind in kinds if kinds.count(kind) > 1})
        checks.require(not doubled, f"scorers: {', '.join(doubled)} is listed more than once")
        checks.require(bool(self.name), "name: must not be empty").finish()


class Profile:
    """Scores and choice of one profile, kept up to date change by change."""

    def __init__(self, config: ProfileConfig, index: PrefixIndex, load: PoolLoad, rng: random.Random) -> None:
        self.config = config
        self._rng = rng
        self.chooser = build_chooser(config.choice, rng)
        self.ranking = Ranking(rng)
        affinities = (PrefixScorerConfig, LoraScorerConfig, SessionScorerConfig)
        self.affinities: dict[str, Affinity] = {
            scorer.type: build_affinity(scorer, index, load)
            for scorer in config.scorers
            if isinstance(scorer, affinities)
        }
        self._affinities = list(self.affinities.values())
        loads = [scorer for scorer in config.scorers if not isinstance(scorer, affinities)]
        self.fixed: list[LoadScorerConfig] = [scorer for scorer in loads if scorer.scale == "fixed"]
        self._loads = [(scorer.weight, scorer.load, scorer.limit) for scorer in self.fixed]
        self.relative: list[LoadScorerConfig] = [scorer for scorer in loads if scorer.scale == "pool"]
        self._moves_when_booked = any(scorer.type == "in-flight" for scorer in self.fixed)
        """A dispatch then changes the endpoint's score, and with it its place among its equals."""
        self._followers = [item for item in self.affinities.values() if isinstance(item, LoraAffinity)]
        """The affinities that look at what endpoints report."""
        self._opened: set[EndpointState] = set()

    def changed(self, endpoint: EndpointState) -> None:
        self.ranking.put(endpoint, self._own_score(endpoint))
        if endpoint not in self._opened:
            self._opened.add(endpoint)
            self.chooser.opened(endpoint)
        for affinity in self._followers:
            affinity.changed(endpoint)

    def closed(self, endpoint: EndpointState) -> None:
        self.ranking.discard(endpoint)
        self._opened.discard(endpoint)
        self.chooser.closed(endpoint)
        for affinity in self.affinities.values():
            affinity.closed(endpoint)

    def dispatched(self, request: Request, endpoint: EndpointState) -> None:
        if not self._moves_when_booked:
            self.ranking.redraw(endpoint)
        self.chooser.dispatched(endpoint)
        for affinity in self._affinities:
            affinity.dispatched(request, endpoint)

    def pick(self, request: Request, candidates: Candidates, fits: Fits) -> Pick | None:
        """The first in the chooser's order that fits; the fallbacks need not, they are for a dead pick."""
        if len(candidates) == 1:
            (only,) = candidates
            return Pick(only) if fits(only) else None
        wanted = self.config.max_endpoints
        best: EndpointState | None = None
        skipped: list[EndpointState] = []
        fallbacks: list[EndpointState] = []
        for endpoint in self.chooser.in_order(self.field_of(request, candidates)):
            if best is None:
                if fits(endpoint):
                    best = endpoint
                elif len(skipped) < wanted:
                    skipped.append(endpoint)
            elif not endpoint.is_probing:
                fallbacks.append(endpoint)
            if best is not None and len(fallbacks) >= wanted - 1:
                break
        if best is None:
            return None
        fallbacks += [endpoint for endpoint in skipped if not endpoint.is_probing]
        return Pick(best, tuple(fallbacks[: wanted - 1]))

    def field_of(self, request: Request, candidates: Candidates) -> Field:
        """The candidates with their scores for this request."""
        boosts = self._boosts(request)
        if not self.relative:
            return _Field(self.ranking, candidates, boosts)
        everyone = self.ranking.known(candidates)
        totals = self.ranking.scores(everyone)
        for config in self.relative:
            weight, scores = config.weight, pool_scores(config, everyone)
            totals = [total + weight * score for total, score in zip(totals, scores, strict=True)]
        if boosts:
            totals = [t + boosts.get(e, 0.0) for t, e in zip(totals, everyone, strict=True)]
        return _ScannedField(everyone, totals, self._rng)

    def _boosts(self, request: Request) -> Mapping[EndpointState, float]:
        affinities = self._affinities
        if len(affinities) == 1:
            return affinities[0].boosts(request)
        boosts: dict[EndpointState, float] = {}
        for affinity in affinities:
            for endpoint, boost in affinity.boosts(request).items():
                boosts[endpoint] = boosts.get(endpoint, 0.0) + boost
        return boosts

    def explain(self, request: Request, candidates: Candidates) -> dict[EndpointState, Scores]:
        """Each candidate's weighted parts; they add up to what `pick` compares."""
        everyone = list(candidates)
        relative = {config.type: pool_scores(config, everyone) for config in self.relative}
        boosts = {kind: affinity.boosts(request) for kind, affinity in self.affinities.items()}
        rows = {}
        for number, endpoint in enumerate(everyone):
            parts: dict[str, float] = {}
            for config in self.fixed:
                parts[config.type] = config.weight * fixed_score(config, endpoint)
            parts |= {config.type: config.weight * relative[config.type][number] for config in self.relative}
            parts |= {kind: found.get(endpoint, 0.0) for kind, found in boosts.items()}
            if self.config.prefer is not None and not self.config.prefer.is_met(endpoint):
                parts["prefer"] = _NOT_PREFERRED
            rows[endpoint] = Scores(sum(parts.values()), parts)
        return rows

    def _own_score(self, endpoint: EndpointState) -> float:
        score = 0.0
        for weight, load_of, limit_of in self._loads:
            load = load_of(endpoint)
            if load is None:
                score += weight * UNKNOWN
            elif (share := load / limit_of(endpoint)) < 1.0:
                score += weight * (1.0 - share)
        prefer = self.config.prefer
        return score if prefer is None or prefer.is_met(endpoint) else score + _NOT_PREFERRED


class _Field:
    """See `extproc.core.picker.choice.Field`: the ranking's score, and more or less for a few."""

    __slots__ = ("_boosts", "_candidates", "_ranking")

    def __init__(
        self, ranking: Ranking, candidates: Candidates, boosts: Mapping[EndpointState, float]
    ) -> None:
        self._ranking = ranking
        self._candidates = candidates
        self._boosts = boosts

    def __contains__(self, endpoint: EndpointState) -> bool:
        return endpoint in self._candidates

    def score(self, endpoint: EndpointState) -> float:
        return (self._ranking.score(endpoint) or 0.0) + self._boosts.get(endpoint, 0.0)

    def highest_score(self) -> float:
        boost = max(self._boosts.values(), default=0.0)
        best = next(self._ranking.best_first(self._candidates), None)
        return 0.0 if best is None else (self._ranking.score(best) or 0.0) + max(0.0, boost)

    def everyone(self) -> list[EndpointState]:
        return list(self._candidates)

    def best_first(self) -> Iterator[EndpointState]:
        rest = self._ranking.best_first(self._candidates)
        return self._merged(rest) if self._boosts else rest

    def _merged(self, rest: Iterator[EndpointState]) -> Iterator[EndpointState]:
        """The boosted ones, ordered by themselves, merged into the ranking's order."""
        ranking, boosts = self._ranking, self._boosts
        boosted: list[tuple[float, int, EndpointState]] = []
        for endpoint, boost in boosts.items():
            own = ranking.score(endpoint)
            if own is not None and endpoint in self._candidates:
                boosted.append((-own - boost, len(boosted), endpoint))
        heapq.heapify(boosted)
        for endpoint in rest:
            if endpoint in boosts:
                continue
            own = -(ranking.score(endpoint) or 0.0)
            while boosted and boosted[0][0] <= own:
                yield heapq.heappop(boosted)[2]
            yield endpoint
        while boosted:
            yield heapq.heappop(boosted)[2]


class _ScannedField:
    """Scores that compare the candidates with each other: everyone was looked at."""

    __slots__ = ("_everyone", "_numbers", "_rng", "_totals")

    def __init__(self, everyone: list[EndpointState], totals: list[float], rng: random.Random) -> None:
        self._rng = rng
        self._everyone = everyone
        self._totals = totals
        self._numbers: dict[EndpointState, int] = {}

    def __contains__(self, endpoint: EndpointState) -> bool:
        return endpoint in self._by_endpoint()

    def score(self, endpoint: EndpointState) -> float:
        return self._totals[self._by_endpoint()[endpoint]]

    def highest_score(self) -> float:
        return max(self._totals, default=0.0)

    def everyone(self) -> list[EndpointState]:
        return self._everyone

    def best_first(self) -> Iterator[EndpointState]:
        """The best (equals at random) without sorting; the rest are sorted when somebody asks for more."""
        if not self._everyone:
            return
        totals, highest = self._totals, max(self._totals)
        equals = [number for number, total in enumerate(totals) if total == highest]
        best = equals[int(self._rng.random() * len(equals))]
        yield self._everyone[best]
        rest = sorted(range(len(totals)), key=totals.__getitem__, reverse=True)
        yield from (self._everyone[number] for number in rest if number != best)

    def _by_endpoint(self) -> dict[EndpointState, int]:
        if not self._numbers:
            self._numbers = {endpoint: number for number, endpoint in enumerate(self._everyone)}
        return self._numbers
