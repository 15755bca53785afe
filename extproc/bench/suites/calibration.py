"""Seed 002, the suites that chose its settings: engine limits, admission limits, batch already running."""

from __future__ import annotations

import dataclasses

from extproc.bench.arms import production_flow_control, requests, tokens, utilization
from extproc.bench.suite import Arm, Latencies, Load, Setting, Suite
from extproc.bench.suites.production import HARDWARE, SLOTS, detector_arm, one_load
from extproc.workload.arrivals import Bursts, ClosedLoop, Poisson
from extproc.workload.lengths import Fixed, Lengths, LogNormalLength, UniformLength
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


def _closed_load(name: str, *classes: TrafficClass, horizon_s: float = 300.0) -> Load:
    return one_load(*classes, name=name, horizon_s=horizon_s)


def _engine(name: str, **engine: int) -> Arm:
    return Arm(name=name, flow_control=None, engine=engine)


ALL_SIZES = "128 active, prompts of all sizes"
"""Prompts of 512 tokens hardly ever fill a step; the seed saw its settings differ, so its own must have."""

OTHER_TOKEN_BUDGETS = (2048, 4096, 16384)
"""vLLM's older default, the step between that and 8,192 (its default on large GPUs), and one above."""

ENGINE_CAPACITY = Suite(
    name="engine-capacity",
    title="vLLM's own limits: active requests and tokens a step",
    seed="002",
    section="configuration",
    hardware=HARDWARE,
    notes="The seed names only one of its three token budgets. Here the others are 2,048 (vLLM's older "
    "default) and 4,096, with prompts of 64 to 4,096 tokens, since prompts of 512 hardly ever fill a step. "
    "16,384 was simulated, too: it takes fewer steps and so has a throughput higher by less than 0.1%. Had "
    "the seed tested a larger one, its finding would need steps that lose efficiency with their size, which "
    "are not modelled.",
    loads=(
        _closed_load("128 active", closed("load", 128)),
        _closed_load("192 active", closed("load", 192)),
        _closed_load(ALL_SIZES, closed("load", 128, prompt=UniformLength(low=64, high=4096))),
    ),
    arms=(
        _engine("8192 batched tokens", max_num_seqs=192),
        *(
            dataclasses.replace(
                _engine(f"{tokens} batched tokens", max_num_seqs=192, max_num_batched_tokens=tokens),
                loads=(ALL_SIZES,),
            )
            for tokens in OTHER_TOKEN_BUDGETS
        ),
    ),
    reference="8192 batched tokens",
    measured=("load",),
    settings=_STEADY,
    window_s=(0.0, 150.0),
)

_SHORT_ANSWERS = UniformLength(low=64, high=160)
_QUICK_S = 75.0
"""Runs of which the start is a part, as in the engine's own calibration."""


def _quick(
    name: str, clients: int, *, priority: int = 0, prompt: Lengths | None = None, seconds: float = _QUICK_S
) -> TrafficClass:
    traffic = closed(name, clients, priority=priority, prompt=prompt, seconds=seconds)
    return dataclasses.replace(traffic, output=_SHORT_ANSWERS)


_LONGEST_S = 300.0
"""The two KV thresholds lie close together: in half the time they change places in 2 of 10 runs."""

_UNSTATED_LIMIT = 8192
"""Clients that leave max_tokens at what the model allows: the ratio rule alone estimates their output."""
_SIZES = tuple(
    dataclasses.replace(_quick(name, clients, prompt=prompt), max_output_tokens=_UNSTATED_LIMIT)
    for name, clients, prompt in (
        ("short", 96, UniformLength(low=64, high=192)),
        ("medium", 68, UniformLength(low=384, high=1152)),
        ("long", 32, UniformLength(low=2048, high=4096)),
    )
)
TOKEN_LIMIT = 24_576
"""Prompt tokens: three whole engine steps of 8,192."""

_LONG_PROMPTS = LogNormalLength(median=4000, sigma=0.4, low=500, high=12_000)
"""128 of them fill the KV cache, which shorter ones never do."""

ADMISSION_LIMITS = Suite(
    name="admission-limits",
    title="Which admission signal, and where to set it",
    seed="002",
    section="configuration",
    hardware=HARDWARE,
    engine={"max_num_seqs": SLOTS},
    loads=(
        _closed_load("two tiers", _quick("premium", 24, priority=10), _quick("standard", 128)),
        _closed_load("mixed sizes", *_SIZES),
        _closed_load(
            "waiting queue",
            _quick("premium", 64, priority=10, seconds=150.0),
            _quick("standard", 128, seconds=150.0),
        ),
        _closed_load(
            "KV pressure",
            closed("premium", 24, priority=10, prompt=_LONG_PROMPTS, seconds=_LONGEST_S),
            closed("standard", 96, prompt=_LONG_PROMPTS, seconds=_LONGEST_S),
            horizon_s=2 * _LONGEST_S,
        ),
    ),
    arms=(
        *(
            dataclasses.replace(
                detector_arm(f"requests {limit}", requests(limit)),
                loads=("two tiers", "mixed sizes") if limit == SLOTS else ("two tiers",),
            )
            for limit in (48, 96, 128, 160)
        ),
        *(
            dataclasses.replace(
                detector_arm(f"queue depth {depth}", utilization(queue_depth=depth, kv=1.0)),
                loads=("waiting queue",),
            )
            for depth in (2, 5, 8)
        ),
        *(
            dataclasses.replace(
                detector_arm(f"KV {kv:g}", utilization(queue_depth=1_000, kv=kv)), loads=("KV pressure",)
            )
            for kv in (0.75, 0.8)
        ),
        Arm(name="off", flow_control=None, loads=("KV pressure",)),
        Arm(
            name="input tokens",
            flow_control=production_flow_control(tokens(TOKEN_LIMIT), releases_prompts=True),
            loads=("mixed sizes",),
        ),
        Arm(
            name="input + output estimate",
            flow_control=production_flow_control(tokens(TOKEN_LIMIT), counts_output=True),
            loads=("mixed sizes",),
        ),
    ),
    reference="requests 128",
    measured=("premium", "standard", "short", "medium", "long"),
    settings=_STEADY,
    latencies=_SCRAPE,
    window_s=(0.0, _LONGEST_S),
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
