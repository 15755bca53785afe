"""Seed 000, sections 2, 3, 5 and 6: holdback beside eviction on one H200 with 32 sequence slots."""

from __future__ import annotations

from extproc.bench.arms import (
    Lever,
    best_arms,
    holdback_arms,
    requests,
    seed_flow_control,
    tokens,
    yardsticks,
)
from extproc.bench.suite import Arm, Latencies, Load, Setting, Suite
from extproc.bench.suites.mix import ArrivalsFrom, batch, bursts, mixed_load, steady
from extproc.workload.traffic import AfterEviction, TrafficClass

SLOTS = 32
TOKEN_CAP = 204_800
"""What the seed sets: 32 batch requests' worth of estimated tokens (4,900 + 1,500 each)."""

OTHER_TOKEN_CAPS = tuple(TOKEN_CAP * per_cent // 100 for per_cent in (90, 95, 105, 110))
"""The token estimate 10% and 5% over and under its share of the cap: 28, 30, 33 and 35 batch requests. The
peer estimates 4 bytes a token, so that no real prompt weighs exactly its share."""

LONG_BURST_GAP_S = 20.0
"""1,440 interactive requests over 3 runs make 15 bursts of 32 a run: one every 10 to 20 s, not stated."""


def _short_batch(setting: Setting) -> tuple[TrafficClass, ...]:
    return (batch(setting, requests=192, prompt=64, output=1500),)


def _long_batch(setting: Setting) -> tuple[TrafficClass, ...]:
    return (batch(setting, requests=192, prompt=4900, output=1500),)


def _batch_14b(setting: Setting) -> tuple[TrafficClass, ...]:
    return (batch(setting, requests=96, prompt=4800, output=1500),)


def _short(name: str, arrivals: ArrivalsFrom, *, burst: int = 0) -> Load:
    return mixed_load(
        name,
        arrivals,
        is_steady=burst == 0,
        exceeds_slots=burst > SLOTS,
        starts_s=(3.0, 10.0),
        horizon_s=600.0,
        offline=_short_batch,
        prompt=64,
        output=192,
    )


def _long(name: str, arrivals: ArrivalsFrom, *, burst: int = 0) -> Load:
    return mixed_load(
        name,
        arrivals,
        is_steady=burst == 0,
        starts_s=(3.0, 15.0),
        horizon_s=900.0,
        offline=_long_batch,
        prompt=500,
        output=128,
        limit=200,
    )


_RESERVE_COST = (
    "the slots that the reserve keeps free for the next arrivals; a smaller reserve (slot_quantile 0.8) "
    "brings it to +1% and the evictions above half of the eviction-only arm's"
)

HOLDBACK_REQUESTS = Suite(
    name="holdback-requests",
    target_reasons={
        "batch time over eviction": _RESERVE_COST,
        "evictions over eviction": "arrivals that crowd within one answer's length overrun the reserve; "
        "a larger one costs more batch time than the target allows",
    },
    title="Request-count saturation: reserve against eviction",
    seed="000",
    section="2",
    hardware="h200-qwen2.5-1.5b",
    engine={"max_num_seqs": SLOTS},
    latencies=Latencies(network_s=(0.06, 0.11)),
    loads=(
        _short("1/s", steady(1.0, 90.0)),
        _short("2/s", steady(2.0, 90.0)),
        _short("4/s", steady(4.0, 90.0)),
        _short("bursts of 32", bursts(32, 10.0, 7), burst=32),
        _short("bursts of 16", bursts(16, 10.0, 7), burst=16),
        _short("bursts of 48", bursts(48, 10.0, 7), burst=48),
        _short("bursts of 64", bursts(64, 10.0, 7), burst=64),
    ),
    arms=(
        *yardsticks(SLOTS),
        Arm(name="none", flow_control=seed_flow_control(requests(SLOTS), evicts=False)),
        *holdback_arms(requests(SLOTS), holdbacks=(0.9, 0.8, 0.6), without_eviction=(0.9, 0.8, 0.6)),
        *best_arms(SLOTS, ablate=tuple(Lever), ablation_loads=("2/s", "bursts of 32")),
    ),
)

HOLDBACK_TOKENS = Suite(
    name="holdback-tokens",
    title="Token-count saturation on a server with a sequence cap",
    seed="000",
    section="3",
    hardware="h200-qwen2.5-1.5b",
    engine={"max_num_seqs": SLOTS},
    loads=(
        _long("1/s", steady(1.0, 120.0)),
        _long("2/s", steady(2.0, 120.0)),
        _long("4/s", steady(4.0, 120.0)),
        _long("bursts of 32", bursts(32, LONG_BURST_GAP_S, 7), burst=32),
    ),
    arms=(
        *yardsticks(SLOTS),
        *holdback_arms(tokens(TOKEN_CAP), holdbacks=(0.9, 0.8), counts_output=True),
        *holdback_arms(tokens(153_600), holdbacks=(0.8,), counts_output=True, prefix="cap 153,600:"),
        *holdback_arms(tokens(256_000), holdbacks=(0.8,), counts_output=True, prefix="cap 256,000:"),
        *best_arms(SLOTS, ablate=tuple(Lever), ablation_loads=("2/s", "bursts of 32")),
    ),
)

HOLDBACK_HYBRID = Suite(
    name="holdback-hybrid",
    title="Hybrid saturation: the larger of the request and the token ratio",
    notes="With the cap at exactly 32 times the estimate of a batch request the three arms tie in bursts "
    "(medians within 1%); how far the seed's estimate was off is not stated, so both sides are checked (see "
    "the open questions).",
    seed="000",
    section="3",
    hardware="h200-qwen2.5-1.5b",
    engine={"max_num_seqs": SLOTS},
    loads=(
        _long("2/s", steady(2.0, 120.0)),
        _long("bursts of 32", bursts(32, LONG_BURST_GAP_S, 7), burst=32),
    ),
    arms=(
        *holdback_arms(
            tokens(TOKEN_CAP, mode="hybrid", max_concurrency=100),
            holdbacks=(0.9, 0.8),
            counts_output=True,
        ),
        *holdback_arms(
            tokens(TOKEN_CAP, mode="hybrid", max_concurrency=SLOTS),
            holdbacks=(0.9, 0.8),
            counts_output=True,
            prefix="requests 32:",
        ),
        *(
            arm
            for cap in OTHER_TOKEN_CAPS
            for arm in holdback_arms(
                tokens(cap, mode="hybrid", max_concurrency=100),
                holdbacks=(0.9, 0.8),
                counts_output=True,
                prefix=f"cap {cap:,}:",
            )
        ),
    ),
)

NO_RESUME = Suite(
    name="no-resume",
    title="Restart after an eviction instead of resuming",
    seed="000",
    section="5",
    hardware="h200-qwen2.5-1.5b",
    engine={"max_num_seqs": SLOTS},
    loads=(
        _long("1/s", steady(1.0, 120.0)),
        _long("bursts of 32", bursts(32, LONG_BURST_GAP_S, 15), burst=32),
        *(_long(f"bursts every {gap:g} s", bursts(32, gap, 15), burst=32) for gap in (10.0, 15.0, 30.0)),
    ),
    arms=(
        *holdback_arms(requests(SLOTS), holdbacks=(0.8,)),
        Arm(
            name="eviction, no resume",
            flow_control=seed_flow_control(requests(SLOTS), evicts=True),
            after_eviction=AfterEviction.RESTART,
        ),
        Arm(
            name="holdback 0.8, no resume",
            flow_control=seed_flow_control(requests(SLOTS), evicts=True, holdback=0.8),
            after_eviction=AfterEviction.RESTART,
        ),
    ),
)

HOLDBACK_14B = Suite(
    name="holdback-14b",
    title="A larger model: latency from sharing the GPU, not from evictions",
    seed="000",
    section="6",
    hardware="h200-qwen2.5-14b",
    engine={"max_num_seqs": SLOTS},
    loads=(
        mixed_load(
            "1/s",
            steady(1.0, 250.0),
            starts_s=(3.0, 40.0),
            horizon_s=1200.0,
            offline=_batch_14b,
            prompt=500,
            output=128,
        ),
    ),
    arms=(
        *yardsticks(SLOTS),
        *holdback_arms(requests(SLOTS), holdbacks=(0.9, 0.8)),
        *best_arms(SLOTS, chunk_tokens=2048, ablate=tuple(Lever), ablation_loads=("1/s",)),
    ),
)
