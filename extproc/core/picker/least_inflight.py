"""The simplest picker: fewest requests in flight, ties at random."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from extproc.core.checks import FieldChecks
from extproc.core.picker.protocol import Fits, Pick, Scores
from extproc.core.picker.ranking import Ranking
from extproc.core.pool import NO_LABELS, Candidates, EndpointState, Labels
from extproc.core.types import Request


@dataclass(frozen=True, kw_only=True, slots=True)
class LeastInflightPickerConfig:
    """Fewest requests in flight; ties at random. `fallbacks` further addresses are named to Envoy."""

    type: Literal["least-inflight"] = "least-inflight"
    fallbacks: int = 0

    def __post_init__(self) -> None:
        FieldChecks(self).at_least("fallbacks", 0, 16).finish()


class LeastInflightPicker:
    """Keeps endpoints ordered by their load, so that a pick is O(log n) unless the best ones don't fit."""

    def __init__(self, config: LeastInflightPickerConfig, rng: random.Random) -> None:
        self._config = config
        self._ranking = Ranking(rng)

    def endpoint_changed(self, endpoint: EndpointState) -> None:
        self._ranking.put(endpoint, -endpoint.requests)

    def endpoint_closed(self, endpoint: EndpointState) -> None:
        self._ranking.discard(endpoint)

    def request_dispatched(self, request: Request, endpoint: EndpointState, now: float) -> None:
        return

    def required_labels(self, request: Request) -> Labels:
        return NO_LABELS

    def profile_name(self, request: Request) -> str | None:
        return None

    def pick(self, request: Request, candidates: Candidates, fits: Fits, now: float) -> Pick | None:
        chosen: list[EndpointState] = []
        for endpoint in self._ranking.best_first(candidates):
            if chosen or fits(endpoint):
                chosen.append(endpoint)
                if len(chosen) > self._config.fallbacks:
                    break
        return Pick(chosen[0], tuple(chosen[1:])) if chosen else None

    def explain(self, request: Request, candidates: Candidates) -> Mapping[EndpointState, Scores]:
        return {
            endpoint: Scores(-endpoint.requests, {"in-flight": -endpoint.requests}) for endpoint in candidates
        }
