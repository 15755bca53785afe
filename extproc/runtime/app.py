"""The composition root: builds everything from the configuration, starts it, drains it, stops it.

Nothing is decided here. The order of a stop: readiness goes, requests are still taken for a while, then
no more; what is in flight may finish, what is queued is served or answered, and the process ends.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import logging
import random
import signal
from collections.abc import Callable
from pathlib import Path

from extproc.clock import Clock, SystemClock
from extproc.config.replicas import ReplicasConfig, scraping
from extproc.config.schema import Config
from extproc.config.server import QueuedAtDrain
from extproc.core.controller import FlowController
from extproc.core.events import DrainStarted
from extproc.core.explanation import Explanation
from extproc.errors import ConfigError, Problem
from extproc.exchange.surroundings import build_surroundings
from extproc.runtime.admin import AdminServer, JsonObject
from extproc.runtime.admin_source import ApplicationView
from extproc.runtime.credentials import build_credentials
from extproc.runtime.driver import Driver
from extproc.runtime.explain import read_question
from extproc.runtime.gauges import PriorityLabels, StateReader, read_process, read_would_have
from extproc.runtime.grpc_health import HealthService
from extproc.runtime.journal import build_journal
from extproc.runtime.live import LiveFeed
from extproc.runtime.logs import configure_logging
from extproc.runtime.loop_lag import measure_lag
from extproc.runtime.meters import Meters
from extproc.runtime.peer_metrics import PeerNames
from extproc.runtime.pool_gauges import read_pool
from extproc.runtime.pool_watch import PoolWatch
from extproc.runtime.reload import Reloader
from extproc.runtime.replicas.status import GroupMember
from extproc.runtime.replicas.view import read_group, show_group, why_credits_bind
from extproc.runtime.service import ProcessorService, bind, build_server
from extproc.runtime.snapshot import ProcessFacts, build_snapshot
from extproc.runtime.stale_watch import watch_staleness
from extproc.runtime.telemetry import Telemetry
from extproc.runtime.token_counter import TokenCounter, build_token_counter
from extproc.tasks import TaskKeeper

logger = logging.getLogger(__name__)

_STOP_GRACE_S = 1.0
_COLLECT_EVERY = 50_000
"""Allocations between two runs of the cycle collector: thousands of held requests make each run costly."""


class Application:
    """One running external processor. `start`, then `stop`; `drain` in between for a graceful end."""

    def __init__(
        self,
        config: Config,
        *,
        file: Path | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._rng = rng or random.Random()
        self.config = config
        self.clock = clock or SystemClock()
        self.meters = Meters()
        self._priorities = PriorityLabels(config.flow_control.declared_priorities)
        self.telemetry = Telemetry(self.meters, self._priorities)
        self.telemetry.create_series({0, *config.flow_control.declared_priorities})
        self.health = HealthService()
        self.keeper = TaskKeeper(self._task_failed)
        self.is_draining = False
        self.port = 0
        self.admin_port = 0
        self._failures: list[str] = []
        self._is_started = False
        self._idle = asyncio.Event()
        self._admin: AdminServer | None = None
        is_leased = config.replicas.mode == "leased"
        controller = FlowController(config.flow_control, self._rng, is_leased=is_leased)
        self.driver = Driver(controller, self.clock, self.telemetry)
        self.group = self._build_group()
        self._surroundings = build_surroundings(config.requests, self._rng)
        self._counter = self._build_counter(config)
        self.service = self._build_service()
        handlers = [self.service.handler(), self.health.handler()]
        limits = config.requests.limits
        self._server, self._server_loop = build_server(config.server, limits.max_body_bytes, handlers)
        self.feed = LiveFeed(self._take_snapshot, self.clock)
        self.watch = self._build_watch()
        self._reloader: Reloader | None = None
        if file is not None:
            self._reloader = Reloader(
                file, config, apply=self._apply, count=self.telemetry.config_reloaded, clock=self.clock
            )
        self._add_sources()

    def _build_group(self) -> GroupMember | None:
        config = self.config.replicas
        if config.mode == "single":
            return None
        return _join_group(config, self.driver, self.clock, lambda _: self._settle_ready())

    def _build_service(self) -> ProcessorService:
        service = ProcessorService(
            self._surroundings,
            self.driver,
            self.clock,
            self.telemetry,
            self.keeper,
            max_streams=self.config.server.max_streams,
            count_tokens=self._counter,
            journal=build_journal(self.config.logs, self.config.tracing),
        )
        service.on_idle = self._idle.set
        return service

    def _build_watch(self) -> PoolWatch:
        endpoints = self.config.endpoints
        watch = PoolWatch(
            dataclasses.replace(endpoints, scrape=scraping(endpoints.scrape, self.config.replicas)),
            clock=self.clock,
            post=self.driver.post,
            keeper=self.keeper,
            rng=self._rng,
        )
        self.driver.endpoint_observer = watch
        return watch

    def _add_sources(self) -> None:
        """What is read from the parts whenever somebody asks for the metrics."""
        group, admin = self.group, self.config.admin
        if group is not None:
            self.meters.add_source(lambda: read_group(group.status()))
        self.meters.add_source(lambda: read_pool(self.watch))
        state = StateReader(self._priorities)
        self.meters.add_source(lambda: state.read(self.driver.statistics(), self.driver.inspect()))
        self.meters.add_source(lambda: read_would_have(self.driver.would_have, self._priorities))
        self.meters.add_source(
            lambda: read_process(self.service.open_streams, self.is_draining, self.config_generation)
        )
        if admin.llm_d_metrics:
            self.meters.add_alias(PeerNames(self.meters.registry, admin.pool_name))

    @property
    def config_generation(self) -> int:
        """Counts configurations that were in force, from 1."""
        return 1 if self._reloader is None else self._reloader.generation

    async def start(self) -> None:
        """Listen and become ready. Raises OSError for a port that is taken, ConfigError for unusable
        files.
        """
        server, config = self._server, self.config
        self.watch.start()
        credentials = None
        if config.server.tls is not None:
            credentials = build_credentials(config.server.tls, self.clock)
        self.port = bind(server, config.server, credentials)
        await server.start()
        logger.info("ext_proc port: %s:%d", config.server.host, self.port)
        if config.admin.enabled:
            view = ApplicationView(
                config=lambda: self.config,
                meters=self.meters,
                feed=self.feed,
                inspect=self.driver.inspect,
                explain_request=self.explain,
                not_ready=self.not_ready_reasons,
                not_live=self.not_live_reasons,
                reloader=self._reloader,
            )
            self._admin = AdminServer(config.admin, view)
            self.admin_port = await self._admin.start()
            self.keeper.spawn(self.feed.run(), name="live-feed")
        if self._reloader is not None:
            self.keeper.spawn(self._reloader.watch(), name="watch-config")
        lag = self.meters.histogram("extproc_event_loop_lag_seconds")
        self.keeper.spawn(measure_lag(self.clock, lag.observe), name="measure-lag")
        stale = watch_staleness(self.clock, lambda: self.config.flow_control, self._stale_endpoints)
        self.keeper.spawn(stale, name="watch-staleness")
        gc.collect()
        gc.freeze()
        gc.set_threshold(_COLLECT_EVERY, 20, 50)
        self._is_started = True
        if self.group is not None:
            self.keeper.spawn(self.group.run(), name="replica-group")
        self._settle_ready()

    def _stale_endpoints(self) -> tuple[int, int]:
        statistics = self.driver.statistics()
        return statistics.stale_endpoints, sum(endpoint.is_open for endpoint in statistics.endpoints)

    def _settle_ready(self) -> None:
        may_serve = self.group is None or self.group.is_ready
        self.health.set_ready(self._is_started and may_serve and not self.is_draining)

    async def drain(self) -> None:
        """Stop taking requests and wait until all have ended, as long as the configuration allows."""
        server = self.config.server
        self.is_draining = True
        self._settle_ready()
        logger.info("draining: %d streams are open", self.service.open_streams)
        if self.group is not None:
            await self.group.begin_drain()
        await self._wait_idle(server.drain_delay_s, at_least=True)
        self.driver.post(DrainStarted(reject_queued=server.queued_at_drain is QueuedAtDrain.REJECT))
        if not await self._wait_idle(server.drain_timeout_s):
            logger.warning("%d streams did not end in time", self.service.open_streams)
            self.driver.post(DrainStarted(reject_queued=True))
            await self._wait_idle(_STOP_GRACE_S)

    async def stop(self) -> None:
        """End at once: open streams are cut."""
        self.health.set_ready(False)
        self.health.set_live(False)
        if self._admin is not None:
            self.feed.close()
            await self._admin.stop()
        try:
            async with asyncio.timeout(2 * _STOP_GRACE_S):
                await self._server.stop(_STOP_GRACE_S if self.service.open_streams else 0)
        except TimeoutError:
            logger.warning("the gRPC server did not stop in time")
        self._server_loop.is_patient = False
        self.watch.close()
        self.driver.close()
        await self.keeper.close()
        if self._counter is not None:
            await self._counter.close()
        if self.service.journal is not None:
            await asyncio.to_thread(self.service.journal.close)
        if self.group is not None:
            await self.group.leave()

    def reload(self) -> None:
        """Read the configuration file again; a bad one is logged and leaves everything as it is."""
        if self._reloader is not None:
            self._reloader.reload_quietly()

    def _build_counter(self, config: Config) -> TokenCounter | None:
        return build_token_counter(config.requests.tokens, lambda: self.driver.unqueued.pick(None))

    def _replace_journal(self, config: Config) -> None:
        before, self.service.journal = self.service.journal, build_journal(config.logs, config.tracing)
        if before is not None:
            self.keeper.spawn(asyncio.to_thread(before.close), name="close-journal")

    def _apply(self, new: Config, old: Config) -> None:
        """Put the sections that may change while running into effect. Requests keep their places."""
        if new.requests.tokens != old.requests.tokens:
            before, self._counter = self._counter, self._build_counter(new)
            self.service.count_tokens = self._counter
            if before is not None:
                self.keeper.spawn(before.close(), name="close-token-counter")
        if new.requests != old.requests:
            self._surroundings = build_surroundings(new.requests, self._rng, self._surroundings)
            self.service.replace_surroundings(self._surroundings)
        if new.logs != old.logs:
            configure_logging(new.logs)
            self._replace_journal(new)
        if new.flow_control != old.flow_control:
            self.driver.reconfigure(new.flow_control)
            self.telemetry.create_series(new.flow_control.declared_priorities)
        self.config = new

    def _take_snapshot(self) -> JsonObject:
        facts = ProcessFacts(
            wall_time=self.clock.wall_time(),
            now=self.clock.now(),
            mode=self.config.flow_control.mode,
            config_generation=self.config_generation,
            is_draining=self.is_draining,
            group=self._show_group(),
            would_have=self.driver.would_have,
        )
        statistics, inspection = self.driver.statistics(), self.driver.inspect()
        return build_snapshot(facts, statistics, inspection, self.telemetry.recent_ttft)

    def explain(self, question: JsonObject) -> Explanation:
        """What would become of a request now. Raises ConfigError for a question that can't be read."""
        now = self.clock.now()
        request = read_question(question, self._surroundings, now, self.clock.wall_time())
        explanation = self.driver.controller.explain(request, now)
        if self.group is not None and explanation.verdict == "wait":
            share = why_credits_bind(self.group.status(), queued=1)
            if share:
                return dataclasses.replace(explanation, reason=f"{explanation.reason}; {share}")
        return explanation

    def _show_group(self) -> JsonObject | None:
        if self.group is None:
            return None
        status = self.group.status()
        queued = self.driver.controller.queued_requests
        return {**show_group(status), "waits_for": why_credits_bind(status, queued)}

    def not_ready_reasons(self) -> list[str]:
        """Why no new traffic should come; empty when ready."""
        reasons = self.not_live_reasons()
        if self.is_draining:
            reasons.append("draining")
        elif not self.health.is_ready:
            is_waiting = self._is_started and self.group is not None
            reasons.append("waiting for the group of replicas" if is_waiting else "starting")
        return reasons

    def not_live_reasons(self) -> list[str]:
        """Why the process should be restarted; empty when it works."""
        return [f"task {name} has failed" for name in self._failures]

    def _task_failed(self, name: str, error: BaseException) -> None:
        self.telemetry.task_failed(name)
        logger.error("task %s has failed", name, exc_info=error)
        if name not in self._failures:
            self._failures.append(name)
        self.health.set_live(False)

    async def _wait_idle(self, timeout_s: float, *, at_least: bool = False) -> bool:
        """Wait for the last stream, or (`at_least`) the whole time; True when no stream is open."""
        deadline = self.clock.now() + timeout_s
        while at_least or self.service.open_streams:
            remaining_s = deadline - self.clock.now()
            if remaining_s <= 0:
                break
            self._idle.clear()
            try:
                async with asyncio.timeout(remaining_s):
                    await self._idle.wait()
            except TimeoutError:
                break
        return not self.service.open_streams


def _join_group(
    config: ReplicasConfig, driver: Driver, clock: Clock, set_ready: Callable[[bool], None]
) -> GroupMember | None:
    """As `join_group`, which is imported only where it is needed: it wants the extra `replicas`."""
    try:
        from extproc.runtime.replicas.group import join_group
    except ModuleNotFoundError as error:
        message = f"{config.mode} needs the {error.name} package: pip install 'extproc[replicas]'"
        raise ConfigError([Problem("replicas.mode", message)]) from error
    return join_group(config, driver, clock, set_ready)


async def serve(config: Config, file: Path | None = None) -> None:
    """Run until SIGTERM or SIGINT, then drain; a second signal ends at once. Raises as
    `Application.start`. With `file`, a change of it or SIGHUP reloads the configuration.
    """
    configure_logging(config.logs)
    application = Application(config, file=file)
    stopping, hurrying = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurrying if stopping.is_set() else stopping).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    loop.add_signal_handler(signal.SIGHUP, application.reload)
    try:
        await application.start()
        await stopping.wait()
        async with asyncio.TaskGroup() as group:
            draining = group.create_task(application.drain())
            hurry = group.create_task(hurrying.wait())
            await asyncio.wait((draining, hurry), return_when=asyncio.FIRST_COMPLETED)
            draining.cancel()
            hurry.cancel()
    finally:
        await application.stop()
