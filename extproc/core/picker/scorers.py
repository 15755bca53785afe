"""Scores of an endpoint that depend on the endpoint alone: its load, as booked and as measured.

Every score runs from 0 (worst) to 1 (best) and is multiplied by its weight. What isn't reported scores 0.5,
so that a silent endpoint is neither preferred nor shunned. `scale: pool` compares with the least and most
loaded candidate, as llm-d-router does, which needs a look at all of them for each pick; `scale: fixed`
compares with `full_at`, which does not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from extproc.core.checks import FieldChecks
from extproc.core.pool import EndpointState

UNKNOWN = 0.5
Scale = Literal["fixed", "pool"]
Load = Callable[[EndpointState], float | None]


def check_weight(config: object) -> FieldChecks:
    """Every scorer has a weight; 0 switches it off but keeps it visible in explanations."""
    return FieldChecks(config).at_least("weight", 0, 1000)


@dataclass(frozen=True, kw_only=True, slots=True)
class InflightScorerConfig:
    """Fewer requests in flight (our own books) is better. `full_at` None: the endpoint's own `max_requests`,
    else 100."""

    type: Literal["in-flight"] = "in-flight"
    weight: float = 1.0
    full_at: int | None = None
    scale: Scale = "fixed"

    def __post_init__(self) -> None:
        check_weight(self).at_least("full_at", 1, 1_000_000).finish()

    def load(self, endpoint: EndpointState) -> float | None:
        return endpoint.requests

    def limit(self, endpoint: EndpointState) -> float:
        return self.full_at or endpoint.endpoint.max_requests or 100


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueScorerConfig:
    """Fewer requests waiting inside the engine is better."""

    type: Literal["queue"] = "queue"
    weight: float = 1.0
    full_at: int = 16
    scale: Scale = "fixed"

    def __post_init__(self) -> None:
        check_weight(self).at_least("full_at", 1, 1_000_000).finish()

    def load(self, endpoint: EndpointState) -> float | None:
        return None if endpoint.sample is None else endpoint.sample.waiting_requests

    def limit(self, endpoint: EndpointState) -> float:
        return self.full_at


@dataclass(frozen=True, kw_only=True, slots=True)
class RunningScorerConfig:
    """Fewer requests running, as the engine reports, is better."""

    type: Literal["running"] = "running"
    weight: float = 1.0
    full_at: int = 256
    scale: Scale = "fixed"

    def __post_init__(self) -> None:
        check_weight(self).at_least("full_at", 1, 1_000_000).finish()

    def load(self, endpoint: EndpointState) -> float | None:
        return None if endpoint.sample is None else endpoint.sample.running_requests

    def limit(self, endpoint: EndpointState) -> float:
        return self.full_at


@dataclass(frozen=True, kw_only=True, slots=True)
class KvUsageScorerConfig:
    """A less used KV cache is better: the larger of what was measured and what is booked there now."""

    type: Literal["kv-usage"] = "kv-usage"
    weight: float = 1.0
    scale: Literal["fixed"] = "fixed"

    def __post_init__(self) -> None:
        check_weight(self).finish()

    def load(self, endpoint: EndpointState) -> float | None:
        sample = endpoint.sample
        if sample is None or sample.kv_usage_fraction is None:
            return None
        booked = endpoint.kv_tokens / sample.kv_capacity_tokens if sample.kv_capacity_tokens else 0.0
        return max(sample.kv_usage_fraction, booked)

    def limit(self, endpoint: EndpointState) -> float:
        return 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenLoadScorerConfig:
    """Fewer tokens in flight (our own books) is better. `full_at` None: the endpoint's own `max_tokens`, else
    4,194,304."""

    type: Literal["token-load"] = "token-load"
    weight: float = 1.0
    full_at: int | None = None
    scale: Scale = "fixed"

    def __post_init__(self) -> None:
        check_weight(self).at_least("full_at", 1).finish()

    def load(self, endpoint: EndpointState) -> float | None:
        return endpoint.tokens

    def limit(self, endpoint: EndpointState) -> float:
        return self.full_at or endpoint.endpoint.max_tokens or 4_194_304


LoadScorerConfig = (
    InflightScorerConfig
    | QueueScorerConfig
    | RunningScorerConfig
    | KvUsageScorerConfig
    | TokenLoadScorerConfig
)


def fixed_score(config: LoadScorerConfig, endpoint: EndpointState) -> float:
    """1 without load, 0 from the limit on."""
    load = config.load(endpoint)
    return UNKNOWN if load is None else 1.0 - min(1.0, load / config.limit(endpoint))


def pool_scores(config: LoadScorerConfig, endpoints: list[EndpointState]) -> list[float]:
    """1 for the least loaded of these endpoints, 0 for the most loaded; all 1 when they are equal."""
    loads = list(map(config.load, endpoints))
    known = [load for load in loads if load is not None]
    if not known:
        return [UNKNOWN] * len(loads)
    most, spread = max(known), max(known) - min(known)
    if not spread:
        return [UNKNOWN if load is None else 1.0 for load in loads]
    return [UNKNOWN if load is None else (most - load) / spread for load in loads]


@dataclass(frozen=True, kw_only=True, slots=True)
class PreferConfig:
    """Endpoints beyond any of these limits come after all others, whatever they score. They are still used
    when nobody else takes the request: a filter must not turn into "no endpoint"."""

    max_waiting_requests: int | None = None
    max_running_requests: int | None = None
    max_kv_usage_fraction: float | None = None

    def __post_init__(self) -> None:
        checks = FieldChecks(self).at_least("max_waiting_requests", 0).at_least("max_running_requests", 0)
        checks.fraction("max_kv_usage_fraction").finish()

    def is_met(self, endpoint: EndpointState) -> bool:
        sample = endpoint.sample
        if sample is None:
            return True
        return (
            _is_within(sample.waiting_requests, self.max_waiting_requests)
            and _is_within(sample.running_requests, self.max_running_requests)
            and _is_within(sample.kv_usage_fraction, self.max_kv_usage_fraction)
        )


def _is_within(value: float | None, limit: float | None) -> bool:
    return value is None or limit is None or value <= limit
