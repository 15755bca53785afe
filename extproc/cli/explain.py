"""`extproc explain`: what would become of a request now, asked of a running processor's admin port."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import aiohttp
import click
from rich.console import Console
from rich.table import Table

from extproc.errors import ExtprocError

DEFAULT_URL = "http://127.0.0.1:9090"


@click.command()
@click.option("--url", default=DEFAULT_URL, show_default=True, help="Admin port of the processor.")
@click.option("--token-file", type=click.Path(exists=True, dir_okay=False), help="File with the admin token.")
@click.option("--path", default="/v1/chat/completions", show_default=True, help="Path of the request.")
@click.option(
    "--body", type=click.Path(exists=True, dir_okay=False, allow_dash=True), help="JSON body (- reads it)."
)
@click.option(
    "--header", "headers", multiple=True, metavar="NAME: VALUE", help="A request header; repeatable."
)
@click.option("--model", help="Model, instead of the body's.")
@click.option("--priority", type=int, help="Priority, instead of what headers, body and rules say.")
@click.option("--fairness-id", help="Fairness id, instead of the header's.")
@click.option(
    "--prompt-tokens", type=click.IntRange(0), help="Length of the prompt, instead of the estimate."
)
@click.option("--session-id", help="Session, instead of the header's.")
@click.option(
    "--endpoint", "subset", multiple=True, metavar="IP:PORT", help="Only these endpoints; repeatable."
)
@click.option("--json", "as_json", is_flag=True, help="Print the whole answer as JSON.")
def explain(url: str, token_file: str | None, as_json: bool, **question: Any) -> None:
    """Show what each filter removed, each score, the detector's view, the ceiling, and why it would wait.

    Nothing is sent to a model server, booked or remembered.

    Example: extproc explain --priority -1 --prompt-tokens 8000
    """
    token = Path(token_file).read_text(encoding="utf-8").strip() if token_file else None
    answer = asyncio.run(_ask(url.rstrip("/"), token, _question(**question)))
    if as_json:
        click.echo(json.dumps(answer, indent=2))
    else:
        _print(answer)


def _question(
    body: str | None, headers: tuple[str, ...], subset: tuple[str, ...], **given: str | int | None
) -> dict[str, Any]:
    question: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if subset:
        question["endpoint_subset"] = list(subset)
    pairs = [header.partition(":") for header in headers]
    for name, colon, _ in pairs:
        if not colon or not name.strip():
            raise click.BadParameter(f"{name!r} is not of the form NAME: VALUE", param_hint="--header")
    question["headers"] = {name.strip(): value.strip() for name, _, value in pairs}
    if body is not None:
        with click.open_file(body, encoding="utf-8") as file:
            try:
                question["body"] = json.load(file)
            except ValueError as error:
                raise click.BadParameter(f"{body} is no JSON: {error}", param_hint="--body") from error
    return question


async def _ask(url: str, token: str | None, question: dict[str, Any]) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    timeout = aiohttp.ClientTimeout(total=30)
    try:
        async with (
            aiohttp.ClientSession(headers=headers, timeout=timeout) as session,
            session.post(f"{url}/explain", json=question) as answer,
        ):
            text = await answer.text()
            status = answer.status
    except (aiohttp.ClientError, TimeoutError) as error:
        raise ExtprocError(
            f"no admin port at {url} ({error}); is extproc running there? `extproc up` prints its own --url"
        ) from error
    if status == 401:
        raise ExtprocError(f"{url} needs a token: give --token-file")
    if status == 400:
        raise click.UsageError(f"the processor can't read this request: {text}")
    if status != 200:
        raise ExtprocError(f"{url} answered {status}; is it the admin port of extproc?")
    found: dict[str, Any] = json.loads(text)
    return found


def _print(answer: dict[str, Any]) -> None:
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 200)
    verdict = "would be dispatched now" if answer["verdict"] == "dispatch" else "would wait"
    where = f" to {answer['best']}" if answer["verdict"] == "dispatch" and answer["best"] else ""
    console.print(
        f"[bold]A request of priority {answer['priority']} {verdict}{where}[/bold]: {answer['reason']}"
    )
    ceilings = answer["ceilings"]
    below = "below" if answer["is_below_ceiling"] else "NOT below"
    console.print(
        f"saturation {answer['saturation']:.3f}, {below} its ceiling "
        f"(requests {ceilings['requests']:.3g}, tokens {ceilings['tokens']:.3g}); "
        f"it would be booked with {answer['tokens']} tokens, {answer['kv_tokens']} of KV cache"
    )
    if answer["verdict"] == "wait":
        may = "some" if answer["may_evict"] else "no"
        console.print(f"{may} lower-priority work in flight may be evicted for it")
    parts = sorted({name for row in answer["endpoints"] for name in row["scores"]})
    table = Table("endpoint", "in flight", "saturation", *parts, "total", "removed by", box=None)
    for row in sorted(answer["endpoints"], key=_rank):
        scores = [f"{row['scores'][name]:.3f}" if name in row["scores"] else "" for name in parts]
        loads = " ".join(f"{name} {value:.2f}" for name, value in row["saturation"].items())
        total = "" if row["total"] is None else f"{row['total']:.3f}"
        table.add_row(
            row["address"], str(row["inflight_requests"]), loads, *scores, total, row["removed_by"] or ""
        )
    profile = f" (profile {answer['profile']})" if answer["profile"] else ""
    console.print(f"endpoints{profile}, best first:")
    console.print(table)


def _rank(row: dict[str, Any]) -> tuple[bool, float]:
    return row["removed_by"] is not None, -(row["total"] or 0.0)
