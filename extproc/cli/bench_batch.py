"""`extproc bench batch`: a large job through the batch processor, and what saving progress costs."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress

from extproc.batch.app import make_store
from extproc.batch.job import FINAL_STATES
from extproc.batch.store_cost import StoreCost, measure_store_cost
from extproc.cli.batch_serve import store_config
from extproc.client.batches import BatchesClient
from extproc.clock import SystemClock
from extproc.errors import ExtprocError
from extproc.stack.process import ChildProcess, answers_http, free_ports

_FINAL = frozenset(state.value for state in FINAL_STATES)
_HOST = "127.0.0.1"


@click.command()
@click.option(
    "--lines", type=click.IntRange(1), default=1_000_000, show_default=True, help="Requests of the job."
)
@click.option("--tokens", type=click.IntRange(1), default=1, show_default=True, help="Output tokens of each.")
@click.option("--speed", default=1000.0, show_default=True, help="Speed-up of the emulated server.")
@click.option("--finish/--submit-only", default=True, show_default=True, help="Also work the whole job off.")
@click.option("--store", metavar="FOLDER|REDIS_URL", help="Default: SQLite in a temporary folder.")
@click.option("--streams", default=32, show_default=True, help="Streams of the store measurement.")
@click.option("--rate", default=50.0, show_default=True, help="Tokens per second of each stream.")
@click.option("--seconds", type=click.FloatRange(1), default=10.0, show_default=True, help="Its length.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def batch(
    lines: int,
    tokens: int,
    speed: float,
    finish: bool,
    store: str | None,
    streams: int,
    rate: float,
    seconds: float,
    as_json: bool,
) -> None:
    """Submit a job of a million lines, finish it against an emulated server, and measure memory, rates, store
    work.

    Exit code 1 when the job does not complete with one result per line.

    Example: extproc bench batch --lines 100000 --json
    """
    with tempfile.TemporaryDirectory(prefix="extproc-bench-") as name:
        folder = Path(name)
        chosen = store or str(folder / "store")
        cost = asyncio.run(_store_cost(store or str(folder / "cost"), streams, rate, seconds))
        rig = _Rig(folder, chosen, speed)
        with Progress(
            *Progress.get_default_columns(),
            MofNCompleteColumn(),
            console=Console(stderr=True),
            disable=as_json,
        ) as progress:
            task = progress.add_task("writing input", total=lines)

            def tell(what: str, done: int) -> None:
                progress.update(task, description=what, completed=done)

            figures = rig.run(lines, tokens, finish, tell)
    figures["store"] = dataclasses.asdict(cost)
    click.echo(json.dumps(figures, indent=1) if as_json else _text(figures, cost))
    if finish and (figures["status"] != "completed" or figures["results"] != lines):
        sys.exit(1)


async def _store_cost(store: str, streams: int, rate: float, seconds: float) -> StoreCost:
    clock = SystemClock()
    opened = make_store(store_config(store), clock)
    await opened.open()
    try:
        return await measure_store_cost(opened, clock, streams=streams, tokens_per_s=rate, seconds=seconds)
    finally:
        await opened.close()


class _Rig:
    """An emulated server and `extproc batch serve`, as processes."""

    def __init__(self, folder: Path, store: str, speed: float) -> None:
        self._folder = folder
        self._clock = SystemClock()
        self._engine_port, self._api_port = free_ports(2)
        base = [sys.executable, "-m", "extproc"]
        engine = [*base, "emulate", "--port", str(self._engine_port), "--speed", str(speed)]
        self._engine = ChildProcess("engine", engine, folder / "engine.log")
        serve = [
            *base,
            "batch",
            "serve",
            "--gateway",
            f"http://{_HOST}:{self._engine_port}",
            "--store",
            store,
        ]
        serve += ["--port", str(self._api_port), "--admin-port", "0"]
        self._processor = ChildProcess("processor", serve, folder / "processor.log")

    def run(self, lines: int, tokens: int, finish: bool, tell: Callable[[str, int], None]) -> dict[str, Any]:
        source = self._folder / "requests.jsonl"
        _write_input(source, lines, tokens)
        try:
            self._engine.start()
            self._processor.start()
            self._engine.wait_until(lambda: answers_http(_HOST, self._engine_port, "/health"), timeout_s=30)
            path = "/v1/batches"
            self._processor.wait_until(lambda: answers_http(_HOST, self._api_port, path), timeout_s=30)
            return asyncio.run(self._measure(source, lines, finish, tell))
        finally:
            self._processor.stop()
            self._engine.stop()

    async def _measure(
        self, source: Path, lines: int, finish: bool, tell: Callable[[str, int], None]
    ) -> dict[str, Any]:
        async with BatchesClient(f"http://{_HOST}:{self._api_port}") as client:
            started = self._clock.now()
            file = await client.upload(source)
            uploaded_s = self._clock.now() - started
            batch = await client.create(file["id"], "/v1/completions", "24h")
            while (batch := await client.get(batch["id"]))["status"] == "validating":
                await self._clock.sleep_until(self._clock.now() + 0.02)
            accepted_s = self._clock.now() - started
            figures: dict[str, Any] = {
                "lines": lines,
                "input_bytes": source.stat().st_size,
                "upload_s": uploaded_s,
                "submit_s": accepted_s,
                "submit_lines_per_s": lines / accepted_s,
                "peak_memory_bytes_after_submit": self._peak_memory_bytes(),
                "status": batch["status"],
            }
            if finish:
                batch = await self._wait(client, batch["id"], tell)
                figures["status"] = batch["status"]
                figures["finish_s"] = self._clock.now() - started
                figures["finished_lines_per_s"] = lines / (figures["finish_s"] - accepted_s)
                figures["results"] = batch["request_counts"]["completed"]
            figures["peak_memory_bytes"] = self._peak_memory_bytes()
            return figures

    async def _wait(
        self, client: BatchesClient, batch_id: str, tell: Callable[[str, int], None]
    ) -> dict[str, Any]:
        while (batch := await client.get(batch_id))["status"] not in _FINAL:
            counts = batch["request_counts"]
            tell(batch["status"], counts["completed"] + counts["failed"])
            if not self._processor.is_running:
                raise ExtprocError(f"the processor has ended\n{self._processor.tail()}")
            await self._clock.sleep_until(self._clock.now() + 0.5)
        return batch

    def _peak_memory_bytes(self) -> int:
        """The largest resident set of the processor so far, from the kernel."""
        for line in Path(f"/proc/{self._processor.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        raise ExtprocError("the kernel does not tell the processor's memory")


def _write_input(target: Path, lines: int, tokens: int) -> None:
    body = {"model": "emulated", "prompt": "", "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    with target.open("w", encoding="utf-8") as sink:
        for number in range(lines):
            body["prompt"] = f"request number {number} of a large job"
            record = {"custom_id": f"r-{number}", "method": "POST", "url": "/v1/completions", "body": body}
            sink.write(json.dumps(record) + os.linesep)


def _text(figures: dict[str, Any], cost: StoreCost) -> str:
    rows = [
        f"submitted {figures['lines']:,} lines ({figures['input_bytes'] / 2**20:,.0f} MiB) in"
        f" {figures['submit_s']:.1f} s: {figures['submit_lines_per_s']:,.0f} lines/s",
        f"peak memory of the processor: {figures['peak_memory_bytes'] / 2**20:,.0f} MiB",
        f"store work: {cost.core_fraction:.1%} of one core at {cost.streams} streams x {cost.tokens_per_s:g}"
        f" tokens/s ({cost.writes / cost.seconds:.0f} writes/s)",
    ]
    if "finish_s" in figures:
        speed = figures["finished_lines_per_s"]
        rows.insert(1, f"{figures['status']}: {figures['results']:,} results, {speed:,.0f} lines/s")
    return "\n".join(rows)
