"""Seed 000, section 8: why the 45 s batch job misses its deadline only under eviction, and the fix.

The processor orders its 192 requests by deadline, but all of them reach the gateway at once, so a request
that was evicted and resumed rejoins a first-come-first-served queue behind work with later deadlines.
Ordering the batch band by deadline at the gateway puts it back where it belongs.
"""

from __future__ import annotations

import dataclasses

from extproc.bench.arms import Lever, best_arms, requests, seed_flow_control
from extproc.bench.suite import Arm, Latencies, Load, Setting, Suite
from extproc.bench.suites.mix import batch, mixed_load, steady
from extproc.core.config import FlowControlConfig
from extproc.core.ordering import EdfOrderingConfig
from extproc.workload.traffic import TrafficClass

SLOTS = 32
JOB_DEADLINES_S = (45.0, 90.0, 120.0)
"""The seed names the 45 s job only; the two others must merely come later."""


def _jobs(setting: Setting) -> tuple[TrafficClass, ...]:
    """Three jobs of 64 requests, submitted at once, the most urgent first (the processor's order)."""
    return tuple(
        batch(
            setting,
            requests=64,
            prompt=64,
            output=1500,
            name=f"job-{deadline_s:g}s",
            deadline_s=deadline_s,
            start_s=0.5 + 0.1 * place,
        )
        for place, deadline_s in enumerate(JOB_DEADLINES_S)
    )


def _load(rate_per_s: float) -> Load:
    return mixed_load(
        f"{rate_per_s:g}/s",
        steady(rate_per_s, 90.0),
        starts_s=(1.0, 3.0),
        horizon_s=600.0,
        offline=_jobs,
        prompt=64,
        output=192,
    )


def _by_deadline(config: FlowControlConfig) -> FlowControlConfig:
    bands = [
        dataclasses.replace(band, ordering=EdfOrderingConfig()) if band.priority < 0 else band
        for band in config.bands
    ]
    return dataclasses.replace(config, bands=tuple(bands))


_EVICTION = seed_flow_control(requests(SLOTS), evicts=True)

BATCH_DEADLINES = Suite(
    name="batch-deadlines",
    title="A 45 s job among later ones: deadlines under eviction",
    seed="000",
    section="8",
    hardware="h200-qwen2.5-1.5b",
    engine={"max_num_seqs": SLOTS},
    latencies=Latencies(network_s=(0.06, 0.11)),
    target_reasons={
        "evictions over eviction": "interactive traffic begins half a second after the batch, so the reserve "
        "is learnt while the first second's arrivals evict already",
    },
    loads=(_load(1.0), _load(2.0), _load(4.0)),
    arms=(
        Arm(name="none", flow_control=seed_flow_control(requests(SLOTS), evicts=False)),
        Arm(name="eviction", flow_control=_EVICTION),
        Arm(name="eviction, by deadline", flow_control=_by_deadline(_EVICTION)),
        *best_arms(SLOTS, ablate=(Lever.DEADLINES,), ablation_loads=("1/s", "2/s", "4/s")),
    ),
)
