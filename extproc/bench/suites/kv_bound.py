"""Seed 000, section 4: Qwen2.5-32B, where KV cache runs out long before sequence slots do."""

from __future__ import annotations

from dataclasses import replace

from extproc.bench.arms import (
    Lever,
    best_arms,
    best_flow_control,
    holdback_arms,
    renamed,
    requests,
    tokens,
    utilization,
    yardsticks,
)
from extproc.bench.results import BEST
from extproc.bench.suite import Arm, Latencies, Load, Setting, Suite
from extproc.bench.suites.mix import ArrivalsFrom, batch, bursts, mixed_load, steady
from extproc.core.adaptive import AdaptiveHoldbackConfig
from extproc.workload.traffic import TrafficClass

SLOTS = 128
KV_TOKENS = 267_472


def _batch(setting: Setting) -> tuple[TrafficClass, ...]:
    return (batch(setting, requests=128, prompt=8000, output=2000),)


KV_BOUND_BURST = 32
"""About 58 interactive requests of 2,256 tokens fit beside nothing; a burst of 64 exceeds the cache."""


def _load(name: str, arrivals: ArrivalsFrom, *, burst: int = 0) -> Load:
    return mixed_load(
        name,
        arrivals,
        is_steady=burst == 0,
        exceeds_slots=burst > KV_BOUND_BURST,
        starts_s=(3.0, 60.0),
        horizon_s=3000.0,
        offline=_batch,
        prompt=2000,
        output=256,
    )


HARDWARE = "h200-qwen2.5-32b"
BURSTS_OF_64 = "bursts of 64"


KV_RESERVE_BOUNDS = (0.25, 0.4, 0.75)
"""Beside the default of 0.5."""


def reserve_arm(bound: float) -> str:
    return f"{BEST}, KV reserve up to {bound:g}"


def _reserve_bounds() -> tuple[Arm, ...]:
    """`best` under the largest bursts with other bounds on what it keeps free of the KV cache."""
    best = best_arms(SLOTS)[0]
    control = best_flow_control(SLOTS)
    return tuple(
        renamed(
            best,
            reserve_arm(bound),
            flow_control=replace(control, ceilings=AdaptiveHoldbackConfig(max_fraction=bound)),
            loads=(BURSTS_OF_64,),
            least_runs=0,
        )
        for bound in KV_RESERVE_BOUNDS
    )


KV_BOUND_32B = Suite(
    name="kv-bound-32b",
    title="KV cache binds: which detector protects interactive traffic",
    seed="000",
    section="4",
    hardware=HARDWARE,
    reference="tokens: eviction",
    latencies=Latencies(scrape_s=0.05),
    engine={"max_num_seqs": SLOTS},
    loads=(
        _load("1/s", steady(1.0, 180.0)),
        _load("2/s", steady(2.0, 300.0)),
        _load("bursts of 32", bursts(32, 30.0, 6), burst=32),
        _load(BURSTS_OF_64, bursts(64, 30.0, 6), burst=64),
    ),
    arms=(
        *yardsticks(SLOTS),
        *holdback_arms(requests(SLOTS), holdbacks=(0.8,), prefix="requests:"),
        *holdback_arms(utilization(), holdbacks=(0.8,), prefix="utilization:"),
        *holdback_arms(tokens(KV_TOKENS), holdbacks=(0.8,), counts_output=True, prefix="tokens:"),
        *best_arms(SLOTS, ablate=tuple(Lever), ablation_loads=("1/s", "bursts of 32")),
        *_reserve_bounds(),
    ),
)
