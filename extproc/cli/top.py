"""`extproc top`: the live view of a running processor in the terminal, from its admin port."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from extproc.errors import ExtprocError

DEFAULT_URL = "http://127.0.0.1:9090"
PALETTE = ("blue", "dark_orange3", "cyan", "magenta", "yellow", "red", "white", "green")


@click.command()
@click.option("--url", default=DEFAULT_URL, show_default=True, help="Admin port of the processor.")
@click.option("--token-file", type=click.Path(exists=True, dir_okay=False), help="File with the admin token.")
@click.option("--once", is_flag=True, help="Show the state now and leave.")
@click.option("--json", "as_json", is_flag=True, help="Print snapshots as JSON, one a line.")
def top(url: str, token_file: str | None, once: bool, as_json: bool) -> None:
    """Watch bands, queues, ceilings, endpoints and evictions of a running processor.

    Example: extproc top --url http://127.0.0.1:9090
    """
    token = Path(token_file).read_text(encoding="utf-8").strip() if token_file else None
    try:
        asyncio.run(_watch(url.rstrip("/"), token, once=once, as_json=as_json))
    except KeyboardInterrupt:
        return


async def _watch(url: str, token: str | None, *, once: bool, as_json: bool) -> None:
    console = Console()
    with Live(console=console, auto_refresh=False, screen=False, transient=False) as live:
        async for snapshot in _snapshots(url, token):
            if as_json:
                click.echo(json.dumps(snapshot))
            else:
                live.update(render(snapshot), refresh=True)
            if once:
                return


async def _snapshots(url: str, token: str | None) -> AsyncIterator[dict[str, Any]]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=30)
    try:
        async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
            async with session.get(f"{url}/api/history") as answer:
                _check(answer, url)
                latest = (await answer.json())["snapshots"][-1:]
            for snapshot in latest:
                yield snapshot
            async with session.get(f"{url}/api/events") as answer:
                _check(answer, url)
                async for line in answer.content:
                    if line.startswith(b"data: "):
                        yield json.loads(line[6:])
    except (aiohttp.ClientError, TimeoutError) as error:
        raise ExtprocError(
            f"no admin port at {url} ({error}); is extproc running there? `extproc up` prints its own --url"
        ) from error


def _check(answer: aiohttp.ClientResponse, url: str) -> None:
    if answer.status == 401:
        raise ExtprocError(f"{url} needs a token: give --token-file")
    if answer.status != 200:
        raise ExtprocError(f"{url} answered {answer.status}; is it the admin port of extproc?")


def render(snapshot: Mapping[str, Any]) -> Group:
    """The whole view of one snapshot."""
    colours = {band["priority"]: PALETTE[i % len(PALETTE)] for i, band in enumerate(snapshot["bands"])}
    return Group(_head(snapshot), _bands(snapshot, colours), _endpoints(snapshot, colours))


def _head(snapshot: Mapping[str, Any]) -> Text:
    pool, evictions = snapshot["pool"], snapshot["evictions"]
    text = Text.assemble(
        ("extproc ", "bold"),
        f"{snapshot['version']}  saturation ",
        (f"{pool['saturation']:.2f}", "bold red" if pool["saturation"] >= 1 else "bold"),
        f"  in flight {pool['inflight']}  endpoints {pool['endpoints_ready']}/{pool['endpoints']}"
        f"  evictions {evictions['issued']}  refused {snapshot['totals']['refused']}",
    )
    if snapshot["mode"] == "observe":
        text.append("  OBSERVE ONLY", "bold yellow")
        text.append(f"\nenforcing would have {_would_have(snapshot.get('would_have', ()))}")
    if group := snapshot.get("replica"):
        waits_for = f": {group['waits_for']}" if group["waits_for"] else ""
        text.append(f"\nreplica {group['name']} {group['state']}{waits_for}")
    if snapshot["draining"]:
        text.append("  DRAINING", "bold yellow")
    return text


def _would_have(rows: Sequence[Mapping[str, Any]]) -> str:
    """All priorities together: the table of bands shows what really happened."""
    names = ("passed", "held", "rejected", "expired", "displaced", "evicted")
    return ", ".join(f"{name} {sum(row[name] for row in rows)}" for name in names)


def _bands(snapshot: Mapping[str, Any], colours: Mapping[int, str]) -> Table:
    names = ("band", "queued", "oldest", "wait now", "ceiling", "in flight", "TTFT p50", "TTFT p95")
    table = _table(*names, "dispatched", "refused", "evicted")
    for band in snapshot["bands"]:
        table.add_row(
            Text(str(band["priority"]), colours[band["priority"]]),
            str(band["queued"]),
            *(_seconds(band[key]) for key in ("oldest_s", "wait_estimate_s")),
            f"{band['ceiling']:.2f}",
            str(band["inflight"]),
            *(_seconds(band[key]) for key in ("ttft_p50_s", "ttft_p95_s")),
            *(str(band[key]) for key in ("dispatched", "refused", "evicted")),
        )
    return table


def _endpoints(snapshot: Mapping[str, Any], colours: Mapping[int, str]) -> Table:
    resources = list(dict.fromkeys(name for one in snapshot["endpoints"] for name in one["saturation"]))
    table = _table("endpoint", "state", "in flight", "", *resources, "running", "waiting", "KV cache", "age")
    for endpoint in snapshot["endpoints"]:
        used = {int(priority): count for priority, count in endpoint["inflight"].items()}
        room = endpoint["capacity_slots"]
        table.add_row(
            Text(endpoint["name"]),
            Text(endpoint["state"], "green" if endpoint["state"] == "ready" else "yellow"),
            f"{sum(used.values())}" + (f"/{room}" if room else ""),
            _bar(used, room, colours),
            *(_ratio(endpoint["saturation"].get(name)) for name in resources),
            *("–" if endpoint[key] is None else str(endpoint[key]) for key in ("running", "waiting")),
            _ratio(endpoint["kv"]),
            _seconds(endpoint["sample_age_s"]),
        )
    return table


def _bar(used: Mapping[int, int], room: int | None, colours: Mapping[int, str], width: int = 24) -> Text:
    total = max(sum(used.values()), room or 0, 1)
    bar = Text()
    for priority in sorted(used, reverse=True):
        bar.append("█" * round(width * used[priority] / total), colours.get(priority, "white"))
    bar.append("░" * max(0, width - len(bar)), "bright_black")
    return bar


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bright_black")
    for index, name in enumerate(names):
        table.add_column(name, justify="left" if index == 0 or not name else "right", no_wrap=True)
    return table


def _seconds(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.1f} s"


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
