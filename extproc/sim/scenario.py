"""What a simulation is made of: pool, traffic, policies, delays, faults, horizon, seed. Values that check
themselves; reading files is the business of `extproc.sim.files`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from extproc.core.config import FlowControlConfig
from extproc.errors import ConfigError, Problem
from extproc.sim.server_config import EngineConfig
from extproc.workload.lengths import ChoiceLength, Fixed, Lengths, LogNormalLength, UniformLength
from extproc.workload.traffic import TrafficClass


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSpec:
    """One model server. `joins_at_s` above 0: it is added to the pool then (scale-up).

    `max_requests` and `max_tokens` override the detector's capacity for this endpoint.
    """

    name: str
    engine: EngineConfig
    joins_at_s: float = 0.0
    max_requests: int | None = None
    max_tokens: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """How long messages take, in seconds.

    `client_s` from a client to the gateway and back each; `gateway_s` from the gateway's decision to the
    engine's port and back each; `front_end_s` inside the engine's API server before the scheduler sees the
    request; `headers_s` from there to the response headers; `abort_s` from a revocation to the engine's
    abort; `confirm_s` from a revocation until the gateway sees the stream's end; `resubmit_s` how long a
    resuming client takes to send the next leg; `lost_s` how long it takes until the gateway knows that an
    endpoint is gone. `confirm_unstarted_s` replaces `confirm_s` for a victim that still waits inside the
    engine, where given.
    """

    client_s: float = 0.0
    gateway_s: float = 0.002
    front_end_s: float = 0.006
    headers_s: float = 0.003
    abort_s: float = 0.003
    confirm_s: float = 0.003
    confirm_unstarted_s: float | None = None
    resubmit_s: float = 0.020
    lost_s: float = 1.0

    def __post_init__(self) -> None:
        names = [name for name in self.__slots__ if (getattr(self, name) or 0.0) < 0]
        if names:
            raise ConfigError([Problem(name, "must be 0 or more") for name in names])


@dataclass(frozen=True, slots=True, kw_only=True)
class Scraping:
    """How the gateway measures engines: every `interval_s`, the figures arriving `delay_s` after they were
    taken. `interval_s` None: never.
    """

    interval_s: float | None = 0.25
    delay_s: float = 0.005

    def __post_init__(self) -> None:
        if (self.interval_s is not None and self.interval_s <= 0) or self.delay_s < 0:
            raise ConfigError([Problem("interval_s", "must be above 0, delay_s at least 0")])


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """How several replicas share the pool, in seconds.

    `leased`: on credits that move between them, as in production; every replica reports each `period_s`, and
    out of turn when a request must not wait for it; a message to or from the store takes `store_s`. `none`:
    each replica takes the whole capacity for its own, as a processor does that knows nothing of the others.
    """

    mode: Literal["leased", "none"] = "leased"
    period_s: float = 0.1
    store_s: float = 0.0005

    def __post_init__(self) -> None:
        if self.period_s <= 0 or self.store_s < 0:
            raise ConfigError([Problem("period_s", "must be above 0, store_s at least 0")])


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointLoss:
    """The engine dies at `at_s` with all its work; it is back, empty, at `back_at_s` (None: never)."""

    endpoint: str
    at_s: float
    back_at_s: float | None = None
    type: Literal["endpoint-loss"] = "endpoint-loss"


@dataclass(frozen=True, slots=True, kw_only=True)
class StaleMetrics:
    """Scrapes of the endpoint fail from `at_s` to `until_s`."""

    endpoint: str
    at_s: float
    until_s: float
    type: Literal["stale-metrics"] = "stale-metrics"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowEngine:
    """Steps of the endpoint take `factor` times as long from `at_s` to `until_s`."""

    endpoint: str
    at_s: float
    until_s: float
    factor: float
    type: Literal["slow-engine"] = "slow-engine"


Fault = EndpointLoss | StaleMetrics | SlowEngine


def _longest(lengths: Lengths) -> int:
    """The most tokens that a distribution can yield."""
    match lengths:
        case Fixed():
            return lengths.tokens
        case ChoiceLength():
            return max(lengths.tokens)
        case UniformLength() | LogNormalLength():
            return lengths.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One run. `horizon_s` is when it ends at the latest; it ends earlier when no work is left.

    `replicas` processors, each with its own controller, share the pool as `sharing` says; a request goes to
    the one of two drawn at random that has fewer open (Envoy's LEAST_REQUEST).
    `exempt_from_priority` makes requests of that priority and above bypass the gateway and need neither slot
    nor KV blocks: the yardstick in which nobody waits for a place, only for the shared GPU.
    `has_visible_output` says whether response bodies pass through the processor (first tokens are seen).
    `keeps_token_gaps` records every gap between tokens (ITL), `timeline_interval_s` the controller's state.
    """

    pool: tuple[EndpointSpec, ...]
    classes: tuple[TrafficClass, ...]
    flow_control: FlowControlConfig = field(default_factory=FlowControlConfig)
    delays: Delays = field(default_factory=Delays)
    scraping: Scraping = field(default_factory=Scraping)
    faults: tuple[Fault, ...] = ()
    horizon_s: float
    seed: int = 0
    replicas: int = 1
    sharing: Sharing = field(default_factory=Sharing)
    exempt_from_priority: int | None = None
    has_visible_output: bool = True
    keeps_token_gaps: bool = False
    timeline_interval_s: float | None = None
    name: str = ""

    def __post_init__(self) -> None:
        problems = [
            *(Problem(name, "must not be empty") for name in ("pool", "classes") if not getattr(self, name)),
            *self._name_problems(),
            *self._length_problems(),
        ]
        if not 0 < self.horizon_s < 1e9:
            problems.append(Problem("horizon_s", f"must be above 0 and finite, not {self.horizon_s}"))
        if self.replicas < 1:
            problems.append(Problem("replicas", f"must be at least 1, not {self.replicas}"))
        if self.timeline_interval_s is not None and self.timeline_interval_s <= 0:
            problems.append(Problem("timeline_interval_s", "must be above 0"))
        if problems:
            raise ConfigError(problems, source=self.name)

    def _name_problems(self) -> list[Problem]:
        problems = []
        for field_name, names in (
            ("pool", [spec.name for spec in self.pool]),
            ("classes", [traffic.name for traffic in self.classes]),
        ):
            doubled = sorted({name for name in names if names.count(name) > 1})
            problems += [Problem(field_name, f"two entries are named {name!r}") for name in doubled]
        known = {spec.name for spec in self.pool}
        for index, fault in enumerate(self.faults):
            if fault.endpoint not in known:
                problems.append(
                    Problem(
                        f"faults[{index}].endpoint",
                        f"no endpoint is named {fault.endpoint!r}; there are {', '.join(sorted(known))}",
                    )
                )
        return problems

    def _length_problems(self) -> list[Problem]:
        """Classes whose longest request no engine accepts: vLLM would answer each of them with 400."""
        limit = min((spec.engine.max_model_len for spec in self.pool), default=0)
        problems = []
        for index, traffic in enumerate(self.classes):
            longest = _longest(traffic.prompt) + _longest(traffic.output)
            if limit and longest > limit:
                problems.append(
                    Problem(
                        f"classes[{index}]",
                        f"a request of {longest} tokens in all is longer than max_model_len {limit}",
                    )
                )
        return problems
