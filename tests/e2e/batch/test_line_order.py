"""Evicted requests of one job go back to their own places among its other requests at the gateway.

One place for batch work, every request of the job at the gateway at once: what runs next is the gateway's
choice alone, and its ordering knows the lines of a job only by the deadlines that the worker gives them.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

from extproc.batch.intake import COMPLETIONS
from extproc.client.batches import BatchesClient
from extproc.stack.local import LocalStack
from tests.support.batch_app import FINAL, batch_line, fast_config, output_lines, running
from tests.support.interactive_load import burst

LINES = 10
TOKENS = 60
EVICTIONS = 4


def make_stack() -> LocalStack:
    config = {
        "flow_control": {
            "default_ttl_s": 300.0,
            "detector": {"type": "concurrency-detector", "mode": "requests", "max_concurrency": 1},
            "eviction": {"enabled": True},
            "bands": [{"priority": -1, "ordering": {"type": "edf"}}],
        },
        "requests": {"priority": {"objectives": {"interactive": 10, "batch": -1}}},
    }
    return LocalStack(config, emulators=[["--max-num-seqs", "1", "--speed", "1.0"]])


async def run_evicting(url: str, folder: Path) -> tuple[list[int], dict[int, int]]:
    """Lines in the order in which they finished, and evictions by line."""
    config = fast_config(url, folder)
    window = replace(config.window, initial=2 * LINES, minimum=2 * LINES, max_queued=LINES)
    body: dict[str, object] = {"prompt": "x", "temperature": 0, "max_tokens": TOKENS, "ignore_eos": True}
    upload = folder / "in.jsonl"
    upload.write_bytes(b"".join(batch_line(str(line), COMPLETIONS, body) for line in range(1, LINES + 1)))
    finished: list[int] = []
    async with (
        running(replace(config, window=window)) as app,
        BatchesClient(f"http://127.0.0.1:{app.api_port}") as client,
    ):
        file = await client.upload(upload)
        batch = await client.create(file["id"], COMPLETIONS, "24h")
        evicted_at = -1
        while (batch := await client.get(batch["id"]))["status"] not in FINAL:
            page = await client.tail(batch["id"], 0)
            finished = [entry["line"] for entry in page["data"]] or finished
            counts, evictions = batch["extproc"]["counts"], batch["extproc"]["totals"].get("evictions", 0)
            if counts["leased"] > 1 and evictions < EVICTIONS and len(finished) > evicted_at:
                evicted_at = len(finished)
                await burst(url, 1, 20)  # longer than the evicted one needs to come back
            await asyncio.sleep(0.02)
        lines = await output_lines(client, batch["output_file_id"])
    return finished, {int(line["custom_id"]): line["extproc"]["evictions"] for line in lines}


async def test_an_evicted_line_is_not_overtaken_by_the_lines_after_it(tmp_path: Path) -> None:
    with make_stack() as stack:
        finished, evictions = await run_evicting(stack.url, tmp_path)
    assert sum(evictions.values()) >= EVICTIONS
    assert len(evictions) == LINES
    assert len(finished) >= LINES - 2  # the order of the last ones is forgotten when the job ends
    for line in [line for line, count in evictions.items() if count and line in finished]:
        overtaking = [later for later in finished[: finished.index(line)] if later > line]
        # The first to arrive at the gateway, and what began while the evicted one was on its way back.
        assert len(overtaking) <= evictions[line] + 1, (line, finished, evictions)
