"""A batch processor in this process, an emulated server in another, and batch files for both."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from extproc.batch.app import BatchApp
from extproc.client.answers import EndKind
from extproc.client.inference import InferenceClient
from extproc.clock import SystemClock
from extproc.config.batch import (
    ApiConfig,
    BatchConfig,
    GatewayConfig,
    MetricsConfig,
    RetryConfig,
    SqliteStoreConfig,
    StoreConfig,
    WindowConfig,
    WorkerConfig,
)
from extproc.stack.process import ChildProcess, answers_http, free_ports

MODEL = "emulated"


@contextlib.contextmanager
def emulator(folder: Path, *arguments: str) -> Iterator[int]:
    """`extproc emulate` on a free port."""
    (port,) = free_ports(1)
    argv = [sys.executable, "-m", "extproc", "emulate", "--port", str(port), *arguments]
    child = ChildProcess("emulator", argv, folder / "emulator.log")
    child.start()
    try:
        child.wait_until(lambda: answers_http("127.0.0.1", port, "/health"), timeout_s=30)
        yield port
    finally:
        child.stop()


def fast_config(url: str, store: StoreConfig | Path, **worker: object) -> BatchConfig:
    """Short intervals and free ports; everything else as delivered."""
    return BatchConfig(
        gateway=GatewayConfig(urls=(url,), stall_timeout_s=20.0),
        store=SqliteStoreConfig(folder=store) if isinstance(store, Path) else store,
        worker=replace(WorkerConfig(lease_s=3.0, poll_interval_s=0.05), **worker),  # type: ignore[arg-type]
        window=WindowConfig(initial=16, max_queued=16),
        retry=RetryConfig(base_s=0.05, cap_s=0.5),
        api=ApiConfig(port=0),
        admin=MetricsConfig(port=0),
    )


@contextlib.asynccontextmanager
async def running(config: BatchConfig, *, has_api: bool = True) -> AsyncIterator[BatchApp]:
    """The processor, stopped gracefully at the end."""
    app = BatchApp(config, SystemClock(), has_api=has_api)
    started = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        run = tasks.create_task(app.run(started))
        waiting = tasks.create_task(started.wait())
        await asyncio.wait({run, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        try:
            yield app
        finally:
            app.stop()


def batch_line(custom_id: str, endpoint: str, body: dict[str, object]) -> bytes:
    """One input line."""
    record = {"custom_id": custom_id, "method": "POST", "url": endpoint, "body": {"model": MODEL, **body}}
    return json.dumps(record).encode() + b"\n"


async def direct_reply(url: str, endpoint: str, body: dict[str, object]) -> dict[str, object]:
    """The server's own, uninterrupted answer."""
    async with InferenceClient(url, clock=SystemClock(), concurrency=1) as client:
        end = await client.call(endpoint, {"model": MODEL, **body}, timeout_s=60)
    assert end.kind is EndKind.FINISHED, end
    reply: dict[str, object] = json.loads(end.body)
    return reply


async def direct_replies(
    url: str, endpoint: str, bodies: Sequence[dict[str, object]]
) -> list[dict[str, object]]:
    """The same for many, at once."""
    return list(await asyncio.gather(*[direct_reply(url, endpoint, body) for body in bodies]))
