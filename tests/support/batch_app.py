"""A batch processor in this process, an emulated server in another, and batch files for both."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from extproc.batch.app import BatchApp
from extproc.batch.job import FINAL_STATES
from extproc.client.answers import EndKind
from extproc.client.batches import BatchesClient
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
from tests.support.interactive_load import burst

MODEL = "emulated"
FINAL = frozenset(state.value for state in FINAL_STATES)


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


async def direct_reply(url: str, endpoint: str, body: dict[str, object]) -> dict[str, Any]:
    """The server's own, uninterrupted answer."""
    async with InferenceClient(url, clock=SystemClock(), concurrency=1) as client:
        end = await client.call(endpoint, {"model": MODEL, **body}, timeout_s=60)
    assert end.kind is EndKind.FINISHED, end
    reply: dict[str, Any] = json.loads(end.body)
    return reply


async def direct_replies(
    url: str, endpoint: str, bodies: Sequence[dict[str, object]]
) -> list[dict[str, Any]]:
    """The same for many, at once."""
    return list(await asyncio.gather(*[direct_reply(url, endpoint, body) for body in bodies]))


JsonObject = dict[str, Any]


async def run_job(
    config: BatchConfig, endpoint: str, content: bytes | None, batch_id: str = "", timeout_s: float = 90.0
) -> tuple[JsonObject, list[JsonObject]]:
    """Submit `content` (or go on with `batch_id`) and wait; the batch object and the output lines."""
    async with running(config) as app, BatchesClient(f"http://127.0.0.1:{app.api_port}") as client:
        if content is not None:
            upload = config_folder(config) / "upload.jsonl"
            upload.write_bytes(content)
            file = await client.upload(upload)
            batch_id = (await client.create(file["id"], endpoint, "24h"))["id"]
        batch = await wait_for_end(client, batch_id, timeout_s)
        return batch, await output_lines(client, batch["output_file_id"])


def config_folder(config: BatchConfig) -> Path:
    """A scratch folder beside the store."""
    if isinstance(config.store, SqliteStoreConfig):
        config.store.folder.mkdir(parents=True, exist_ok=True)
        return config.store.folder
    return Path(tempfile.mkdtemp())


async def wait_for_end(client: BatchesClient, batch_id: str, timeout_s: float) -> JsonObject:
    """Poll until the batch has ended."""
    clock = SystemClock()
    deadline = clock.now() + timeout_s
    while (batch := await client.get(batch_id))["status"] not in FINAL:
        assert clock.now() < deadline, batch
        await clock.sleep_until(clock.now() + 0.03)
    return batch


async def output_lines(client: BatchesClient, file_id: str | None) -> list[JsonObject]:
    """The decoded lines of an output file; none when there is no file."""
    if file_id is None:
        return []
    content = b"".join([chunk async for chunk in client.download(file_id)])
    return [json.loads(line) for line in content.splitlines()]


async def run_under_bursts(
    url: str,
    config: BatchConfig,
    content: bytes,
    *,
    burst_size: int,
    evictions: int,
    busy: int,
    model: str = MODEL,
    endpoint: str = "/v1/completions",
) -> tuple[JsonObject, list[JsonObject], list[EndKind]]:
    """Run a batch through the gateway at `url` while interactive bursts come whenever `busy`
    requests are in flight, until `evictions` were counted; the batch, its lines, and how the bursts ended.
    """
    upload = config_folder(config) / "in.jsonl"
    upload.write_bytes(content)
    ends: list[EndKind] = []
    async with running(config) as app, BatchesClient(f"http://127.0.0.1:{app.api_port}") as client:
        file = await client.upload(upload)
        batch_id = (await client.create(file["id"], endpoint, "24h"))["id"]
        while True:
            batch = await client.get(batch_id)
            if batch["status"] == "completed" or batch["extproc"]["totals"]["evictions"] >= evictions:
                break
            if batch["extproc"]["counts"]["leased"] >= busy:
                ends += await burst(url, burst_size, 4, model)
            await asyncio.sleep(0.05)
        batch = await wait_for_end(client, batch_id, 600.0)
        return batch, await output_lines(client, batch["output_file_id"]), ends
