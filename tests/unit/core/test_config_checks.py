"""Bad configurations are refused with the names of all fields at fault."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from extproc.core.adaptive import AdaptiveHoldbackConfig
from extproc.core.ageing import AgeingConfig
from extproc.core.band import BandConfig
from extproc.core.capacity import CapacityDetectorConfig
from extproc.core.concurrency import ConcurrencyDetectorConfig
from extproc.core.config import FlowControlConfig
from extproc.core.eviction import DeficitSizingConfig, EvictionConfig
from extproc.core.fairness import WeightedFairFairnessConfig
from extproc.core.footprint import FootprintConfig
from extproc.core.holdback import (
    ExplicitCeilingsConfig,
    PriorityHoldbackConfig,
    SoftReflectiveConfig,
    StaticCeilingConfig,
)
from extproc.core.pacing import PrefillPacingConfig
from extproc.core.utilization import UtilizationDetectorConfig

NAN, INFINITY = float("nan"), float("inf")

BAD: list[tuple[str, Callable[[], object]]] = [
    ("max_concurrency", lambda: ConcurrencyDetectorConfig(max_concurrency=0)),
    ("max_token_concurrency", lambda: ConcurrencyDetectorConfig(max_token_concurrency=-1)),
    ("burst_fraction", lambda: ConcurrencyDetectorConfig(burst_fraction=NAN)),
    ("kv_cache_util_threshold", lambda: UtilizationDetectorConfig(kv_cache_util_threshold=1.5)),
    ("staleness_s", lambda: UtilizationDetectorConfig(staleness_s=INFINITY)),
    ("kv_tokens", lambda: CapacityDetectorConfig(kv_tokens=0)),
    ("kv_overcommit", lambda: CapacityDetectorConfig(kv_overcommit=5)),
    ("min_correction", lambda: CapacityDetectorConfig(min_correction=0)),
    ("threshold", lambda: StaticCeilingConfig(threshold=0)),
    ("min_ceiling", lambda: PriorityHoldbackConfig(min_ceiling=1.0)),
    ("min_ceiling", lambda: PriorityHoldbackConfig(min_ceiling=NAN)),
    ("ceilings", lambda: ExplicitCeilingsConfig(ceilings={})),
    (r"ceilings\[3\]", lambda: ExplicitCeilingsConfig(ceilings={3: NAN})),
    ("period_s", lambda: SoftReflectiveConfig(period_s=0)),
    ("slot_quantile", lambda: AdaptiveHoldbackConfig(slot_quantile=1.1)),
    ("max_fraction", lambda: AdaptiveHoldbackConfig(max_fraction=1.0)),
    ("max_requests", lambda: BandConfig(max_requests=-1)),
    ("ttl_s", lambda: BandConfig(ttl_s=0)),
    (r"weights\[a\]", lambda: WeightedFairFairnessConfig(weights={"a": 0})),
    ("default_weight", lambda: WeightedFairFairnessConfig(default_weight=INFINITY)),
    ("output_ratio", lambda: FootprintConfig(output_ratio=-1)),
    ("output_quantile", lambda: FootprintConfig(output_quantile=2)),
    ("confirm_timeout_s", lambda: EvictionConfig(confirm_timeout_s=0)),
    ("grace_s", lambda: DeficitSizingConfig(grace_s=-1)),
    ("budget_tokens", lambda: PrefillPacingConfig(budget_tokens=0)),
    ("share", lambda: AgeingConfig(share=0.9)),
    ("bands: priority", lambda: FlowControlConfig(bands=(BandConfig(), BandConfig()))),
    ("default_ttl_s", lambda: FlowControlConfig(default_ttl_s=0)),
    ("no_endpoint_ttl_s", lambda: FlowControlConfig(no_endpoint_ttl_s=-1)),
    ("max_bands", lambda: FlowControlConfig(max_bands=0)),
]


@pytest.mark.parametrize(("field", "build"), BAD, ids=[f"{i}-{field}" for i, (field, _) in enumerate(BAD)])
def test_it_is_refused_by_name(field: str, build: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=field):
        build()


def test_all_problems_of_a_section_are_listed() -> None:
    with pytest.raises(ValueError, match=r"max_concurrency.*max_token_concurrency.*burst_fraction"):
        ConcurrencyDetectorConfig(max_concurrency=0, max_token_concurrency=0, burst_fraction=-1)


def test_a_boolean_is_no_number() -> None:
    with pytest.raises(ValueError, match="max_concurrency"):
        ConcurrencyDetectorConfig(max_concurrency=True)
