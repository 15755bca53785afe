"""Seed 002, the suites that chose its settings: engine limits, admission limits, batch already running."""

from __future__ import annotations

import dataclasses

from extproc.bench.arms import production_flow_control, requests, tokens, utilization
from extproc.bench.suite import Arm, Latencies, Load, Setting, Suite
from extproc.bench.suites.production import HARDWARE, SLOTS, detector_arm, one_load
from extproc.workload.arrivals import Bursts, ClosedLoop, Poisson
from extproc.workload.lengths import Fixed, Lengths, UniformLength
from extproc.workload.traffic import AfterEviction, TrafficClass

_STEADY = (Setting.STEADY,)
_SCRAPE = Latencies(scrape_s=0.05)
_OUTPUT = UniformLength(low=128, high=384)


def closed(
    name: str, clients: int, *, priority: int = 0, prompt: Lengths | None = None, seconds: float = 150.0
) -> TrafficClass:
    """Clients that each keep one request running."""
    return TrafficClass(
        name=name,
        priority=priority,
        fairness_ids=(name,),
        arrivals=ClosedLoop(concurrency=clients, end_s=seconds),
        prompt=prompt or Fixed(tokens=512),
        output=_OUTPUT,
    )


def _closed_load(name: str, *classes: TrafficClass) -> Load:
    return one_load(*classes, name=name, horizon_s=300.0)


def _engine(name: str, **engine: int) -> Arm:
    return Arm(name=name, flow_control=None, engine=engine)


ENGINE_CAPACITY = Suite(
    name="engine-capacity",
    title="vLLM's own limits: active requests and tokens a step",
    seed="002",
    section="configuration",
    hardware=HARDWARE,
    loads=(
        _closed_load("128 active", closed("load", 128)),
        _closed_load("192 active", closed("load", 192)),
    ),
    arms=(
        _engine("8192 batched tokens", max_num_seqs=192),
        _engine("2048 batched tokens", max_num_seqs=192, max_num_batched_tokens=2048),
        _engine("16384 batched tokens", max_num_seqs=192, max_num_batched_tokens=16384),
    ),
    reference="8192 batched tokens",
    measured=("load",),
    settings=_STEADY,
    window_s=(0.0, 150.0),
)

_SIZES = (
    closed("short", 96, prompt=Fixed(tokens=128)),
    closed("medium", 64, prompt=Fixed(tokens=512)),
    closed("long", 32, prompt=Fixed(tokens=2048)),
)
TOKEN_LIMIT = SLOTS * 576
"""128 requests' worth of the mean prompt of the mixed sizes."""

ADMISSION_LIMITS = Suite(
    name="admission-limits",
    title="Which admission signal, and where to set it",
    seed="002",
    section="configuration",
    hardware=HARDWARE,
    loads=(
        _closed_load("two tiers", closed("premium", 24, priority=10), closed("standard", 168)),
        _closed_load("mixed sizes", *_SIZES),
    ),
    arms=(
        *(
            dataclasses.replace(
                detector_arm(f"requests {limit}", requests(limit)), engine={"max_num_seqs": SLOTS}
            )
            for limit in (48, 96, 128, 160)
        ),
        *(
            detector_arm(f"queue depth {depth}", utilization(queue_depth=depth, kv=1.0))
            for depth in (2, 5, 8)
        ),
        *(detector_arm(f"KV {kv:g}", utilization(queue_depth=1_000, kv=kv)) for kv in (0.75, 0.8)),
        detector_arm("input tokens", tokens(TOKEN_LIMIT)),
        Arm(
            name="input + output estimate",
            flow_control=production_flow_control(tokens(TOKEN_LIMIT), counts_output=True),
        ),
    ),
    reference="requests 128",
    measured=("premium", "standard", "short", "medium", "long"),
    settings=_STEADY,
    latencies=_SCRAPE,
    window_s=(0.0, 150.0),
)


def _interference(setting: Setting) -> tuple[TrafficClass, ...]:
    batch = TrafficClass(
        name="batch",
        priority=-1,
        fairness_ids=("batch",),
        arrivals=Bursts(size=400, every_s=1.0, count=1, start_s=30.0),
        prompt=Fixed(tokens=512),
        output=Fixed(tokens=1024),
        after_eviction=AfterEviction.RESUME,
    )
    realtime = TrafficClass(
        name="realtime",
        priority=10,
        fairness_ids=("realtime",),
        arrivals=Poisson(rate_per_s=4.0, start_s=2.0, end_s=60.0),
        prompt=Fixed(tokens=512),
        output=_OUTPUT,
    )
    return (realtime, batch)


BATCH_INTERFERENCE = Suite(
    name="batch-interference",
    title="Batch already runs when realtime arrives",
    seed="002",
    section="workload behavior",
    hardware=HARDWARE,
    loads=(Load(name="batch at 30 s", traffic=_interference, horizon_s=600.0),),
    arms=(
        detector_arm("requests 128", requests(SLOTS)),
        Arm(
            name="requests 128, evicting",
            flow_control=production_flow_control(requests(SLOTS), evicts=True),
        ),
    ),
    reference="requests 128",
    measured=("realtime",),
    settings=_STEADY,
    window_s=(30.0, 60.0),
)
