"""The claims about every suite, by its name."""

from __future__ import annotations

from extproc.bench.checks import Check
from extproc.bench.claims import seed_000, seed_000_engines, seed_002

CLAIMS: dict[str, tuple[Check, ...]] = {
    "holdback-requests": seed_000.HOLDBACK_REQUESTS,
    "holdback-tokens": seed_000.HOLDBACK_TOKENS,
    "holdback-hybrid": seed_000.HOLDBACK_HYBRID,
    "kv-bound-32b": seed_000_engines.KV_BOUND_32B,
    "no-resume": seed_000.NO_RESUME,
    "holdback-14b": seed_000.HOLDBACK_14B,
    "batch-deadlines": seed_000_engines.BATCH_DEADLINES,
    **seed_002.CLAIMS_002,
}
