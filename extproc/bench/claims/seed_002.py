"""The claims of seed 002 by suite."""

from __future__ import annotations

from extproc.bench.checks import Check
from extproc.bench.claims import seed_002_limits, seed_002_production, seed_002_scale

CLAIMS_002: dict[str, tuple[Check, ...]] = {
    "engine-capacity": seed_002_limits.ENGINE_CAPACITY,
    "admission-limits": seed_002_limits.ADMISSION_LIMITS,
    "priority-tiers": seed_002_production.PRIORITY_TIERS,
    "batch-isolation": seed_002_production.BATCH_ISOLATION,
    "consolidation": seed_002_production.CONSOLIDATION,
    "same-priority-fairness": seed_002_production.SAME_PRIORITY_FAIRNESS,
    "batch-interference": seed_002_production.BATCH_INTERFERENCE,
    "mixed-production": seed_002_scale.MIXED_PRODUCTION,
    "long-context": seed_002_scale.LONG_CONTEXT,
    "pool-scaling": seed_002_scale.POOL_SCALING,
    "long-stability": seed_002_scale.LONG_STABILITY,
    "prefix-routing": seed_002_scale.PREFIX_ROUTING,
}
