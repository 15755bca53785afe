"""Waiting for a batch with a progress bar: lines done, in flight, evictions, tokens per second, time left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from extproc.batch.job import FINAL_STATES
from extproc.client.batches import BatchesClient, JsonObject
from extproc.clock import Clock

POLL_S = 0.5
FINAL = frozenset(state.value for state in FINAL_STATES)

_NOTE = (
    "[cyan]{task.fields[in_flight]}[/] in flight  [yellow]{task.fields[evictions]}[/] evicted  "
    "{task.fields[resumed]} resumed tokens  {task.fields[speed]:,.0f} tokens/s"
)


async def wait_for_end(client: BatchesClient, batch_id: str, clock: Clock, console: Console) -> JsonObject:
    """Poll until the batch is in a final state; returns it."""
    with Progress(
        TextColumn("{task.description:11}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} / {task.total:,.0f}"),
        TextColumn(_NOTE),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
    ) as progress:
        task = progress.add_task("validating", total=1, in_flight=0, evictions=0, resumed=0, speed=0.0)
        meter = _SpeedMeter()
        while True:
            batch = await client.get(batch_id)
            _show(progress, task, batch, meter.update(_totals(batch).get("output_tokens", 0), clock.now()))
            if batch["status"] in FINAL:
                return batch
            await clock.sleep_until(clock.now() + POLL_S)


def _show(progress: Progress, task: TaskID, batch: Mapping[str, Any], speed: float) -> None:
    counts, totals = batch["request_counts"], _totals(batch)
    progress.update(
        task,
        description=batch["status"],
        total=max(counts["total"], 1),
        completed=counts["completed"] + counts["failed"],
        in_flight=batch.get("extproc", {}).get("counts", {}).get("leased", 0),
        evictions=totals.get("evictions", 0),
        resumed=f"{totals.get('resumed_tokens', 0):,}",
        speed=speed,
    )


def _totals(batch: Mapping[str, Any]) -> Mapping[str, int]:
    totals: Mapping[str, int] = batch.get("extproc", {}).get("totals", {})
    return totals


class _SpeedMeter:
    """Tokens per second over about the last five seconds."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int]] = []

    def update(self, tokens: int, now: float) -> float:
        self._seen = [(at, count) for at, count in self._seen if now - at <= 5.0]
        self._seen.append((now, tokens))
        (first_at, first), (last_at, last) = self._seen[0], self._seen[-1]
        return (last - first) / (last_at - first_at) if last_at > first_at else 0.0
