"""Gauge readings of the pool: who is in it, what the engines reported, how discovery goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from extproc.runtime.health import HealthState
from extproc.runtime.meters import Reading
from extproc.runtime.pool_watch import EndpointStatus, PoolWatch

_STATES = ("ready", "draining", "probing", "unhealthy")


def read_pool(watch: PoolWatch) -> Iterator[Reading]:
    """Told at each scrape of our own metrics; a series ends with its endpoint."""
    endpoints = watch.endpoints()
    states = Counter(map(_state, endpoints))
    for state in _STATES:
        yield Reading("extproc_endpoints", (state,), states[state])
    for endpoint in endpoints:
        yield from _read_scrape(endpoint)
    for source in watch.sources():
        yield Reading("extproc_discovery_up", (source.name,), float(source.problem is None))


def _read_scrape(endpoint: EndpointStatus) -> Iterator[Reading]:
    scrape = endpoint.scrape
    if scrape is not None:
        yield Reading("extproc_scrape_errors_total", (endpoint.address,), scrape.failures)
    if scrape is None or scrape.sample is None or scrape.age_s is None:
        return
    label, sample = (endpoint.address,), scrape.sample
    yield Reading("extproc_endpoint_sample_age_seconds", label, scrape.age_s)
    for name, value in (
        ("running_requests", sample.running_requests),
        ("waiting_requests", sample.waiting_requests),
        ("kv_usage_ratio", sample.kv_usage_fraction),
    ):
        if value is not None:
            yield Reading(f"extproc_endpoint_{name}", label, value)


def _state(endpoint: EndpointStatus) -> str:
    if endpoint.health is HealthState.EJECTED:
        return "unhealthy"
    if endpoint.is_draining:
        return "draining"
    return "probing" if endpoint.health is HealthState.PROBING else "ready"
