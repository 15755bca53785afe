"""llm-d-router's flow-control metric names, fed from our own series, so that its dashboards keep working.

Off by default: it doubles the series. What it gives is what those names mean there, as far as we have it; two
differences are told in docs/metrics.md. It reads a registry and knows nothing of flow control.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

PREFIX = "llm_d_epp_flow_control_"

OUTCOMES = {
    "dispatched": "Dispatched",
    "rejected-capacity": "RejectedCapacity",
    "rejected-no-endpoints": "RejectedNoEndpoints",
    "rejected-shutting-down": "RejectedOther",
    "displaced": "EvictedOther",
    "expired-ttl": "EvictedTTL",
    "expired-deadline": "EvictedTTL",
    "expired-no-endpoints": "EvictedNoEndpoints",
    "cancelled": "EvictedContextCancelled",
}
REVOCATIONS = {"confirmed": "confirmed", "timed-out": "timed_out"}

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alias:
    """Our family `ours` under the peer's name; `relabel` turns our labels into the peer's."""

    ours: str
    theirs: str
    kind: str
    relabel: Callable[[Labels], dict[str, str]]


def _priority(labels: Labels) -> dict[str, str]:
    return {"priority": labels["priority"]}


def _outcome(labels: Labels) -> dict[str, str]:
    return {"priority": labels["priority"], "outcome": OUTCOMES[labels["outcome"]]}


ALIASES = (
    Alias(ours="extproc_requests", theirs="requests", kind="counter", relabel=_outcome),
    Alias(
        ours="extproc_queue_wait_seconds",
        theirs="request_queue_duration_seconds",
        kind="histogram",
        relabel=_outcome,
    ),
    Alias(
        ours="extproc_decision_seconds",
        theirs="dispatch_cycle_duration_seconds",
        kind="histogram",
        relabel=lambda _: {},
    ),
    Alias(ours="extproc_queue_requests", theirs="queue_size", kind="gauge", relabel=_priority),
    Alias(ours="extproc_queue_bytes", theirs="queue_bytes", kind="gauge", relabel=_priority),
    Alias(
        ours="extproc_saturation_ratio",
        theirs="pool_saturation",
        kind="gauge",
        relabel=lambda _: {"stage": "effective"},
    ),
    Alias(
        ours="extproc_stale_endpoints",
        theirs="stale_endpoints",
        kind="gauge",
        relabel=lambda _: {},
    ),
    Alias(
        ours="extproc_revocations_issued",
        theirs="revocations_issued",
        kind="counter",
        relabel=_priority,
    ),
    Alias(
        ours="extproc_revocations",
        theirs="revocations",
        kind="counter",
        relabel=lambda labels: {"outcome": REVOCATIONS[labels["outcome"]]},
    ),
    Alias(
        ours="extproc_revocation_confirmation_seconds",
        theirs="revocation_confirmation_seconds",
        kind="histogram",
        relabel=lambda _: {},
    ),
)


class PeerNames(Collector):
    """Collects `source` and renames; samples that fall together under the peer's labels are added up."""

    def __init__(self, source: CollectorRegistry, pool: str) -> None:
        self._source = source
        self._pool = pool

    def describe(self) -> list[Family]:
        return []

    def collect(self) -> Iterator[Family]:
        families = {family.name: family for family in self._source.collect()}
        for alias in ALIASES:
            family = families.get(alias.ours)
            if family is not None:
                yield self._renamed(family, alias)
        yield from self._capacity(families)

    def _renamed(self, family: Family, alias: Alias) -> Family:
        sums: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        for sample in family.samples:
            labels = {"inference_pool": self._pool, **alias.relabel(sample.labels)}
            if "le" in sample.labels:
                labels["le"] = sample.labels["le"]
            name = PREFIX + alias.theirs + sample.name.removeprefix(alias.ours)
            place = name, tuple(labels.items())
            sums[place] = sums.get(place, 0.0) + sample.value
        renamed = Family(PREFIX + alias.theirs, family.documentation, alias.kind)
        renamed.samples = [Sample(name, dict(labels), value) for (name, labels), value in sums.items()]
        return renamed

    def _capacity(self, families: Mapping[str, Family]) -> Iterator[Family]:
        """Queued requests of a band over its limit."""
        queued, limits = (
            families.get(name) for name in ("extproc_queue_requests", "extproc_queue_limit_requests")
        )
        if queued is None or limits is None:
            return
        by_priority = {sample.labels["priority"]: sample.value for sample in limits.samples}
        name = f"{PREFIX}capacity_utilization_requests"
        family = Family(name, "Queued requests over the band's limit.", "gauge")
        for sample in queued.samples:
            limit = by_priority.get(sample.labels["priority"])
            if limit:
                labels = {"inference_pool": self._pool, "priority": sample.labels["priority"]}
                family.add_sample(name, labels, sample.value / limit)
        yield family
