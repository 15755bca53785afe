"""The ceiling policies there are: their configs as one tagged union, and how to build one."""

from __future__ import annotations

from collections.abc import Sequence

from extproc.core.adaptive import AdaptiveHoldback, AdaptiveHoldbackConfig
from extproc.core.demand import DemandTracker
from extproc.core.footprint import NO_FOOTPRINT, Footprint
from extproc.core.holdback import (
    CeilingPolicy,
    ExplicitCeilings,
    ExplicitCeilingsConfig,
    PriorityHoldback,
    PriorityHoldbackConfig,
    RankedBands,
    SoftReflective,
    SoftReflectiveConfig,
    StaticCeiling,
    StaticCeilingConfig,
)
from extproc.core.inflight import InflightLedger
from extproc.core.pool import ANY_ENDPOINT, Pool
from extproc.core.saturation import SaturationDetector

CeilingConfig = (
    StaticCeilingConfig
    | ExplicitCeilingsConfig
    | PriorityHoldbackConfig
    | SoftReflectiveConfig
    | AdaptiveHoldbackConfig
)


def build_ceilings(
    config: CeilingConfig,
    declared: Sequence[int],
    demand: DemandTracker,
    detector: SaturationDetector,
    pool: Pool,
    ledger: InflightLedger,
) -> CeilingPolicy:
    """A policy that sees demand, saturation and load as far as it needs them."""
    match config:
        case StaticCeilingConfig():
            return StaticCeiling(config)
        case ExplicitCeilingsConfig():
            return ExplicitCeilings(config)
        case PriorityHoldbackConfig():
            return PriorityHoldback(config, _ranked(config, declared, demand))
        case SoftReflectiveConfig():
            return SoftReflective(
                config,
                _ranked(config, declared, demand),
                lambda now: detector.saturation(pool.candidates(ANY_ENDPOINT), now),
            )
        case AdaptiveHoldbackConfig():
            return AdaptiveHoldback(
                config,
                detector.capacity,
                detector.resources,
                lambda priority: _inflight_above(ledger, priority),
            )


def _ranked(
    config: PriorityHoldbackConfig | SoftReflectiveConfig, declared: Sequence[int], demand: DemandTracker
) -> RankedBands:
    counted = declared if config.rank_over == "declared" else ()
    return RankedBands(counted, demand, config.demand_window_s)


def _inflight_above(ledger: InflightLedger, priority: int) -> Footprint:
    total = NO_FOOTPRINT
    for other in ledger.priorities():
        if other > priority:
            total = total.plus(ledger.of_priority(other))
    return total
