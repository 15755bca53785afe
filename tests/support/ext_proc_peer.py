"""Plays Envoy's part of ext_proc streams against a running server: many at once, as cheaply as it goes.

Messages go out as bytes that were serialised once; of the answers only the kind is looked at.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import grpc

from extproc.wire import ext_proc_pb2 as pb
from extproc.wire.codec import SERVICE


def request_headers(headers: dict[str, str] | None = None, path: str = "/v1/completions") -> bytes:
    """The first message of a stream in lean mode."""
    message = pb.ProcessingRequest()
    message.protocol_config.request_body_mode = pb.ProcessingMode.BUFFERED
    found = {":path": path, ":method": "POST", "content-type": "application/json", **(headers or {})}
    for name, value in found.items():
        message.request_headers.headers.headers.add(key=name, raw_value=value.encode())
    return message.SerializeToString()


def request_body(**fields: Any) -> bytes:
    body = json.dumps({"model": "m", "prompt": "a", **fields}).encode()
    return pb.ProcessingRequest(request_body=pb.HttpBody(body=body, end_of_stream=True)).SerializeToString()


def _response_headers() -> bytes:
    message = pb.ProcessingRequest()
    message.response_headers.headers.headers.add(key=":status", raw_value=b"200")
    return message.SerializeToString()


HEADERS, BODY, RESPONSE = request_headers(), request_body(), _response_headers()


class PeerStream:
    """One stream. The server's answers must be read in turn."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._call = channel.stream_stream(f"/{SERVICE}/Process")()

    async def ask(self, headers: bytes = HEADERS, body: bytes = BODY) -> None:
        """Send a request; when this returns the server has not decided about it yet."""
        await self._call.write(headers)
        await self.answer()
        await self._call.write(body)

    async def answer(self) -> str:
        """The kind of the server's next message: `request_body` for a dispatch, or `immediate_response`."""
        message = await self._call.read()
        assert isinstance(message, bytes), f"the stream ended: {message!r}"
        kind = pb.ProcessingResponse.FromString(message).WhichOneof("response")
        assert kind is not None
        return str(kind)

    async def respond(self) -> None:
        """The model server's response headers have come."""
        await self._call.write(RESPONSE)
        assert await self.answer() == "response_headers"

    async def finish(self) -> None:
        """The response has ended: half-close, and wait for the server's end."""
        await self._call.done_writing()
        assert await self._call.read() is grpc.aio.EOF

    def reset(self) -> None:
        """End the stream at once, as Envoy does for a client that left."""
        self._call.cancel()


def connect(port: int, connections: int = 1) -> list[grpc.aio.Channel]:
    """So many connections, each of its own. Close them."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
    return [grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) for _ in range(connections)]


async def run_many(
    play: Callable[[grpc.aio.Channel], Coroutine[Any, Any, None]],
    count: int,
    *,
    channels: list[grpc.aio.Channel],
    concurrency: int = 32,
) -> None:
    """Run `play` for `count` streams, `concurrency` at a time, spread over the channels."""
    numbers = iter(range(count))

    async def work() -> None:
        for number in numbers:
            await play(channels[number % len(channels)])

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(work())
