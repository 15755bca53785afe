"""A small HTTP/2 client (prior knowledge): many streams on one connection, trailers, and resets as
they come.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

import h2.config
import h2.connection
import h2.events


@dataclass
class H2Answer:
    """One stream's answer; `ended` is set when it is whole or reset."""

    stream_id: int
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    was_reset: bool = False
    ended_at: float = 0.0
    started: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def json(self) -> Any:
        return json.loads(self.body)

    async def wait(self, timeout_s: float = 20.0) -> H2Answer:
        async with asyncio.timeout(timeout_s):
            await self.ended.wait()
        return self


class H2Client(asyncio.Protocol):
    """Use `connect`, then `send` and wait for what it returns."""

    def __init__(self) -> None:
        config = h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        self._connection = h2.connection.H2Connection(config)
        self._transport: asyncio.Transport | None = None
        self._answers: dict[int, H2Answer] = {}
        self._unsent: dict[int, tuple[bytes, list[tuple[str, str]] | None]] = {}

    @classmethod
    async def connect(cls, port: int, host: str = "127.0.0.1") -> H2Client:
        _, client = await asyncio.get_running_loop().create_connection(cls, host, port)
        return client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._connection.initiate_connection()
        self._connection.increment_flow_control_window(1 << 30)
        self._flush()

    def data_received(self, data: bytes) -> None:
        for event in self._connection.receive_data(data):
            self._take(event)
        for stream_id in list(self._unsent):
            self._push(stream_id)
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        for answer in self._answers.values():
            if not answer.ended.is_set():
                self._end(answer, was_reset=True)

    def send(
        self,
        path: str,
        body: bytes | dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        *,
        method: str = "POST",
        trailers: list[tuple[str, str]] | None = None,
    ) -> H2Answer:
        """Open a stream; a dict is sent as JSON."""
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        stream_id = self._connection.get_next_available_stream_id()
        answer = self._answers[stream_id] = H2Answer(stream_id)
        fields = [(":method", method), (":path", path), (":scheme", "http"), (":authority", "test")]
        if isinstance(body, dict):
            fields.append(("content-type", "application/json"))
        fields += list((headers or {}).items())
        self._connection.send_headers(stream_id, fields, end_stream=data is None and trailers is None)
        if data is not None or trailers is not None:
            self._unsent[stream_id] = (data or b"", trailers)
            self._push(stream_id)
        self._flush()
        return answer

    def reset(self, answer: H2Answer) -> None:
        """Give the request up."""
        self._connection.reset_stream(answer.stream_id, error_code=8)
        self._flush()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _push(self, stream_id: int) -> None:
        data, trailers = self._unsent.pop(stream_id)
        connection = self._connection
        while data:
            window = connection.local_flow_control_window(stream_id)
            piece = data[: min(window, connection.max_outbound_frame_size)]
            if not piece:
                self._unsent[stream_id] = (data, trailers)
                return
            data = data[len(piece) :]
            connection.send_data(stream_id, piece, end_stream=not data and trailers is None)
        if trailers is not None:
            connection.send_headers(stream_id, trailers, end_stream=True)

    def _take(self, event: h2.events.Event) -> None:
        answer = self._answers.get(getattr(event, "stream_id", 0) or 0)
        if answer is None:
            return
        match event:
            case h2.events.ResponseReceived():
                answer.headers = {str(name): str(value) for name, value in event.headers or []}
                answer.status = int(answer.headers[":status"])
                answer.started.set()
            case h2.events.DataReceived():
                answer.body += event.data or b""
                self._connection.acknowledge_received_data(event.flow_controlled_length, answer.stream_id)
            case h2.events.StreamEnded():
                self._end(answer, was_reset=False)
            case h2.events.StreamReset():
                self._unsent.pop(answer.stream_id, None)
                self._end(answer, was_reset=True)
            case _:
                pass

    def _end(self, answer: H2Answer, *, was_reset: bool) -> None:
        if not answer.ended.is_set():
            answer.was_reset = was_reset
            answer.ended_at = time.monotonic()
            answer.started.set()
            answer.ended.set()

    def _flush(self) -> None:
        assert self._transport is not None
        self._transport.write(self._connection.data_to_send())
