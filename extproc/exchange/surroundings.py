"""What all streams of a process share: the configuration, and the little that is learnt across requests."""

from __future__ import annotations

import random
from dataclasses import dataclass

from extproc.exchange.admission import Admitter
from extproc.exchange.observation import ObservationSampler
from extproc.exchange.settings import ExchangeConfig
from extproc.exchange.tokens import TokenEstimator


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Handed to each exchange."""

    config: ExchangeConfig
    estimator: TokenEstimator
    admitter: Admitter
    sampler: ObservationSampler


def build_surroundings(
    config: ExchangeConfig, rng: random.Random, before: Surroundings | None = None
) -> Surroundings:
    """Put them together; what was learnt before of token counts is kept where its settings are."""
    is_same = before is not None and before.config.tokens == config.tokens
    estimator = before.estimator if before is not None and is_same else TokenEstimator(config.tokens)
    return Surroundings(
        config=config,
        estimator=estimator,
        admitter=Admitter(config, estimator, rng.random),
        sampler=ObservationSampler(config.observation, rng.random),
    )
