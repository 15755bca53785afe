"""Every suite by name."""

from __future__ import annotations

from extproc.bench.suite import Suite
from extproc.bench.suites import deadlines, holdback, kv_bound

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
    )
}
