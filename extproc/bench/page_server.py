"""A process that plays the metrics ports of many model servers, for measuring a scraper from outside.

`python -m extproc.bench.page_server COUNT` prints the ports as a JSON list and serves until its standard
input ends. Must not share a process with what it measures: its own work would be counted.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import cast

import uvloop

from extproc.bench.metrics_pages import metrics_page

_PAGES = 64


class _PageServer(asyncio.Protocol):
    """Answers each GET with the next page; anything on /v1/models with 404."""

    _answers: tuple[bytes, ...] = ()
    _missing = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"

    def __init__(self) -> None:
        self._turn = id(self) % _PAGES
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass of it

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._turn = (self._turn + 1) % _PAGES
        self._transport.write(self._missing if b"/v1/models" in data else self._answers[self._turn])


async def _serve(count: int) -> None:
    pages = [metrics_page(turn) for turn in range(_PAGES)]
    _PageServer._answers = tuple(
        b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/plain; version=0.0.4\r\n"
        b"content-length: %d\r\n\r\n%s" % (len(page), page)
        for page in pages
    )
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(_PageServer, "127.0.0.1", 0) for _ in range(count)]
    ports = [server.sockets[0].getsockname()[1] for server in servers]
    print(json.dumps(ports), flush=True)
    await loop.run_in_executor(None, sys.stdin.buffer.read)


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
