"""The product between a real Envoy and scripted model servers, with the server in this process to be
looked at.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from extproc.config.loader import load_text
from extproc.config.schema import Config
from extproc.runtime.app import Application
from extproc.stack.envoy import EnvoySettings, ProcessingMode, render
from extproc.stack.local import envoy_binary
from extproc.stack.process import ChildProcess
from tests.support.model_server import ModelServer


async def wait_until(is_true: Callable[[], object], timeout_s: float = 10.0) -> None:
    """Return once `is_true()`; AssertionError after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        await asyncio.sleep(0.005)


class Gateway:
    """An asynchronous context manager; asserts at its end that nothing is left in the ledger."""

    def __init__(
        self,
        directory: Path,
        config: Mapping[str, Any] | None = None,
        *,
        mode: ProcessingMode = ProcessingMode.LEAN,
        servers: int = 1,
        static_pool: bool = False,
        **envoy: Any,
    ) -> None:
        self._directory = directory
        self._config = dict(config or {})
        self._has_static_pool = static_pool
        self._settings = EnvoySettings(
            listen_host="127.0.0.1", listen_port=0, admin_port=0, mode=mode, **envoy
        )
        self.models = [ModelServer() for _ in range(servers)]
        self.edit_bootstrap: Callable[[dict[str, Any]], None] = lambda bootstrap: None
        self.expects_empty_ledger = True
        self.port = 0
        self.admin_port = 0
        self._envoy: ChildProcess | None = None

    @property
    def model(self) -> ModelServer:
        return self.models[0]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def envoy(self) -> ChildProcess:
        assert self._envoy is not None
        return self._envoy

    async def __aenter__(self) -> Self:
        for model in self.models:
            await model.start()
        self.app = Application(self._build_config())
        await self.app.start()
        self._settings = dataclasses.replace(
            self._settings,
            extproc_port=self.app.port,
            endpoints=tuple(model.address for model in self.models) if self._has_static_pool else (),
        )
        await asyncio.to_thread(self._start_envoy)
        async with httpx.AsyncClient() as client:
            await self._wait_listening(client)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None and self.expects_empty_ledger:
                await self.assert_empty()
        finally:
            await asyncio.to_thread(self.envoy.stop)
            await self.app.stop()
            for model in self.models:
                await model.stop()

    async def assert_empty(self) -> None:
        """Nothing queued, in flight or open; no task but the lasting ones."""
        await wait_until(lambda: self.app.service.open_streams == 0)
        assert len(self.app.driver) == 0
        statistics = self.app.driver.statistics()
        assert statistics.inflight_requests == 0
        assert statistics.queued_requests == 0
        assert statistics.revocations_outstanding == 0

    @asynccontextmanager
    async def client(self, *, http2: bool = False) -> AsyncIterator[httpx.AsyncClient]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(
            base_url=self.url, http1=not http2, http2=http2, timeout=30.0, limits=limits
        ) as client:
            yield client

    async def stats(self, pattern: str) -> dict[str, int]:
        """Envoy's counters and gauges whose names match."""
        async with httpx.AsyncClient() as client:
            answer = await client.get(
                f"http://127.0.0.1:{self.admin_port}/stats", params={"filter": pattern, "format": "json"}
            )
        return {item["name"]: item["value"] for item in answer.json()["stats"] if "name" in item}

    def _build_config(self) -> Config:
        endpoints = [
            {"name": f"model-{index}", "address": model.address} for index, model in enumerate(self.models)
        ]
        config = {
            "server": {"host": "127.0.0.1", "port": 0, "drain_delay_s": 0.0},
            "admin": {"enabled": False},
            "endpoints": {
                "discovery": [{"type": "static", "endpoints": endpoints}],
                "scrape": {"enabled": False},
                **self._config.pop("endpoints", {}),
            },
            **self._config,
        }
        return load_text(json.dumps(config), Config, source="test")

    def _start_envoy(self) -> None:
        bootstrap = copy.deepcopy(render(self._settings))  # edits must not reach the next test
        self.edit_bootstrap(bootstrap)
        path, address = self._directory / "envoy.json", self._directory / "envoy-admin"
        path.write_text(json.dumps(bootstrap))
        argv = [envoy_binary(), "-c", str(path), "--disable-hot-restart", "--log-level", "warning"]
        argv += ["--concurrency", "1", "--admin-address-path", str(address)]
        self._envoy = ChildProcess("envoy", argv, self._directory / "envoy.log")
        self._envoy.start()
        self._envoy.wait_until(lambda: address.exists() and ":" in address.read_text(), timeout_s=20.0)
        self.admin_port = int(address.read_text().rpartition(":")[2])

    async def _wait_listening(self, client: httpx.AsyncClient) -> None:
        deadline = time.monotonic() + 20.0
        while time.monotonic() < deadline:
            try:
                ready = await client.get(f"http://127.0.0.1:{self.admin_port}/ready")
                answer = await client.get(f"http://127.0.0.1:{self.admin_port}/listeners?format=json")
                clusters = await client.get(f"http://127.0.0.1:{self.admin_port}/clusters?format=json")
                found = answer.json().get("listener_statuses", [])
                if ready.status_code == 200 and found and _is_healthy(clusters.json()):
                    self.port = int(found[0]["local_address"]["socket_address"]["port_value"])
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.01)
        raise AssertionError(f"Envoy did not become ready\n{self.envoy.tail()}")


def _is_healthy(clusters: dict[str, Any]) -> bool:
    """Envoy's own health check of the processor has passed."""
    for cluster in clusters.get("cluster_statuses", []):
        if cluster["name"] == "extproc":
            hosts = cluster.get("host_statuses", [])
            return bool(hosts) and not hosts[0]["health_status"].get("failed_active_health_check")
    return True


def chat(content: str = "hello", **fields: Any) -> dict[str, Any]:
    """A chat request."""
    return {"model": "m", "messages": [{"role": "user", "content": content}], **fields}
