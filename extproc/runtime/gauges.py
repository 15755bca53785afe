"""Gauge readings from the controller's statistics and the open streams, taken at each scrape. Policies
unknown.
"""

from __future__ import annotations

from collections.abc import Iterator

from extproc import __version__
from extproc.core.statistics import Statistics
from extproc.runtime.meters import Reading


def read_statistics(statistics: Statistics) -> Iterator[Reading]:
    """Queues, ceilings, saturation and the ledger; a total of 0 is told even while there is no band."""
    yield Reading("extproc_saturation_ratio", (), statistics.saturation)
    for resource, value in statistics.resources.items():
        yield Reading("extproc_resource_saturation_ratio", (resource,), value)
    yield Reading("extproc_promised_requests", (), statistics.promised_requests)
    if not statistics.bands:
        yield Reading("extproc_queue_requests", ("0",), 0)
        yield Reading("extproc_inflight_requests", ("0", "all"), 0)
    for band in statistics.bands:
        priority = str(band.priority)
        yield Reading("extproc_queue_requests", (priority,), band.queued_requests)
        yield Reading("extproc_queue_bytes", (priority,), band.queued_bytes)
        yield Reading("extproc_queue_tokens", (priority,), band.queued_tokens)
        yield Reading("extproc_inflight_requests", (priority, "all"), band.inflight_requests)
        yield Reading("extproc_inflight_tokens", (priority, "all"), band.inflight_tokens)
        yield Reading("extproc_ceiling_ratio", (priority,), band.ceiling)
        yield Reading("extproc_reserve_ratio", (priority,), max(0.0, 1.0 - band.ceiling))
        yield Reading("extproc_drain_requests_per_second", (priority,), band.dispatches_per_s)
    yield Reading("extproc_flows", (), sum(band.queued_flows for band in statistics.bands))
    for endpoint in statistics.endpoints:
        for resource, value in endpoint.saturation.items():
            yield Reading("extproc_endpoint_saturation_ratio", (endpoint.address, resource), value)


def read_process(open_streams: int, is_draining: bool) -> Iterator[Reading]:
    """What is true of the process as a whole."""
    yield Reading("extproc_streams_inflight", (), open_streams)
    yield Reading("extproc_draining", (), float(is_draining))
    yield Reading("extproc_build_info", (__version__,), 1)
