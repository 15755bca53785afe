"""Flow-control settings of the arms that several suites share.

The seeds' arms are the peer's behaviour: deficit sizing (at most two revocations a decision, then wait and
a 10 ms grace), first come first served, newest victim of the lowest priority. `best` is ours; each of its
levers can be switched off alone, which is what the ablations do.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import Literal

from extproc.bench.results import BEST, FLOOR_ALONE, FLOOR_SHARED, FLOOR_SHARED_PACED
from extproc.bench.suite import Arm
from extproc.core.adaptive import AdaptiveHoldbackConfig
from extproc.core.band import BandConfig
from extproc.core.capacity import CapacityDetectorConfig
from extproc.core.ceilings import CeilingConfig
from extproc.core.concurrency import ConcurrencyDetectorConfig
from extproc.core.config import FlowControlConfig
from extproc.core.detectors import DetectorConfig
from extproc.core.eviction import DeficitSizingConfig, DemandSizingConfig, EvictionConfig, SizingConfig
from extproc.core.fairness import FairnessConfig, GlobalStrictFairnessConfig, RoundRobinFairnessConfig
from extproc.core.footprint import FootprintConfig
from extproc.core.holdback import PriorityHoldbackConfig, StaticCeilingConfig
from extproc.core.ordering import EdfOrderingConfig, FcfsOrderingConfig, OrderingConfig
from extproc.core.pacing import PrefillPacingConfig
from extproc.core.picker import LeastInflightPickerConfig, PickerConfig
from extproc.core.utilization import UtilizationDetectorConfig

POOLED_RUNS = 10
"""Repeats of the arms whose percentiles are pooled."""

BATCH_PRIORITY = -1
INTERACTIVE_PRIORITY = 10


def requests(limit: int, *, burst_fraction: float = 0.0) -> DetectorConfig:
    """Saturation by requests in flight."""
    return ConcurrencyDetectorConfig(mode="requests", max_concurrency=limit, burst_fraction=burst_fraction)


def tokens(
    limit: int, *, mode: Literal["tokens", "hybrid"] = "tokens", max_concurrency: int = 100
) -> DetectorConfig:
    """Saturation by estimated tokens in flight, or by the larger of both ratios."""
    return ConcurrencyDetectorConfig(mode=mode, max_token_concurrency=limit, max_concurrency=max_concurrency)


def seed_flow_control(
    detector: DetectorConfig, *, evicts: bool, holdback: float | None = None, counts_output: bool = False
) -> FlowControlConfig:
    """The peer's flow control: no TTL, since the seeds' requests waited as long as it took."""
    ceilings: CeilingConfig = StaticCeilingConfig()
    if holdback is not None:
        # Over the declared bands: batch keeps to its ceiling also before the first interactive request.
        ceilings = PriorityHoldbackConfig(min_ceiling=holdback, rank_over="declared")
    return FlowControlConfig(
        bands=(BandConfig(priority=INTERACTIVE_PRIORITY), BandConfig(priority=BATCH_PRIORITY)),
        detector=detector,
        footprint=FootprintConfig(add_estimated_output_tokens=counts_output),
        ceilings=ceilings,
        eviction=EvictionConfig(enabled=evicts, sizing=DeficitSizingConfig()),
        pacing=PrefillPacingConfig(enabled=False),
        default_ttl_s=None,
    )


def holdback_arms(
    detector: DetectorConfig,
    *,
    holdbacks: tuple[float, ...],
    without_eviction: tuple[float, ...] = (),
    counts_output: bool = False,
    prefix: str = "",
) -> tuple[Arm, ...]:
    """`eviction`, `holdback X` (with eviction) and `holdback X, no eviction`, each named after `prefix`."""

    def arm(name: str, *, evicts: bool, holdback: float | None) -> Arm:
        config = seed_flow_control(detector, evicts=evicts, holdback=holdback, counts_output=counts_output)
        return Arm(name=f"{prefix} {name}".strip(), flow_control=config)

    return (
        arm("eviction", evicts=True, holdback=None),
        *(arm(f"holdback {level:g}", evicts=True, holdback=level) for level in holdbacks),
        *(
            arm(f"holdback {level:g}, no eviction", evicts=False, holdback=level)
            for level in without_eviction
        ),
    )


def renamed(arm: Arm, name: str, **changes: object) -> Arm:
    """A copy under another name with other fields."""
    return replace(arm, name=name, **changes)  # type: ignore[arg-type]


def production_flow_control(
    detector: DetectorConfig,
    *,
    evicts: bool = False,
    counts_output: bool = False,
    releases_prompts: bool = False,
    picker: PickerConfig | None = None,
) -> FlowControlConfig:
    """Seed 002's: strict priority between bands, round robin between the tenants of a band.

    `releases_prompts` is how the peer counts exact input tokens: until a request's first output.
    """
    return FlowControlConfig(
        detector=detector,
        footprint=FootprintConfig(
            add_estimated_output_tokens=counts_output, release_at_first_output=releases_prompts
        ),
        default_band=BandConfig(fairness=RoundRobinFairnessConfig()),
        eviction=EvictionConfig(enabled=evicts, sizing=DeficitSizingConfig()),
        pacing=PrefillPacingConfig(enabled=False),
        picker=picker or LeastInflightPickerConfig(),
        default_ttl_s=None,
    )


def yardsticks(slots: int, *, exempts_from: int = INTERACTIVE_PRIORITY) -> tuple[Arm, ...]:
    """What the other arms are measured against, simulated in the same run.

    Their batch is admitted by both resources (slots and KV), as `best` admits it; nothing is evicted.
    """
    return (
        Arm(
            name=FLOOR_ALONE,
            flow_control=None,
            drops_batch=True,
            least_runs=POOLED_RUNS,
            note="the interactive load alone",
        ),
        Arm(
            name=FLOOR_SHARED,
            flow_control=_floor_control(slots, paced=False),
            exempts_from=exempts_from,
            least_runs=POOLED_RUNS,
            note="batch at full capacity, interactive exempt from slot and KV limits",
        ),
        Arm(
            name=FLOOR_SHARED_PACED,
            flow_control=_floor_control(slots, paced=True),
            exempts_from=exempts_from,
            least_runs=POOLED_RUNS,
            note="the same with prefill pacing of batch",
        ),
    )


def _floor_control(slots: int, *, paced: bool) -> FlowControlConfig:
    """Batch alone under the capacity of both resources; nobody evicts it."""
    return FlowControlConfig(
        detector=CapacityDetectorConfig(max_num_seqs=slots),
        pacing=PrefillPacingConfig(enabled=paced),
        default_ttl_s=None,
    )


class Lever(Enum):
    """One part of `best` that can be switched off alone; the value names the ablation."""

    KV = "slots only"
    SLOTS = "KV only"
    DEMAND_SIZING = "peer sizing"
    PROMISE = "no dispatch on promise"
    SLOT_RESERVE = "no slot reserve"
    KV_RESERVE = "no KV reserve"
    PACING = "no prefill pacing"
    HOLD = "no hold"
    DEADLINES = "first come first served"


_UNBOUND_SLOTS = 1_000_000
_UNBOUND_TOKENS = 10**12


def best_flow_control(
    slots: int, *, without: Lever | None = None, is_round_robin: bool = False, pacing_tokens: int = 8192
) -> FlowControlConfig:
    """Ours, for engines with `slots` sequence slots; `without` switches one lever off."""
    sizing: SizingConfig = DemandSizingConfig(promise="wait" if without is Lever.PROMISE else "dispatch")
    if without is Lever.DEMAND_SIZING:
        sizing = DeficitSizingConfig()
    fairness: FairnessConfig = RoundRobinFairnessConfig() if is_round_robin else GlobalStrictFairnessConfig()
    ordering: OrderingConfig = FcfsOrderingConfig() if without is Lever.DEADLINES else EdfOrderingConfig()
    return FlowControlConfig(
        detector=CapacityDetectorConfig(
            max_num_seqs=_UNBOUND_SLOTS if without is Lever.SLOTS else slots,
            kv_tokens=_UNBOUND_TOKENS if without is Lever.KV else "auto",
        ),
        ceilings=AdaptiveHoldbackConfig(
            reserve_slots=without is not Lever.SLOT_RESERVE, reserve_kv=without is not Lever.KV_RESERVE
        ),
        default_band=BandConfig(fairness=fairness),
        default_sheddable_band=BandConfig(ordering=ordering, fairness=fairness),
        eviction=EvictionConfig(enabled=True, sizing=sizing),
        pacing=PrefillPacingConfig(
            enabled=without is not Lever.PACING, hold=without is not Lever.HOLD, budget_tokens=pacing_tokens
        ),
        default_ttl_s=None,
    )


def best_arms(
    slots: int,
    *,
    ablate: tuple[Lever, ...] = (),
    ablation_loads: tuple[str, ...] = (),
    chunk_tokens: int | None = None,
) -> tuple[Arm, ...]:
    """`best`, its ablations, and `best` with smaller engine steps where `chunk_tokens` is given.

    The gateway sees first tokens (answers pass through it); `best, lean` never sees an answer.
    """
    best = Arm(name=BEST, flow_control=best_flow_control(slots), least_runs=POOLED_RUNS)
    arms = [best, renamed(best, f"{BEST}, lean", has_visible_output=False, least_runs=0)]
    arms += [
        renamed(
            best,
            f"{BEST}, {lever.value}",
            flow_control=best_flow_control(slots, without=lever),
            loads=ablation_loads,
            least_runs=0,
        )
        for lever in ablate
    ]
    if chunk_tokens is not None:
        arms.append(
            renamed(
                best,
                f"{BEST}, {chunk_tokens} batched tokens",
                engine={"max_num_batched_tokens": chunk_tokens},
            )
        )
    return tuple(arms)


def utilization(*, queue_depth: int = 5, kv: float = 0.8, burst_fraction: float = 0.0) -> DetectorConfig:
    """Saturation by what the engine reports: waiting requests and KV cache usage."""
    return UtilizationDetectorConfig(
        queue_depth_threshold=queue_depth, kv_cache_util_threshold=kv, burst_fraction=burst_fraction
    )
