"""What is read at each scrape: gauges, and the counters that the controller keeps itself.

Turns the controller's statistics and inspection into readings of the catalogue. It must not know how they
are exposed, and it keeps nothing but the places of label values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from extproc import __version__
from extproc.core.inspection import BandDetail, Inspection
from extproc.core.shadow import WouldHave
from extproc.core.statistics import BandStatistics, Statistics
from extproc.runtime.labels import OVERFLOW, LabelCap
from extproc.runtime.meters import Reading
from extproc.runtime.redaction import redact_id

_Prioritised = TypeVar("_Prioritised", BandStatistics, BandDetail)

DEPARTED = "departed"
"""The endpoint label of what still runs on endpoints that left the pool; there also while it is empty."""

MAX_FAIRNESS_LABELS = 200
MAX_PRIORITY_LABELS = 64


class PriorityLabels:
    """Label texts of priorities: declared bands always have theirs, others up to a cap."""

    def __init__(self, declared: tuple[int, ...] = ()) -> None:
        self._cap = LabelCap(MAX_PRIORITY_LABELS, pinned=[str(priority) for priority in declared])
        self._texts: dict[int, str] = {}

    def __call__(self, priority: int) -> str:
        text = self._texts.get(priority)
        if text is None:
            text = self._cap.label(str(priority))
            if text != OVERFLOW:
                self._texts[priority] = text
        return text


class StateReader:
    """Readings of the controller's state; one object for the life of the process."""

    def __init__(self, priorities: PriorityLabels) -> None:
        self._priorities = priorities
        self._fairness = LabelCap(MAX_FAIRNESS_LABELS)
        self._labelled: set[str] = set()

    def read(self, statistics: Statistics, inspection: Inspection) -> Iterator[Reading]:
        """Everything that is true now; what has vanished has no reading."""
        yield from _pool(statistics)
        for label, bands in _grouped(statistics.bands, self._priorities):
            yield from _band(label, bands)
        for label, details in _grouped(inspection.bands, self._priorities):
            yield from _band_details(label, details)
        yield from self._flows(inspection.bands)
        yield from self._endpoints(statistics, inspection)

    def _flows(self, bands: tuple[BandDetail, ...]) -> Iterator[Reading]:
        """Sums by label, since all flows beyond the cap share one; places of ended flows are given back."""
        present = {redact_id(flow) for band in bands for flow in band.flows}
        for gone in self._labelled - present:
            self._fairness.release(gone)
        sums: Counter[tuple[str, str]] = Counter()
        for band in bands:
            for flow, count in band.flows.items():
                sums[self._priorities(band.priority), self._fairness.label(redact_id(flow))] += count
        self._labelled = {label for _, label in sums}
        for labels, count in sums.items():
            yield Reading("extproc_flow_queue_requests", labels, count)

    def _endpoints(self, statistics: Statistics, inspection: Inspection) -> Iterator[Reading]:
        for endpoint in statistics.endpoints:
            for resource, value in endpoint.saturation.items():
                yield Reading("extproc_endpoint_saturation_ratio", (endpoint.address, resource), value)
        used = [band.priority for band in statistics.bands]
        for detail in inspection.endpoints:
            counts = detail.by_priority, detail.tokens_by_priority
            yield from self._occupants(detail.address, *counts, used)
        yield from self._occupants(DEPARTED, inspection.departed, inspection.departed_tokens, used)

    def _occupants(
        self, label: str, requests: Mapping[int, int], tokens: Mapping[int, int], priorities: Iterable[int]
    ) -> Iterator[Reading]:
        """Every known band has its series on every endpoint, also at 0."""
        known = Counter({self._priorities(priority): 0 for priority in priorities})
        for name, counts in (("extproc_inflight_requests", requests), ("extproc_inflight_tokens", tokens)):
            sums = known.copy()
            for priority, count in counts.items():
                sums[self._priorities(priority)] += count
            for priority_label, count in sums.items():
                yield Reading(name, (priority_label, label), count)


def _pool(statistics: Statistics) -> Iterator[Reading]:
    yield Reading("extproc_saturation_ratio", (), statistics.saturation)
    for resource, value in statistics.resources.items():
        yield Reading("extproc_resource_saturation_ratio", (resource,), value)
    yield Reading("extproc_stale_endpoints", (), statistics.stale_endpoints)
    yield Reading("extproc_promised_requests", (), statistics.promised_requests)
    yield Reading("extproc_revocations_outstanding", (), statistics.revocations_outstanding)
    for outcome, count in (
        ("confirmed", statistics.revocations_confirmed),
        ("timed-out", statistics.revocations_timed_out),
    ):
        yield Reading("extproc_revocations_total", (outcome,), count)
    yield Reading("extproc_ignored_events_total", (), statistics.ignored_events)
    yield Reading("extproc_flows", (), sum(band.queued_flows for band in statistics.bands))


def _grouped(
    bands: Iterable[_Prioritised], label: PriorityLabels
) -> Iterator[tuple[str, list[_Prioritised]]]:
    """Bands by label: all beyond the cap share one, and must not give one series twice."""
    groups: dict[str, list[_Prioritised]] = {}
    for band in bands:
        groups.setdefault(label(band.priority), []).append(band)
    yield from groups.items()


def _band(priority: str, bands: list[BandStatistics]) -> Iterator[Reading]:
    for name, value in (
        ("extproc_queue_requests", sum(band.queued_requests for band in bands)),
        ("extproc_queue_bytes", sum(band.queued_bytes for band in bands)),
        ("extproc_queue_tokens", sum(band.queued_tokens for band in bands)),
        ("extproc_drain_requests_per_second", sum(band.dispatches_per_s for band in bands)),
        ("extproc_ceiling_ratio", min(band.ceiling for band in bands)),
    ):
        yield Reading(name, (priority,), value)
    for resource in ("requests", "tokens"):
        ceiling = min(getattr(band.ceilings, resource) for band in bands)
        yield Reading("extproc_reserve_ratio", (priority, resource), max(0.0, 1.0 - ceiling))
    waits = [wait for wait in map(wait_estimate_s, bands) if wait is not None]
    if waits:
        yield Reading("extproc_wait_estimate_seconds", (priority,), max(waits))


def _band_details(priority: str, details: list[BandDetail]) -> Iterator[Reading]:
    yield Reading("extproc_queue_limit_requests", (priority,), sum(one.max_requests for one in details))
    oldest_s = max(one.oldest_queued_s or 0.0 for one in details)
    yield Reading("extproc_queue_oldest_seconds", (priority,), oldest_s)


def wait_estimate_s(band: BandStatistics) -> float | None:
    """Queued requests over the observed drain rate; None while nothing drains."""
    if not band.queued_requests:
        return 0.0
    return band.queued_requests / band.dispatches_per_s if band.dispatches_per_s > 0 else None


_ACTIONS: Mapping[str, Callable[[WouldHave], int]] = {
    "would-pass": lambda counts: counts.passed,
    "would-hold": lambda counts: counts.held,
    "would-reject": lambda counts: counts.rejected,
    "would-expire": lambda counts: counts.expired,
    "would-displace": lambda counts: counts.displaced,
    "would-evict": lambda counts: counts.evicted,
}


def read_would_have(counts: Mapping[int, WouldHave], priorities: PriorityLabels) -> Iterator[Reading]:
    """What mode observe has counted; nothing before it was ever in force."""
    groups: dict[str, list[WouldHave]] = {}
    for priority, would_have in counts.items():
        groups.setdefault(priorities(priority), []).append(would_have)
    for label, group in groups.items():
        for action, count_of in _ACTIONS.items():
            yield Reading("extproc_observe_only_total", (label, action), sum(map(count_of, group)))
        held_s = sum(one.held_s for one in group)
        yield Reading("extproc_observe_only_wait_seconds_total", (label,), held_s)


def read_process(open_streams: int, is_draining: bool, config_generation: int) -> Iterator[Reading]:
    """What is true of the process as a whole."""
    yield Reading("extproc_streams_inflight", (), open_streams)
    yield Reading("extproc_draining", (), float(is_draining))
    yield Reading("extproc_config_generation", (), config_generation)
    yield Reading("extproc_build_info", (__version__,), 1)
