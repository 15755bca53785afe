"""What must hold between sections of the configuration, and what is allowed but probably not meant."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from extproc.config.endpoints import StaticDiscovery, check_staleness
from extproc.config.envoy_limits import EnvoyNeeds
from extproc.core.capacity import CapacityDetectorConfig
from extproc.core.concurrency import ConcurrencyDetectorConfig
from extproc.core.holdback import PriorityHoldbackConfig
from extproc.core.picker import ProfilesPickerConfig
from extproc.core.utilization import UtilizationDetectorConfig
from extproc.errors import Problem
from extproc.exchange.machine import TOLERATED_BODY_FACTOR

if TYPE_CHECKING:
    from extproc.config.schema import Config


def cross_checks(config: Config) -> Iterator[Problem]:
    """Contradictions between sections: the configuration is refused."""
    if config.admin.enabled and config.admin.port == config.server.port != 0:
        yield Problem("admin.port", f"{config.admin.port} is the port of the gRPC server too")
    detector = config.flow_control.detector
    if isinstance(detector, UtilizationDetectorConfig):
        path = "flow_control.detector.staleness_s"
        yield from check_staleness(config.endpoints.scrape, detector.staleness_s, path)
        if not config.endpoints.scrape.enabled:
            yield Problem("endpoints.scrape.enabled", "the utilization-detector needs what scraping measures")
    for index, band in enumerate(config.flow_control.bands):
        path = f"flow_control.bands[{index}].priority"
        priority = config.requests.priority
        if not priority.minimum <= band.priority <= priority.maximum:
            yield Problem(
                path,
                f"{band.priority} is outside requests.priority.minimum to maximum ({priority.minimum} to "
                f"{priority.maximum}): no request can have it",
            )

    replicas, detector = config.replicas, config.flow_control.detector
    if replicas.mode == "leased" and isinstance(detector, UtilizationDetectorConfig):
        yield Problem(
            "replicas.mode",
            "leased needs a detector that knows capacities: set flow_control.detector.type to "
            "capacity-detector or concurrency-detector",
        )
    if replicas.mode == "leased" and config.flow_control.mode == "observe":
        yield Problem("replicas.mode", "leased has nothing to share while flow_control.mode is observe")


def risks(config: Config) -> Iterator[Problem]:
    """Combinations that work but rarely do what was meant; `extproc check` and the start-up log show them."""
    if not config.endpoints.discovery:
        yield Problem("endpoints.discovery", "is empty: until an endpoint is known every request waits")
    eviction = config.flow_control.eviction
    if eviction.enabled and config.requests.priority.minimum >= eviction.evictable_below:
        yield Problem(
            "flow_control.eviction.evictable_below",
            f"no request can have a priority below {eviction.evictable_below} (requests.priority.minimum is "
            f"{config.requests.priority.minimum}): nothing will ever be evicted",
        )
    yield from _unreachable_gates(config)
    yield from _missing_measurements(config)


def _missing_measurements(config: Config) -> Iterator[Problem]:
    """What scraping would have told somebody who needs it."""
    if config.endpoints.scrape.enabled:
        return
    path, detector = "endpoints.scrape.enabled", config.flow_control.detector
    if config.replicas.mode == "leased":
        yield Problem(
            path,
            "replicas need the engines' own counts to see when the requests of a dead replica have ended",
        )
    if isinstance(detector, CapacityDetectorConfig) and detector.kv_tokens == "auto":
        yield Problem(
            path,
            "the KV capacity is read from the engines: without scraping set flow_control.detector.kv_tokens",
        )


def _unreachable_gates(config: Config) -> Iterator[Problem]:
    """Limits that can never be met, so that flow control silently does nothing."""
    detector = config.flow_control.detector
    slots = _known_slots(config)
    if slots is None or not isinstance(detector, ConcurrencyDetectorConfig) or detector.mode == "tokens":
        return
    if slots >= config.server.max_streams:
        yield Problem(
            "flow_control.detector.max_concurrency",
            f"the pool counts as full at {slots} requests, but server.max_streams allows only "
            f"{config.server.max_streams}: the limit can never be reached",
        )
    ceilings = config.flow_control.ceilings
    if isinstance(ceilings, PriorityHoldbackConfig) and math.ceil(ceilings.min_ceiling * slots) >= slots:
        yield Problem(
            "flow_control.ceilings.min_ceiling",
            f"{ceilings.min_ceiling:g} of {slots} slots leaves none free: nothing is held back",
        )


def _known_slots(config: Config) -> int | None:
    """Request slots of the whole pool; None when its size is only known at run time."""
    detector = config.flow_control.detector
    if not config.endpoints.discovery or not isinstance(detector, ConcurrencyDetectorConfig):
        return None
    slots = 0
    for source in config.endpoints.discovery:
        if not isinstance(source, StaticDiscovery):
            return None
        slots += sum(entry.max_requests or detector.max_concurrency for entry in source.endpoints)
    return slots


def envoy_needs(config: Config) -> EnvoyNeeds:
    """What Envoy's limits must allow for. The waits with and without endpoints are charged separately."""
    flow_control = config.flow_control
    ttls = [flow_control.default_ttl_s or math.inf]
    ttls += [band.ttl_s for band in flow_control.bands if band.ttl_s is not None]
    asked_s = min(flow_control.max_ttl_s, config.requests.limits.max_ttl_s)
    return EnvoyNeeds(
        longest_wait_s=max(*ttls, asked_s) + (flow_control.no_endpoint_ttl_s or math.inf),
        largest_body_bytes=TOLERATED_BODY_FACTOR * config.requests.limits.max_body_bytes,
        concurrent_requests=config.server.max_streams,
        addresses_named=_addresses_named(config),
    )


def _addresses_named(config: Config) -> int:
    """The most addresses that one destination header can hold: the pick and its fallbacks."""
    picker = config.flow_control.picker
    if isinstance(picker, ProfilesPickerConfig):
        asked = max(profile.max_endpoints for profile in picker.profiles)
    else:
        asked = 1 + picker.fallbacks
    listed = 0
    for source in config.endpoints.discovery:
        if not isinstance(source, StaticDiscovery):
            return asked
        listed += len(source.endpoints)
    return min(asked, max(1, listed))
