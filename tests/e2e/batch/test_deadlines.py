"""A short job among long ones, under steady evictions: met with deadline ordering at the gateway, missed
without.

All requests are at the gateway at once, as with a processor that submits everything; only the gateway's order
within the batch band differs between the arms. An oracle meets the deadline: the job needs a third of its
window when it goes first.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from extproc.batch.intake import COMPLETIONS
from extproc.client.batches import BatchesClient
from extproc.stack.local import LocalStack
from extproc.tasks import TaskKeeper
from tests.support.batch_app import batch_line, fast_config, running, wait_for_end
from tests.support.interactive_load import burst

SLOTS = 8
LONG_JOBS = 2
LONG_REQUESTS = 40
URGENT_REQUESTS = 8
TOKENS = 150
WINDOW = "4s"


def make_stack(ordering: str) -> LocalStack:
    config = {
        "flow_control": {
            "default_ttl_s": 300.0,
            "detector": {"type": "concurrency-detector", "mode": "requests", "max_concurrency": SLOTS},
            "eviction": {"enabled": True},
            "bands": [{"priority": -1, "ordering": {"type": ordering}}],
        },
        "requests": {"priority": {"objectives": {"interactive": 10, "batch": -1}}},
    }
    return LocalStack(config, emulators=[["--max-num-seqs", str(SLOTS), "--speed", "1.0"]])


def job(name: str, requests: int) -> bytes:
    body: dict[str, object] = {"prompt": name, "temperature": 0, "max_tokens": TOKENS, "ignore_eos": True}
    return b"".join(batch_line(f"{name}-{number}", COMPLETIONS, body) for number in range(requests))


async def keep_evicting(url: str) -> None:
    while True:
        await burst(url, 1, 10)
        await asyncio.sleep(0.2)


async def met_deadlines(ordering: str, folder: Path) -> tuple[int, int]:
    """Requests of the urgent job done in time, and evictions of all jobs meanwhile."""
    failures: list[BaseException] = []
    keeper = TaskKeeper(lambda name, error: failures.append(error))
    folder.mkdir()
    with make_stack(ordering) as stack:
        everything = LONG_JOBS * LONG_REQUESTS + URGENT_REQUESTS
        config = fast_config(stack.url, folder)
        window = replace(config.window, initial=2 * everything, minimum=2 * everything, max_queued=everything)
        config = replace(config, window=window)
        async with running(config) as app, BatchesClient(f"http://127.0.0.1:{app.api_port}") as client:
            ids = []
            for number in range(LONG_JOBS):
                ids.append(await submit(client, folder, job(f"long-{number}", LONG_REQUESTS), "1h"))
            keeper.spawn(keep_evicting(stack.url), name="interactive")
            urgent = await submit(client, folder, job("urgent", URGENT_REQUESTS), WINDOW)
            ended = await wait_for_end(client, urgent, 60.0)
            batches = [ended, *[await client.get(batch_id) for batch_id in ids]]
            await keeper.close()
    assert failures == []
    evictions = sum(batch["extproc"]["totals"]["evictions"] for batch in batches)
    return ended["request_counts"]["completed"], evictions


async def submit(client: BatchesClient, folder: Path, content: bytes, window: str) -> str:
    upload = folder / "in.jsonl"
    upload.write_bytes(content)
    file = await client.upload(upload)
    batch = await client.create(file["id"], COMPLETIONS, window)
    while (batch := await client.get(batch["id"]))["status"] == "validating":  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return str(batch["id"])


async def test_deadline_ordering_at_the_gateway_meets_what_arrival_order_misses(tmp_path: Path) -> None:
    met, evictions = await met_deadlines("edf", tmp_path / "edf")
    assert evictions > 0
    assert met == URGENT_REQUESTS
    met, _ = await met_deadlines("fcfs", tmp_path / "fcfs")
    assert met < URGENT_REQUESTS
