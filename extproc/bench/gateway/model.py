"""A model server that costs almost nothing: canned streamed answers, in a process of its own.

`python -m extproc.bench.gateway.model` prints its port and serves until its standard input ends. The
number of chunks comes from the request header `x-tokens`; each is written by itself, as an engine does.
"""

from __future__ import annotations

import asyncio
import re
import sys
from typing import cast

import uvloop

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_EVENT = b'data: {"object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":" tok"}}]}\n\n'
_CHUNK = b"%x\r\n%s\r\n" % (len(_EVENT), _EVENT)
_END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"

_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)", re.IGNORECASE)
_TOKENS = re.compile(rb"\r\nx-tokens: (\d+)", re.IGNORECASE)


class _ModelServer(asyncio.Protocol):
    """One connection: reads a request by its content length, answers, and waits for the next."""

    def __init__(self) -> None:
        self._received = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head_end = self._received.find(b"\r\n\r\n")
        if head_end < 0:
            return
        length = _LENGTH.search(self._received, 0, head_end)
        size = head_end + 4 + (int(length.group(1)) if length else 0)
        if len(self._received) < size:
            return
        tokens = _TOKENS.search(self._received, 0, head_end)
        self._received = self._received[size:]
        self._answer(int(tokens.group(1)) if tokens else 1)

    def _answer(self, tokens: int) -> None:
        assert self._transport is not None
        write = self._transport.write
        write(_HEAD)
        for _ in range(tokens):
            write(_CHUNK)
        write(_END)


async def _serve() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_ModelServer, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.buffer.read)


if __name__ == "__main__":
    uvloop.run(_serve())
