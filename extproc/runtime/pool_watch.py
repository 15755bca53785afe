"""Joins discovery, scraping and health to the events that flow control lives on.

Every change goes to `post` in the moment it is known: EndpointAdded, EndpointRemoved, EndpointSampled and
EndpointHealthChanged. Must not know what flow control does with them.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from extproc.clock import Clock
from extproc.config.endpoints import (
    Discovery,
    DnsDiscovery,
    EndpointEntry,
    EndpointsConfig,
    FileDiscovery,
    KubernetesDiscovery,
    StaticDiscovery,
)
from extproc.core.events import EndpointAdded, EndpointHealthChanged, EndpointRemoved, Event
from extproc.core.types import EndpointId
from extproc.runtime.discovery.dns import DnsSource
from extproc.runtime.discovery.files import FileSource
from extproc.runtime.discovery.kubernetes import KubernetesSource
from extproc.runtime.discovery.membership import Changes, Membership
from extproc.runtime.discovery.source import Source
from extproc.runtime.discovery.static import StaticSource
from extproc.runtime.health import Evidence, HealthChange, HealthState, HealthTracker
from extproc.runtime.scrape_target import ScrapeStatus
from extproc.runtime.scraper import Scraper
from extproc.tasks import TaskKeeper

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointStatus:
    """One endpoint as this side sees it, for the state page."""

    endpoint_id: EndpointId
    name: str
    address: str
    is_draining: bool
    health: HealthState
    scrape: ScrapeStatus | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatus:
    """One source of endpoints; `problem` is None while it works."""

    name: str
    problem: str | None
    problems: int
    published: int


class PoolWatch:
    """Who is in the pool and how they are. `start()` it, tell it of answers, `close()` it."""

    def __init__(
        self,
        config: EndpointsConfig,
        *,
        clock: Clock,
        post: Callable[[Event], None],
        keeper: TaskKeeper,
        rng: random.Random,
    ) -> None:
        self._clock = clock
        self._post = post
        self._keeper = keeper
        self._sources = [build_source(item, clock, rng) for item in config.discovery]
        self._membership = Membership(len(self._sources))
        self._addresses: dict[str, EndpointId] = {}
        self._metrics_elsewhere: set[EndpointId] = set()
        self._health = HealthTracker(config.health)
        self._health_timer: asyncio.TimerHandle | None = None
        self._scraper: Scraper | None = None
        if config.scrape.enabled:
            self._scraper = Scraper(
                config.scrape, clock=clock, post=post, observer=self, keeper=keeper, rng=rng
            )

    def start(self) -> None:
        """Static lists are in force when this returns; the other sources publish as they learn."""
        for number, source in enumerate(self._sources):
            if isinstance(source, StaticSource):
                self._apply(self._membership.replace(number, source.entries()))
            else:
                self._keeper.spawn(self._follow(number, source), name=f"discovery {source.name}")

    def close(self) -> None:
        """Stop scraping; the sources' tasks end with the keeper."""
        if self._scraper is not None:
            self._scraper.close()
        if self._health_timer is not None:
            self._health_timer.cancel()

    # What happens to requests.

    def note_dispatch(self, endpoint_id: EndpointId) -> None:
        """A request was sent there."""
        if self._scraper is not None:
            self._scraper.note_dispatch(endpoint_id)

    def note_response(
        self, endpoint_id: EndpointId, served_by: str | None, status: int, *, is_unreachable: bool = False
    ) -> None:
        """An answer began. `served_by` (an address) is who gave it, when Envoy said so: if that is another
        endpoint, the picked one could not be reached."""
        now = self._clock.now()
        server = self._addresses.get(served_by, endpoint_id) if served_by is not None else endpoint_id
        if server != endpoint_id:
            self._apply_health(self._health.fail(endpoint_id, Evidence.UNREACHABLE, now))
        if is_unreachable:
            self._apply_health(self._health.fail(server, Evidence.UNREACHABLE, now))
        elif status >= 500:
            self._apply_health(self._health.fail(server, Evidence.SERVER_ERROR, now))
        elif status:
            self._apply_health(self._health.succeed(server, now, is_request=True))

    # What the scraper tells (`ScrapeObserver`).

    def on_scraped(self, endpoint_id: EndpointId) -> None:
        """The metrics port answered; it proves nothing when it isn't where requests go."""
        if endpoint_id not in self._metrics_elsewhere:
            self._apply_health(self._health.succeed(endpoint_id, self._clock.now(), is_request=False))

    def on_scrape_failed(self, endpoint_id: EndpointId, reason: str, *, is_unreachable: bool) -> None:
        """Only a port that can't be connected to counts against an endpoint: a slow page is no failure."""
        if is_unreachable and endpoint_id not in self._metrics_elsewhere:
            self._apply_health(self._health.fail(endpoint_id, Evidence.UNSCRAPABLE, self._clock.now()))

    def on_server_restarted(self, endpoint_id: EndpointId) -> None:
        """Another process has the address: another endpoint."""
        logger.info("endpoint %s: the server was restarted, its counters start again", endpoint_id)
        self._apply(self._membership.restart(endpoint_id))

    # For the state page and the metrics.

    def endpoints(self) -> list[EndpointStatus]:
        """Everyone in the pool, in the order of discovery."""
        return [
            EndpointStatus(
                endpoint_id=member.endpoint.id,
                name=member.endpoint.name,
                address=member.endpoint.address,
                is_draining=member.endpoint.is_draining,
                health=self._health.state(member.endpoint.id) or HealthState.HEALTHY,
                scrape=self._scraper.status(member.endpoint.id) if self._scraper is not None else None,
            )
            for member in self._membership.members()
        ]

    def sources(self) -> list[SourceStatus]:
        """How discovery goes."""
        return [
            SourceStatus(
                name=source.name,
                problem=source.health.problem,
                problems=source.health.problems,
                published=source.health.published,
            )
            for source in self._sources
        ]

    async def _follow(self, number: int, source: Source) -> None:
        def publish(entries: Sequence[EndpointEntry]) -> None:
            self._apply(self._membership.replace(number, entries))

        await source.run(publish)

    def _apply(self, changes: Changes) -> None:
        for member in changes.removed:
            endpoint = member.endpoint
            if self._addresses.get(endpoint.address) == endpoint.id:
                del self._addresses[endpoint.address]
            self._metrics_elsewhere.discard(endpoint.id)
            if self._scraper is not None:
                self._scraper.remove(endpoint.id)
            self._health.remove(endpoint.id)
            self._post(EndpointRemoved(endpoint.id))
        for member in (*changes.added, *changes.updated):
            endpoint = member.endpoint
            self._addresses[endpoint.address] = endpoint.id
            if member.metrics_address != endpoint.address:
                self._metrics_elsewhere.add(endpoint.id)
            self._health.add(endpoint.id)
            self._post(EndpointAdded(endpoint))
            if self._scraper is not None:
                self._scraper.follow(endpoint.id, member.metrics_address)

    def _apply_health(self, change: HealthChange | None) -> None:
        if change is None:
            return
        is_out = change.state is HealthState.EJECTED
        level = logging.WARNING if is_out else logging.INFO
        logger.log(level, "endpoint %s is %s: %s", change.endpoint_id, change.state.value, change.reason)
        is_probing = change.state is HealthState.PROBING
        self._post(EndpointHealthChanged(change.endpoint_id, not is_out, is_probing=is_probing))
        self._set_health_timer()

    def _set_health_timer(self) -> None:
        if self._health_timer is not None:
            self._health_timer.cancel()
            self._health_timer = None
        wakeup = self._health.next_wakeup()
        if wakeup is not None:
            delay_s = max(0.001, wakeup - self._clock.now())
            self._health_timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._health_timer = None
        for change in self._health.tick(self._clock.now()):
            self._apply_health(change)
        self._set_health_timer()


def build_source(config: Discovery, clock: Clock, rng: random.Random) -> Source:
    """The source that a section of the configuration describes."""
    match config:
        case StaticDiscovery():
            return StaticSource(config)
        case FileDiscovery():
            return FileSource(config, clock)
        case DnsDiscovery():
            return DnsSource(config, clock)
        case KubernetesDiscovery():
            return KubernetesSource(config, clock, rng)
