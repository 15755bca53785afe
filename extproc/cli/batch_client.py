"""`extproc batch submit|status|cancel|results|tail`: clients of the batch API."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import click
from rich.console import Console
from rich.table import Table

from extproc.batch.intake import ENDPOINTS
from extproc.batch.job import parse_window
from extproc.cli.batch_progress import FINAL, POLL_S, wait_for_end
from extproc.client.batches import BatchesClient, JsonObject
from extproc.clock import SystemClock
from extproc.errors import ExtprocError

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., Any])

_console = Console(stderr=True)
_MAX_FIRST_LINE_BYTES = 16 * 2**20


def _api_options(command: Command) -> Command:
    url = click.option(
        "--api",
        "url",
        default="http://127.0.0.1:8090",
        show_default=True,
        envvar="EXTPROC_BATCH_API",
        show_envvar=True,
        help="The batch API.",
    )
    key = click.option(
        "--api-key", envvar="OPENAI_API_KEY", help="Sent as bearer token, where a proxy wants one."
    )
    return url(key(command))


_json_option = click.option("--json", "as_json", is_flag=True, help="Print the batch as JSON.")


def _run(url: str, api_key: str | None, work: Callable[[BatchesClient], Coroutine[Any, Any, T]]) -> T:
    async def with_client() -> T:
        async with BatchesClient(url, api_key=api_key) as client:
            return await work(client)

    return asyncio.run(with_client())


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@_api_options
@click.option("--endpoint", type=click.Choice(ENDPOINTS), help="Default: the url of the first line.")
@click.option(
    "--deadline", default="24h", show_default=True, metavar="DURATION", help="Such as 45s, 90m, 24h."
)
@click.option("--metadata", multiple=True, metavar="KEY=VALUE", help="Kept with the batch; may be repeated.")
@click.option("--wait", is_flag=True, help="Stay until the batch has ended, with a progress bar.")
@_json_option
def submit(
    file: Path,
    url: str,
    api_key: str | None,
    endpoint: str | None,
    deadline: str,
    metadata: tuple[str, ...],
    wait: bool,
    as_json: bool,
) -> None:
    """Send an input file (one request per line, in OpenAI's batch format) and create a batch.

    Exit code with --wait: 0 completed without failed lines; 1 otherwise.

    Example: extproc batch submit requests.jsonl --deadline 45m --wait
    """
    if parse_window(deadline) is None:
        raise click.BadParameter("give a duration such as 45s, 90m or 24h", param_hint="--deadline")
    pairs = dict(_pair(text) for text in metadata)
    chosen = endpoint or _endpoint_of(file)

    async def work(client: BatchesClient) -> JsonObject:
        uploaded = await client.upload(file)
        batch = await client.create(uploaded["id"], chosen, deadline, pairs or None)
        if wait:
            _console.print(f"{batch['id']} submitted")
            return await wait_for_end(client, batch["id"], SystemClock(), _console)
        return batch

    batch = _run(url, api_key, work)
    _print_batch(batch, as_json)
    if wait and (batch["status"] != "completed" or batch["request_counts"]["failed"]):
        sys.exit(1)


def _pair(text: str) -> tuple[str, str]:
    key, found, value = text.partition("=")
    if not found or not key:
        raise click.BadParameter(f"{text!r} is not KEY=VALUE", param_hint="--metadata")
    return key, value


def _endpoint_of(file: Path) -> str:
    with file.open("rb") as source:
        while (raw := source.readline(_MAX_FIRST_LINE_BYTES)) and not raw.strip():
            pass
    if not raw:
        raise click.BadParameter(f"{file} has no requests", param_hint="FILE")
    try:
        url = json.loads(raw)["url"]
    except (ValueError, TypeError, KeyError) as error:
        raise click.BadParameter(
            f"{file}: the first line has no url; give --endpoint", param_hint="FILE"
        ) from error
    if url not in ENDPOINTS:
        raise click.BadParameter(f"{file}: url {url!r} is none of {', '.join(ENDPOINTS)}", param_hint="FILE")
    return str(url)


@click.command()
@click.argument("batch_id", required=False)
@_api_options
@click.option("--limit", type=click.IntRange(1, 100), default=20, show_default=True, help="How many to list.")
@click.option("--wait", is_flag=True, help="Stay until the batch has ended, with a progress bar.")
@_json_option
def status(
    batch_id: str | None, url: str, api_key: str | None, limit: int, wait: bool, as_json: bool
) -> None:
    """Show one batch, or list the newest.

    Example: extproc batch status batch_0123 --wait
    """
    if batch_id is None:
        batches = _run(url, api_key, lambda client: client.list(limit))
        if as_json:
            click.echo(json.dumps(batches, indent=1))
        else:
            Console().print(_table(batches))
        return

    async def work(client: BatchesClient) -> JsonObject:
        if wait:
            return await wait_for_end(client, batch_id, SystemClock(), _console)
        return await client.get(batch_id)

    _print_batch(_run(url, api_key, work), as_json)


@click.command()
@click.argument("batch_id")
@_api_options
@_json_option
def cancel(batch_id: str, url: str, api_key: str | None, as_json: bool) -> None:
    """End a batch: nothing more is sent, and what is finished can be downloaded.

    Example: extproc batch cancel batch_0123
    """
    _print_batch(_run(url, api_key, lambda client: client.cancel(batch_id)), as_json)


@click.command()
@click.argument("batch_id")
@_api_options
@click.option("--output", type=click.Path(path_type=Path), help="Where results go. Default: standard output.")
@click.option(
    "--errors", type=click.Path(path_type=Path), help="Where failed lines go. Default: they are counted."
)
def results(batch_id: str, url: str, api_key: str | None, output: Path | None, errors: Path | None) -> None:
    """Download the results of a batch that has ended.

    Example: extproc batch results batch_0123 --output results.jsonl --errors errors.jsonl
    """

    async def work(client: BatchesClient) -> JsonObject:
        batch = await client.get(batch_id)
        if batch["status"] not in FINAL:
            hint = f"see `extproc batch status {batch_id} --wait` or `extproc batch tail {batch_id}`"
            raise ExtprocError(f"the batch is {batch['status']}; {hint}")
        await _download(client, batch["output_file_id"], output)
        if errors is not None:
            await _download(client, batch["error_file_id"], errors)
        return batch

    batch = _run(url, api_key, work)
    counts = batch["request_counts"]
    click.echo(f"{counts['completed']} results, {counts['failed']} failed lines", err=True)


async def _download(client: BatchesClient, file_id: str | None, target: Path | None) -> None:
    sink: BinaryIO = sys.stdout.buffer if target is None else target.open("wb")
    try:
        if file_id is not None:
            async for chunk in client.download(file_id):
                sink.write(chunk)
    finally:
        if target is not None:
            sink.close()


@click.command()
@click.argument("batch_id")
@_api_options
def tail(batch_id: str, url: str, api_key: str | None) -> None:
    """Print the results of a batch as they come, until it has ended; each line once.

    Example: extproc batch tail batch_0123
    """

    async def work(client: BatchesClient) -> None:
        clock = SystemClock()
        after, printed = 0, set[str]()
        while True:
            page = await client.tail(batch_id, after)
            for row in page["data"]:
                after = row["sequence"]
                printed.add(row["result"]["custom_id"])
                click.echo(json.dumps(row["result"], ensure_ascii=False))
            if not page["data"]:
                if page["status"] in FINAL:
                    break
                await clock.sleep_until(clock.now() + POLL_S)
        await _print_rest(client, batch_id, printed)

    _run(url, api_key, work)


async def _print_rest(client: BatchesClient, batch_id: str, printed: set[str]) -> None:
    """What came between the last look and the end is in the files now."""
    batch = await client.get(batch_id)
    for file_id in filter(None, (batch["output_file_id"], batch["error_file_id"])):
        pending = b""
        async for chunk in client.download(file_id):
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                if json.loads(line)["custom_id"] not in printed:
                    click.echo(line.decode())


def _print_batch(batch: JsonObject, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(batch, indent=1))
        return
    Console().print(_table([batch]))
    for error in (batch.get("errors") or {}).get("data", []):
        where = f"line {error['line']}: " if error.get("line") else ""
        click.echo(f"  {where}{error['message']} ({error['code']})", err=True)


def _table(batches: list[JsonObject]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 1))
    for heading in ("batch", "status"):
        table.add_column(heading, no_wrap=True)  # the id is what the other commands want
    for heading in ("done", "failed", "total", "in\nflight", "evicted", "redone\ntokens"):
        table.add_column(heading, justify="right", overflow="fold")
    for batch in batches:
        counts, more = batch["request_counts"], batch.get("extproc", {})
        totals = more.get("totals", {})
        row = (
            batch["status"],
            counts["completed"],
            counts["failed"],
            counts["total"],
            more.get("counts", {}).get("leased", 0),
            totals.get("evictions", 0),
            totals.get("redone_tokens", 0),
        )
        table.add_row(batch["id"], *(str(value) for value in row))
    return table
