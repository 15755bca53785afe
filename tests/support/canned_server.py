"""A very cheap HTTP server in its own process: every request gets the same streamed answer after a delay.

It measures clients, so it must cost less than they do: no parsing beyond the content length.
Run as `python -m tests.support.canned_server TOKENS DELAY_S`; it prints its port.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import cast

import uvloop


def _chunk(payload: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(payload), payload)


def _answer(tokens: int) -> bytes:
    parts = [b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"]
    for index in range(tokens):
        reason = "length" if index == tokens - 1 else None
        choice = {"index": 0, "text": " a", "token_ids": [index], "finish_reason": reason}
        parts.append(_chunk(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"))
    parts.append(_chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
    return b"".join(parts)


class _Connection(asyncio.Protocol):
    def __init__(self, answer: bytes, delay_s: float) -> None:
        self._answer = answer
        self._delay_s = delay_s
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio.Transport.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while True:
            head, separator, rest = self._buffer.partition(b"\r\n\r\n")
            if not separator:
                return
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or b"0")
            if len(rest) < length:
                return
            self._buffer = rest[length:]
            if self._delay_s:
                asyncio.get_running_loop().call_later(self._delay_s, self._write)
            else:
                self._write()

    def _write(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(self._answer)


async def _serve(tokens: int, delay_s: float) -> None:
    loop = asyncio.get_running_loop()
    answer = _answer(tokens)
    server = await loop.create_server(lambda: _Connection(answer, delay_s), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1]), float(sys.argv[2])))
