"""The batch processor and all it depends on, as processes that a test may kill, stop and start again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from extproc.client.batches import BatchApiError, BatchesClient
from extproc.client.inference import InferenceClient
from extproc.clock import SystemClock
from extproc.stack.envoy import EnvoySettings
from extproc.stack.local import HOST, LocalStack
from extproc.stack.process import ChildProcess, answers_http, free_ports
from tests.support.batch_app import FINAL, output_lines

FLOW_CONTROL = {
    "default_ttl_s": 300.0,
    "detector": {"type": "concurrency-detector", "mode": "requests", "max_concurrency": 64},
    "eviction": {"enabled": True},
}


class FaultRig:
    """An emulated engine, perhaps Envoy with extproc, and workers; `store` is a section of their settings."""

    def __init__(
        self, folder: Path, store: dict[str, Any], *, speed: float = 2.0, with_envoy: bool = False
    ) -> None:
        self._folder = folder
        self._store = store
        self._speed = speed
        self.engine_port, self.api_port, self._envoy_port = free_ports(3)
        self.engine = self._engine()
        self.stack = self._make_stack() if with_envoy else None
        self.workers: list[ChildProcess] = []

    @property
    def engine_url(self) -> str:
        return f"http://{HOST}:{self.engine_port}"

    @property
    def api_url(self) -> str:
        return f"http://{HOST}:{self.api_port}"

    def _engine(self) -> ChildProcess:
        argv = [sys.executable, "-m", "extproc", "emulate", "--port", str(self.engine_port)]
        return ChildProcess("engine", [*argv, "--speed", str(self._speed)], self._folder / "engine.log")

    def _make_stack(self) -> LocalStack:
        config = {
            "flow_control": FLOW_CONTROL,
            "requests": {"priority": {"objectives": {"interactive": 10, "batch": -1}}},
        }
        return LocalStack(
            config,
            emulators=[],
            endpoints=[f"{HOST}:{self.engine_port}"],
            envoy=EnvoySettings(listen_host=HOST, listen_port=self._envoy_port, admin_port=0),
            directory=self._folder / "stack",
        )

    @contextlib.contextmanager
    def running(self) -> Iterator[FaultRig]:
        try:
            self.start_engine()
            if self.stack is not None:
                self.stack.start()
            self.start_worker()
            yield self
        finally:
            for worker in self.workers:
                worker.signal(signal.SIGCONT)
                worker.stop()
            if self.stack is not None:
                self.stack.stop()
            self.engine.stop()

    def start_engine(self) -> None:
        self.engine.start()
        self.engine.wait_until(lambda: answers_http(HOST, self.engine_port, "/health"), timeout_s=30)

    def kill_engine(self) -> None:
        self.engine.signal(signal.SIGKILL)
        self.engine.wait(10)

    def start_worker(self, *, has_api: bool = True) -> ChildProcess:
        """Start one more worker process; the first one also serves the API."""
        number = len(self.workers)
        config = self._folder / f"worker-{number}.json"
        config.write_text(json.dumps(self._worker_config()))
        command = "serve" if has_api else "worker"
        argv = [sys.executable, "-m", "extproc", "batch", command, "--config", str(config)]
        worker = ChildProcess(f"worker-{number}", argv, self._folder / f"worker-{number}.log")
        self.workers.append(worker)
        self.restart_worker(worker, has_api=has_api)
        return worker

    def restart_worker(self, worker: ChildProcess, *, has_api: bool = True) -> None:
        worker.start()
        if has_api:
            worker.wait_until(lambda: answers_http(HOST, self.api_port, "/v1/batches"), timeout_s=30)

    def kill_worker(self, worker: ChildProcess) -> None:
        worker.signal(signal.SIGKILL)
        worker.wait(10)

    def _worker_config(self) -> dict[str, Any]:
        gateway = self.engine_url if self.stack is None else f"http://{HOST}:{self._envoy_port}"
        return {
            "gateway": {"urls": [gateway], "connect_timeout_s": 1.0, "stall_timeout_s": 10.0},
            "store": self._store,
            "worker": {"lease_s": 1.0, "poll_interval_s": 0.05},
            "window": {"initial": 16, "max_queued": 16},
            "retry": {"base_s": 0.05, "cap_s": 0.3},
            "api": {"port": self.api_port},
            "admin": {"port": 0},
        }

    async def generated_tokens(self) -> int:
        """What the engine has generated since it was started, by its own counter."""
        async with InferenceClient(self.engine_url, clock=SystemClock(), concurrency=1) as client:
            page = (await client.call("/metrics")).body.decode()
        (value,) = re.findall(r"^vllm:generation_tokens_total\{.*?\} (\S+)$", page, re.MULTILINE)
        return int(float(value))

    async def run_job(
        self,
        endpoint: str,
        content: bytes,
        faults: Callable[[], Awaitable[None]],
        timeout_s: float = 100.0,
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Submit, let `faults` happen while it runs, wait for the end; the batch and its output lines."""
        upload = self._folder / "in.jsonl"
        upload.write_bytes(content)
        clock = SystemClock()
        async with BatchesClient(self.api_url) as client:
            file = await client.upload(upload)
            batch_id = (await client.create(file["id"], endpoint, "24h"))["id"]
            await faults()
            deadline = clock.now() + timeout_s
            while True:
                with contextlib.suppress(BatchApiError):
                    batch = await client.get(batch_id)
                    check_counts(batch)
                    if batch["status"] in FINAL:
                        assert await output_lines(client, batch["error_file_id"]) == []
                        return batch, await output_lines(client, batch["output_file_id"])
                assert clock.now() < deadline, "\n".join(worker.tail() for worker in self.workers)
                await asyncio.sleep(0.05)


def check_counts(batch: dict[str, Any]) -> None:
    """The counts add up to the number of lines at every moment."""
    counts = dict(batch["extproc"]["counts"])
    assert counts.pop("total") == sum(counts.values())
