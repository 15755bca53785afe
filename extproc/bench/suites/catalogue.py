"""Every suite by name."""

from __future__ import annotations

from extproc.bench.suite import Suite
from extproc.bench.suites import calibration, deadlines, holdback, kv_bound, production, scale

SUITES: dict[str, Suite] = {
    suite.name: suite
    for suite in (
        holdback.HOLDBACK_REQUESTS,
        holdback.HOLDBACK_TOKENS,
        holdback.HOLDBACK_HYBRID,
        kv_bound.KV_BOUND_32B,
        holdback.NO_RESUME,
        holdback.HOLDBACK_14B,
        deadlines.BATCH_DEADLINES,
        calibration.ENGINE_CAPACITY,
        calibration.ADMISSION_LIMITS,
        production.PRIORITY_TIERS,
        production.BATCH_ISOLATION,
        production.CONSOLIDATION,
        production.SAME_PRIORITY_FAIRNESS,
        calibration.BATCH_INTERFERENCE,
        scale.MIXED_PRODUCTION,
        scale.LONG_CONTEXT,
        scale.POOL_SCALING,
        scale.LONG_STABILITY,
        scale.PREFIX_ROUTING,
    )
}
