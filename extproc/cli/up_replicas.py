"""The live table of `extproc up --replicas N`: who holds which credits, from every replica's admin port."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from typing import Any

import aiohttp
import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from extproc.bench.load_options import LoadProgress
from extproc.cli.up_load import endless_load
from extproc.stack.local import LocalStack

_REFRESH_S = 0.5


async def show_replicas(
    stack: LocalStack, *, model: str, slots: int, has_load: bool, seconds: float | None, as_json: bool
) -> None:
    """Until cancelled, or for `seconds`. Raises StackError when a process of the stack has ended."""
    load = endless_load(stack.url, model, slots)
    async with contextlib.AsyncExitStack() as running:
        group = await running.enter_async_context(asyncio.TaskGroup())
        sending = group.create_task(load.run()) if has_load else None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await _show(stack, load.progress, as_json=as_json)
        if sending is not None:
            sending.cancel()


async def _show(stack: LocalStack, progress: LoadProgress, *, as_json: bool) -> None:
    timeout = aiohttp.ClientTimeout(total=2.0)
    with Live(console=Console(), auto_refresh=False) if not as_json else contextlib.nullcontext() as live:
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                await asyncio.sleep(_REFRESH_S)
                stack.check()
                states = await asyncio.gather(*(_state(session, url) for url in stack.admin_urls))
                snapshot = summarize(states, progress)
                if live is None:
                    click.echo(json.dumps(snapshot))
                else:
                    live.update(render(snapshot), refresh=True)


async def _state(session: aiohttp.ClientSession, url: str) -> dict[str, Any] | None:
    try:
        async with session.get(f"{url}/debug/state") as answer:
            state = await answer.json()
    except (aiohttp.ClientError, TimeoutError):
        return None
    assert isinstance(state, dict)
    return state


def summarize(states: list[dict[str, Any] | None], progress: LoadProgress) -> dict[str, Any]:
    """One line of `--json`: the replicas in order (null: it does not answer), and the load's counters."""
    return {
        "replicas": [None if state is None else _replica(state) for state in states],
        "load": {
            "open": progress.open,
            "completed": progress.completed,
            "evictions": progress.evictions,
            "refused": progress.refused,
            "failed": progress.failed,
        },
    }


def _replica(state: Mapping[str, Any]) -> dict[str, Any]:
    group = state["replica"] or {}
    return {
        "name": group.get("name"),
        "state": group.get("state"),
        "is_leader": group.get("is_leader", False),
        "credits": group.get("credits", {}).get("slots"),
        "capacity": group.get("capacity", {}).get("slots"),
        "inflight": {str(band["priority"]): band["inflight"] for band in state["bands"]},
        "waiting": {str(band["priority"]): band["queued"] for band in state["bands"]},
        "evicted": state["evictions"]["issued"],
        "grants": group.get("grants"),
        "waits_for": group.get("waits_for", ""),
    }


def render(snapshot: Mapping[str, Any]) -> Table:
    """The table of one snapshot; a sum below."""
    load = snapshot["load"]
    caption = ", ".join(f"{count} {name}" for name, count in load.items())
    table = Table(caption=f"load: {caption}", box=None, pad_edge=False, header_style="bright_black")
    table.add_column("replica", no_wrap=True)
    for name in ("state", "credits", "in flight", "waiting", "evicted", "grants"):
        table.add_column(name, justify="right", no_wrap=True)
    sums = [0, 0, 0]
    capacity = 0
    for replica in snapshot["replicas"]:
        if replica is None:
            table.add_row("?", "no answer")
            continue
        inflight, waiting = sum(replica["inflight"].values()), sum(replica["waiting"].values())
        capacity = max(capacity, replica["capacity"] or 0)
        sums = [a + b for a, b in zip(sums, (replica["credits"] or 0, inflight, waiting), strict=True)]
        table.add_row(
            f"{replica['name']}{' (allocates)' if replica['is_leader'] else ''}",
            replica["state"] or "",
            str(replica["credits"]),
            _by_band(replica["inflight"]),
            _by_band(replica["waiting"]),
            str(replica["evicted"]),
            str(replica["grants"]),
        )
    table.add_row("all", "", f"{sums[0]} of {capacity}", str(sums[1]), str(sums[2]), style="bold")
    return table


def _by_band(counts: Mapping[str, int]) -> str:
    shown = "  ".join(f"{count} [{priority}]" for priority, count in counts.items() if count)
    return shown.replace("[", "(").replace("]", ")") or "0"
