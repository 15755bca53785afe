"""Seed 002, the production scenarios: open-loop tenants with a surge from 60 to 210 s on one H100.

The seed names neither its model nor its request sizes and rates. Sizes here are those that the hardware
file was fitted with (512 prompt tokens, 128 to 384 output tokens); rates are chosen once, for all
scenarios, so that the surge asks for a little more than the engine serves, which is what its queues show.
"""

from __future__ import annotations

from extproc.bench.arms import (
    POOLED_RUNS,
    best_flow_control,
    production_flow_control,
    requests,
    utilization,
    yardsticks,
)
from extproc.bench.results import BEST, FLOOR_SHARED_PACED
from extproc.bench.suite import Arm, Latencies, Load, Setting, Suite
from extproc.core.detectors import DetectorConfig
from extproc.workload.arrivals import NoisySinusoid
from extproc.workload.lengths import Fixed, UniformLength
from extproc.workload.traffic import AfterEviction, TrafficClass

SLOTS = 128
SURGE_S = (60.0, 210.0)
END_S = 300.0
SURGE_FACTOR = 2.1
PHASE_S = 60.0
HARDWARE = "h100-seed002"
LIMIT_128 = "requests 128"


def tenant(
    name: str,
    priority: int,
    rate_per_s: float,
    *,
    surge: float = SURGE_FACTOR,
    phase: float = 0.0,
    end_s: float = END_S,
    surges_s: tuple[tuple[float, float], ...] = (SURGE_S,),
) -> TrafficClass:
    """One tenant: a noisy sinusoid around `rate_per_s`, multiplied during the surge; batch resumes."""
    return TrafficClass(
        name=name,
        priority=priority,
        fairness_ids=(name,),
        arrivals=NoisySinusoid(
            base_per_s=rate_per_s,
            amplitude=0.2,
            period_s=PHASE_S,
            phase=phase,
            surge_factor=surge,
            surges_s=surges_s,
            end_s=end_s,
        ),
        prompt=Fixed(tokens=512),
        output=UniformLength(low=128, high=384),
        after_eviction=AfterEviction.RESUME if priority < 0 else AfterEviction.FAIL,
    )


def one_load(*tenants: TrafficClass, name: str = "surge", horizon_s: float = 900.0) -> Load:
    """The only load of a scenario; both settings are the same, since its lengths vary anyway."""

    def traffic(setting: Setting) -> tuple[TrafficClass, ...]:
        return tenants

    return Load(name=name, traffic=traffic, horizon_s=horizon_s)


def detector_arm(name: str, detector: DetectorConfig) -> Arm:
    """The peer's v0.9 flow control: strict priority, round robin between tenants, no eviction."""
    return Arm(name=name, flow_control=production_flow_control(detector))


PACING_TOKENS = 1024
"""About 30 ms of prefill. The cache is off here, so each resumed prompt is computed whole and comes in
lumps.
"""


def _best() -> Arm:
    config = best_flow_control(SLOTS, is_round_robin=True, pacing_tokens=PACING_TOKENS)
    return Arm(name=BEST, flow_control=config, least_runs=POOLED_RUNS)


def _scenario(
    name: str,
    title: str,
    tenants: tuple[TrafficClass, ...],
    measured: tuple[str, ...],
    *,
    detectors: tuple[Arm, ...] = (),
    headroom: float = 0.10,
    interactive_from: int | None = None,
    notes: str = "",
) -> Suite:
    reference = detector_arm(LIMIT_128, requests(SLOTS, burst_fraction=headroom))
    extra: tuple[Arm, ...] = ()
    if interactive_from is not None:
        floors = yardsticks(SLOTS, exempts_from=interactive_from)
        extra = (*(arm for arm in floors if arm.name != FLOOR_SHARED_PACED), _best())
    return Suite(
        name=name,
        title=title,
        seed="002",
        section="production scenarios",
        hardware=HARDWARE,
        loads=(one_load(*tenants),),
        arms=(reference, *detectors, *extra),
        reference=LIMIT_128,
        measured=measured,
        interactive=tuple(each.name for each in tenants if each.priority >= (interactive_from or 0)),
        settings=(Setting.STEADY,),
        latencies=Latencies(scrape_s=0.05),
        window_s=SURGE_S,
        notes=notes,
    )


_DEPTH_ARMS = (
    detector_arm("queue depth 2", utilization(queue_depth=2, kv=1.0)),
    detector_arm("queue depth 5", utilization(queue_depth=5, kv=1.0)),
)

PRIORITY_TIERS = _scenario(
    "priority-tiers",
    "Platinum, Gold, Silver and Bronze batch",
    (
        tenant("platinum", 30, 1.2),
        tenant("gold", 20, 1.8, phase=1.0),
        tenant("silver", 10, 2.4, phase=2.0),
        tenant("bronze", -1, 2.6, phase=3.0),
    ),
    ("platinum", "gold", "silver", "bronze"),
    interactive_from=10,
)

BATCH_ISOLATION = _scenario(
    "batch-isolation",
    "Realtime and Standard beside Batch, 15% detector headroom",
    (
        tenant("realtime", 20, 2.4),
        tenant("standard", 10, 3.0, phase=1.0),
        tenant("batch", -1, 2.6, phase=2.0),
    ),
    ("realtime", "standard", "batch"),
    headroom=0.15,
    interactive_from=10,
)

CONSOLIDATION = _scenario(
    "consolidation",
    "Two realtime tenants and others in one pool, by admission signal",
    (
        tenant("realtime-a", 20, 1.8),
        tenant("realtime-b", 20, 1.8, phase=1.5),
        tenant("standard", 10, 2.1, phase=3.0),
        tenant("batch", -1, 2.6, phase=4.5),
    ),
    ("realtime-a", "realtime-b"),
    detectors=_DEPTH_ARMS,
    interactive_from=20,
)

SAME_PRIORITY_FAIRNESS = _scenario(
    "same-priority-fairness",
    "One tenant bursts, its peers of the same priority do not",
    (
        tenant("burster-a", 0, 3.0, surge=4.4),
        tenant("peer-b", 0, 2.2, surge=1.0, phase=1.0),
        tenant("peer-c", 0, 2.2, surge=1.0, phase=2.0),
    ),
    ("peer-b", "peer-c", "burster-a"),
    detectors=_DEPTH_ARMS[:1],
)
