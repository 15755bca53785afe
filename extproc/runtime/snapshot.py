"""One snapshot of the whole for the live page and `extproc top`: plain data, nothing private in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from extproc import __version__
from extproc.core.inspection import EndpointDetail, Inspection
from extproc.core.outcomes import EndReason, Outcome
from extproc.core.shadow import WouldHave
from extproc.core.statistics import BandStatistics, EndpointStatistics, Statistics
from extproc.runtime.admin import JsonObject
from extproc.runtime.gauges import wait_estimate_s
from extproc.runtime.recent import RecentLatencies

_UNREFUSED = (Outcome.DISPATCHED, Outcome.CANCELLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFacts:
    """What the snapshot says of the process; `wall_time` is seconds since the epoch."""

    wall_time: float
    now: float
    mode: str
    config_generation: int
    is_draining: bool
    group: JsonObject | None = None
    """This process among its replicas; None when it is alone."""
    would_have: Mapping[int, WouldHave] = field(default_factory=dict)
    """By priority, what mode observe did not enforce; empty when it was never in force."""


def build_snapshot(
    facts: ProcessFacts, statistics: Statistics, inspection: Inspection, ttft: RecentLatencies
) -> JsonObject:
    """The state at `facts.now`."""
    bands = [_band(band, inspection, ttft, facts.now) for band in statistics.bands]
    by_id = {endpoint.endpoint_id: endpoint for endpoint in statistics.endpoints}
    endpoints = [_endpoint(detail, by_id.get(detail.endpoint_id)) for detail in inspection.endpoints]
    issued = sum(band.evictions for band in statistics.bands)
    return {
        "t": facts.wall_time,
        "version": __version__,
        "config_generation": facts.config_generation,
        "mode": facts.mode,
        "draining": facts.is_draining,
        "replica": facts.group,
        "pool": {
            "saturation": statistics.saturation,
            "resources": dict(statistics.resources),
            "inflight": statistics.inflight_requests,
            "endpoints": len(endpoints),
            "endpoints_ready": sum(detail.condition == "ready" for detail in inspection.endpoints),
        },
        "totals": {
            "dispatched": sum(band.outcomes.get(Outcome.DISPATCHED, 0) for band in statistics.bands),
            "refused": sum(_refused(band) for band in statistics.bands),
        },
        "bands": bands,
        "would_have": [
            {"priority": priority, **asdict(counts)}
            for priority, counts in sorted(facts.would_have.items(), reverse=True)
        ],
        "endpoints": endpoints,
        "evictions": {
            "issued": issued,
            "confirmed": statistics.revocations_confirmed,
            "timed_out": statistics.revocations_timed_out,
            "outstanding": statistics.revocations_outstanding,
        },
    }


def _band(band: BandStatistics, inspection: Inspection, ttft: RecentLatencies, now: float) -> JsonObject:
    detail = next((one for one in inspection.bands if one.priority == band.priority), None)
    p50, p95 = ttft.percentiles(band.priority, (0.5, 0.95), now)
    return {
        "priority": band.priority,
        "queued": band.queued_requests,
        "queued_bytes": band.queued_bytes,
        "flows": band.queued_flows,
        "limit": None if detail is None else detail.max_requests,
        "oldest_s": None if detail is None else detail.oldest_queued_s,
        "wait_estimate_s": wait_estimate_s(band),
        "ceiling": band.ceiling,
        "inflight": band.inflight_requests,
        "ttft_p50_s": p50,
        "ttft_p95_s": p95,
        "dispatched": band.outcomes.get(Outcome.DISPATCHED, 0),
        "refused": _refused(band),
        "completed": band.ends.get(EndReason.COMPLETED, 0),
        "evicted": band.evictions,
    }


def _refused(band: BandStatistics) -> int:
    return sum(count for outcome, count in band.outcomes.items() if outcome not in _UNREFUSED)


def _endpoint(detail: EndpointDetail, statistics: EndpointStatistics | None) -> JsonObject:
    sample = detail.sample
    saturation = {} if statistics is None else dict(statistics.saturation)
    return {
        "name": detail.name,
        "address": detail.address,
        "state": detail.condition,
        "inflight": {str(priority): count for priority, count in detail.by_priority.items()},
        "capacity_slots": _capacity(sum(detail.by_priority.values()), saturation),
        "saturation": saturation,
        "running": None if sample is None else sample.running_requests,
        "waiting": None if sample is None else sample.waiting_requests,
        "kv": None if sample is None else sample.kv_usage_fraction,
        "sample_age_s": detail.sample_age_s,
    }


def _capacity(inflight: int, saturation: dict[str, float]) -> int | None:
    """How many requests fill the endpoint, from how full they make it; None where requests don't count."""
    share = saturation.get("requests", saturation.get("slots", 0.0))
    return round(inflight / share) if inflight and share > 0 else None
