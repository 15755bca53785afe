"""Snapshots of a made-up pool in a burst, as the live page gets them."""

from __future__ import annotations

import math
from typing import Any


def snapshot(second: int, *, endpoint_name: str = "gpu-a") -> dict[str, Any]:
    """The state of two bands on two endpoints at `second` of a run; a burst comes each minute."""
    burst = max(0.0, math.sin(second / 60 * 2 * math.pi))
    saturation = 0.7 + 0.5 * burst
    queued_high, queued_low = int(6 * burst), int(40 * burst) + 12
    evicted = second // 3
    return {
        "t": 1_000.0 + second,
        "version": "0.1.0",
        "config_generation": 1,
        "mode": "enforce",
        "draining": False,
        "replica": group(endpoint_name),
        "pool": {"saturation": saturation, "inflight": 58, "endpoints": 2, "endpoints_ready": 2},
        "totals": {"dispatched": 4000 + second * 9, "refused": 3},
        "bands": [
            band(10, queued_high, 1.0, 9, evicted=0, ttft_s=0.12 + 0.1 * burst),
            band(0, 0, 0.95, 17, evicted=0, ttft_s=0.3 + 0.5 * burst),
            band(-1, queued_low, 0.8, 32, evicted=evicted, ttft_s=4 + 5 * burst),
        ],
        "would_have": [would_have(10, held=second), would_have(-1, held=2 * second)],
        "endpoints": [
            endpoint(endpoint_name, "ready", {"10": 5, "0": 9, "-1": 18}, saturation),
            endpoint("gpu-b", "draining", {"10": 4, "0": 8, "-1": 14}, saturation - 0.1),
        ],
        "evictions": {"issued": evicted, "confirmed": evicted, "timed_out": 0, "outstanding": 0},
    }


def would_have(priority: int, *, held: int) -> dict[str, Any]:
    """What mode observe has counted for one priority."""
    counts = {"passed": 500, "held": held, "rejected": 3, "expired": 2, "displaced": 1, "evicted": 4}
    return {"priority": priority, **counts, "held_s": 1.5 * held}


def group(name: str) -> dict[str, Any]:
    """Two replicas, the first of which is named `name` and is the one that is asked."""
    members = [
        {"name": name, "is_leader": False, "slots": 20, "tokens": None, "inflight": 18, "waiting": 4},
        {"name": "extproc-1", "is_leader": True, "slots": 44, "tokens": None, "inflight": 40, "waiting": 0},
    ]
    return {
        "name": name,
        "state": "leased",
        "leader": "extproc-1",
        "is_leader": False,
        "credits": {"slots": 20, "tokens": None},
        "capacity": {"slots": 64, "tokens": None},
        "members": members,
        "waits_for": "this replica holds 20 of the pool's 64 slots",
    }


def band(
    priority: int, queued: int, ceiling: float, inflight: int, *, evicted: int, ttft_s: float
) -> dict[str, Any]:
    return {
        "priority": priority,
        "queued": queued,
        "queued_bytes": queued * 9000,
        "limit": 5000,
        "oldest_s": queued / 10 if queued else None,
        "wait_estimate_s": queued / 12 if queued else 0.0,
        "ceiling": ceiling,
        "inflight": inflight,
        "ttft_p50_s": ttft_s / 2,
        "ttft_p95_s": ttft_s,
        "dispatched": 1234,
        "refused": 1,
        "evicted": evicted,
    }


def endpoint(name: str, state: str, inflight: dict[str, int], saturation: float) -> dict[str, Any]:
    return {
        "name": name,
        "address": "10.0.0.1:8000",
        "state": state,
        "inflight": inflight,
        "capacity_slots": 32,
        "saturation": {"slots": saturation, "kv": saturation * 0.8},
        "running": sum(inflight.values()),
        "waiting": 0,
        "kv": saturation * 0.7,
        "sample_age_s": 0.04,
    }
