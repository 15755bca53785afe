"""Seed 000, section 4: Qwen2.5-32B, where KV cache runs out long before sequence slots do."""

from __future__ import annotations

from extproc.bench.arms import Lever, best_arms, holdback_arms, requests, tokens, utilization, yardsticks
from extproc.bench.suite import Latencies, Load, Setting, Suite
from extproc.bench.suites.mix import ArrivalsFrom, batch, bursts, mixed_load, steady
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


KV_BOUND_32B = Suite(
    name="kv-bound-32b",
    title="KV cache binds: which detector protects interactive traffic",
    seed="000",
    section="4",
    hardware="h200-qwen2.5-32b",
    reference="tokens: eviction",
    target_reasons={
        "interactive TTFT p95 over floor-alone": "prefill binds: 64 prompts of 2,000 tokens are 20 s of it, "
        "the next burst comes after 30 s, and batch admitted between two bursts takes its share of the rest",
    },
    latencies=Latencies(scrape_s=0.05),
    engine={"max_num_seqs": SLOTS},
    loads=(
        _load("1/s", steady(1.0, 180.0)),
        _load("2/s", steady(2.0, 300.0)),
        _load("bursts of 32", bursts(32, 30.0, 6), burst=32),
        _load("bursts of 64", bursts(64, 30.0, 6), burst=64),
    ),
    arms=(
        *yardsticks(SLOTS),
        *holdback_arms(requests(SLOTS), holdbacks=(0.8,), prefix="requests:"),
        *holdback_arms(utilization(), holdbacks=(0.8,), prefix="utilization:"),
        *holdback_arms(tokens(KV_TOKENS), holdbacks=(0.8,), counts_output=True, prefix="tokens:"),
        *best_arms(SLOTS, ablate=tuple(Lever), ablation_loads=("1/s", "bursts of 32")),
    ),
)
