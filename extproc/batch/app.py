"""Composition root of `extproc batch serve` and `extproc batch worker`: builds, starts, stops the parts."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from contextlib import AsyncExitStack
from random import Random

from aiohttp import web

from extproc.batch.api import BatchApi
from extproc.batch.intake import IntakeLimits
from extproc.batch.lifecycle import Lifecycle
from extproc.batch.meters import BatchMeters
from extproc.batch.stores.contract import JobStore
from extproc.batch.stores.sqlite import SqliteStore
from extproc.batch.worker import Worker
from extproc.clock import Clock
from extproc.config.batch import BatchConfig, RedisStoreConfig, SqliteStoreConfig
from extproc.errors import ConfigError, Problem
from extproc.tasks import TaskKeeper

logger = logging.getLogger(__name__)


def make_store(config: SqliteStoreConfig | RedisStoreConfig, clock: Clock) -> JobStore:
    """The configured store, not yet opened. Raises ConfigError when its package is missing."""
    if isinstance(config, SqliteStoreConfig):
        return SqliteStore(config.folder, clock, is_durable=config.is_durable)
    try:
        from extproc.batch.stores.redis import RedisStore
    except ImportError as error:
        message = "needs the redis package: pip install 'extproc[redis]'"
        raise ConfigError([Problem("store.type", message)]) from error
    return RedisStore(config.url, prefix=config.prefix, timeout_s=config.timeout_s)


class BatchApp:
    """A worker with its lifecycle and metrics port, and the API where `has_api`."""

    def __init__(self, config: BatchConfig, clock: Clock, *, has_api: bool) -> None:
        self._config = config
        self._clock = clock
        self._meters = BatchMeters()
        self._store = make_store(config.store, clock)
        self._worker = Worker(self._store, config, clock, Random(secrets.randbits(64)), self._meters)
        limits = IntakeLimits(
            max_line_bytes=config.api.max_line_bytes,
            max_lines=config.api.max_lines,
            models=frozenset(config.api.models),
        )
        self._lifecycle = Lifecycle(
            self._store,
            clock,
            limits,
            worker=f"{socket.gethostname()}-{_new_token()}",
            new_token=_new_token,
            on_started=self._worker.nudge,
        )
        self._api = (
            BatchApi(self._store, clock, config.api, new_token=_new_token, on_change=self._lifecycle.nudge)
            if has_api
            else None
        )
        self._tasks = TaskKeeper(self._on_failure)
        self._is_stopping = False
        self.api_port = 0
        self.admin_port = 0

    def stop(self) -> None:
        """Begin to stop."""
        self._is_stopping = True
        self._worker.stop()

    def metric(self, name: str) -> float:
        """The present value of an unlabelled metric."""
        return self._meters.registry.get_sample_value(name) or 0.0

    async def run(self, started: asyncio.Event | None = None) -> None:
        """Start, work until `stop`, give everything back. Sets `started` once the ports are open."""
        async with AsyncExitStack() as stack:
            await self._store.open()
            stack.push_async_callback(self._store.close)
            stack.push_async_callback(self._tasks.close)
            if self._api is not None:
                host, port = self._config.api.host, self._config.api.port
                self.api_port = await _listen(stack, self._api.application(), host, port)
                logger.info("batch API on http://%s:%d/v1", host, self.api_port)
            admin = self._config.admin
            if admin.enabled:
                self.admin_port = await _listen(stack, self._admin(), admin.host, admin.port)
                logger.info("metrics on http://%s:%d/metrics", admin.host, self.admin_port)
            self._tasks.spawn(self._lifecycle.run(), name="lifecycle")
            if started is not None:
                started.set()
            await self._worker.run()

    def _admin(self) -> web.Application:
        app = web.Application()
        app.add_routes(
            [
                web.get("/metrics", self._metrics),
                web.get("/healthz", self._live),
                web.get("/readyz", self._ready),
            ]
        )
        return app

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=self._meters.expose(), content_type="text/plain", charset="utf-8")

    async def _live(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _ready(self, request: web.Request) -> web.Response:
        is_ready = self._worker.is_healthy and not self._is_stopping
        return web.Response(text="ok\n" if is_ready else "not ready\n", status=200 if is_ready else 503)

    def _on_failure(self, name: str, error: BaseException) -> None:
        logger.error("%s failed", name, exc_info=error)
        self.stop()


async def _listen(stack: AsyncExitStack, app: web.Application, host: str, port: int) -> int:
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=2.0)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    site = web.TCPSite(runner, host, port)
    try:
        await site.start()
    except OSError as error:
        raise ConfigError([Problem("port", f"cannot listen on {host}:{port}: {error.strerror}")]) from error
    address = runner.addresses[0]
    return int(address[1])


def _new_token() -> str:
    return secrets.token_hex(12)
