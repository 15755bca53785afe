"""Seed 002, scale, recovery, routing and workload shapes."""

from __future__ import annotations

import dataclasses

from extproc.bench.arms import production_flow_control, requests, tokens
from extproc.bench.suite import Arm, Latencies, Load, Setting, Suite
from extproc.bench.suites.production import (
    HARDWARE,
    LIMIT_128,
    SLOTS,
    SURGE_S,
    detector_arm,
    one_load,
    tenant,
)
from extproc.core.picker.affinity import PrefixScorerConfig
from extproc.core.picker.choice import RandomConfig
from extproc.core.picker.profile import ProfileConfig
from extproc.core.picker.profiles import ProfilesPickerConfig
from extproc.core.picker.scorers import InflightScorerConfig
from extproc.workload.lengths import Fixed, LogNormalLength, UniformLength
from extproc.workload.traffic import TrafficClass

_STEADY = (Setting.STEADY,)
_SCRAPE = Latencies(scrape_s=0.05)
_RANDOM = ProfilesPickerConfig(profiles=(ProfileConfig(scorers=(), choice=RandomConfig()),))
_PREFIX = ProfilesPickerConfig(
    profiles=(ProfileConfig(scorers=(PrefixScorerConfig(weight=2.0), InflightScorerConfig())),)
)
_LONG_PROMPTS = LogNormalLength(median=3000, sigma=0.6, low=500, high=12_000)
TOKEN_LIMIT = 400_000
"""About the KV cache. Counted until the first output only, it seldom binds: the engine's queue decides."""
LONG_TOKEN_LIMIT = 16_384
"""Two whole engine steps: with long prompts the limit binds now and then, without it never."""


def _by_prompts(limit: int) -> Arm:
    return Arm(
        name="input tokens", flow_control=production_flow_control(tokens(limit), releases_prompts=True)
    )


def _sized(traffic: TrafficClass, prompt: object) -> TrafficClass:
    return dataclasses.replace(traffic, prompt=prompt)  # type: ignore[arg-type]


def _mixed(name: str, priority: int, rate_per_s: float, phase: float, prompt: UniformLength) -> TrafficClass:
    """Long prompts, short answers: the engine queues for prefill, as a premium p95 of 2 s under a request
    limit of its own 128 slots shows that it did in the seed. Answers as in the admission sweeps.
    """
    traffic = tenant(name, priority, rate_per_s, surge=1.9, phase=phase)
    return dataclasses.replace(traffic, prompt=prompt, output=UniformLength(low=64, high=160))


MIXED_PRODUCTION = Suite(
    name="mixed-production",
    title="Prompts of very different sizes: request counts against exact input tokens",
    seed="002",
    section="workload behavior",
    hardware=HARDWARE,
    loads=(
        one_load(
            _mixed("premium", 20, 1.0, 0.0, UniformLength(low=192, high=1536)),
            _mixed("standard", 10, 1.0, 1.0, UniformLength(low=768, high=3072)),
            _mixed("economy", 0, 1.1, 2.0, UniformLength(low=1536, high=6144)),
            _mixed("batch", -1, 1.1, 3.0, UniformLength(low=3072, high=9216)),
        ),
    ),
    arms=(
        detector_arm(LIMIT_128, requests(SLOTS, burst_fraction=0.1)),
        _by_prompts(TOKEN_LIMIT),
    ),
    reference=LIMIT_128,
    measured=("premium", "standard", "economy", "batch"),
    settings=_STEADY,
    window_s=SURGE_S,
)

LONG_CONTEXT = Suite(
    name="long-context",
    title="Long prompts: eight paired seeds of both signals",
    seed="002",
    section="workload behavior",
    hardware=HARDWARE,
    loads=(
        one_load(
            _sized(tenant("realtime", 20, 0.5), _LONG_PROMPTS),
            _sized(tenant("batch", -1, 0.9, phase=2.0), _LONG_PROMPTS),
        ),
    ),
    arms=tuple(
        dataclasses.replace(arm, least_runs=8)
        for arm in (
            detector_arm(LIMIT_128, requests(SLOTS, burst_fraction=0.1)),
            _by_prompts(LONG_TOKEN_LIMIT),
        )
    ),
    reference=LIMIT_128,
    measured=("realtime",),
    settings=_STEADY,
    window_s=SURGE_S,
)


def _scaled(replicas: int) -> Load:
    load = one_load(
        tenant("realtime", 20, 3.0 * replicas, surge=1.8),
        tenant("batch", -1, 4.5 * replicas, surge=1.8, phase=2.0),
        name=f"{replicas} replicas",
    )
    return dataclasses.replace(load, horizon_s=300.0)


POOL_SCALING = Suite(
    name="pool-scaling",
    title="One, two and four replicas under a load that grows with them",
    seed="002",
    section="scale",
    hardware=HARDWARE,
    loads=tuple(_scaled(replicas) for replicas in (1, 2, 4)),
    arms=tuple(
        Arm(
            name=f"pool of {replicas}",
            flow_control=production_flow_control(requests(SLOTS, burst_fraction=0.1)),
            endpoints=replicas,
            loads=(f"{replicas} replicas",),
        )
        for replicas in (1, 2, 4)
    ),
    reference="pool of 1",
    measured=("realtime",),
    settings=_STEADY,
    latencies=_SCRAPE,
    window_s=SURGE_S,
)

_SURGES = ((120.0, 270.0), (420.0, 570.0))
LONG_STABILITY = Suite(
    name="long-stability",
    title="Two sustained surges and the recovery from them",
    seed="002",
    section="scale",
    hardware=HARDWARE,
    loads=(
        one_load(
            tenant("realtime", 20, 3.0, end_s=840.0, surges_s=_SURGES),
            tenant("batch", -1, 4.0, end_s=840.0, surges_s=_SURGES, phase=2.0),
            horizon_s=1500.0,
        ),
    ),
    arms=(detector_arm(LIMIT_128, requests(SLOTS, burst_fraction=0.1)),),
    reference=LIMIT_128,
    measured=("realtime",),
    settings=_STEADY,
    window_s=(0.0, 840.0),
)


def _shared(traffic: TrafficClass, prefix_tokens: int, groups: int, prompt: int) -> TrafficClass:
    return dataclasses.replace(
        traffic, shared_prefix_tokens=prefix_tokens, prefix_groups=groups, prompt=Fixed(tokens=prompt)
    )


PREFIX_ROUTING = Suite(
    name="prefix-routing",
    title="Random against prefix-aware routing over two replicas, cache on",
    notes="Realtime and batch share long prefixes in many groups, so a replica that has seen the group saves "
    "most of their prompt. Standard requests are long and share one short prefix: it draws them all to one "
    "replica and saves next to nothing. That makes the seed's three signs; with prefixes that are found "
    "either way, or with two overloaded replicas, they change from run to run, as the seed says of its own.",
    seed="002",
    section="routing",
    hardware=HARDWARE,
    engine={"has_prefix_cache": True},
    endpoints=2,
    loads=(
        one_load(
            _shared(tenant("realtime", 20, 3.0, surge=1.8), 2048, 100, 2176),
            _shared(tenant("standard", 10, 1.0, surge=1.8, phase=1.0), 256, 1, 8192),
            _shared(tenant("batch", -1, 5.0, surge=1.8, phase=2.0), 1024, 100, 1152),
        ),
    ),
    arms=(
        Arm(
            name="random",
            flow_control=production_flow_control(requests(SLOTS, burst_fraction=0.1), picker=_RANDOM),
        ),
        Arm(
            name="prefix-aware",
            flow_control=production_flow_control(requests(SLOTS, burst_fraction=0.1), picker=_PREFIX),
        ),
    ),
    reference="random",
    measured=("realtime", "standard", "batch"),
    settings=_STEADY,
    latencies=_SCRAPE,
    window_s=SURGE_S,
)
