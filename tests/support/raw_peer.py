"""Plays Envoy's part of thousands of ext_proc streams, for a hundredth of what a gRPC client would cost.

It speaks just enough HTTP/2: prebuilt frames go out, of what comes in it looks at the frame's head and at the
first byte of a message, which tells its kind. So a test measures the server, on a machine that both share.
"""

from __future__ import annotations

import asyncio
import struct
from collections import Counter, deque
from collections.abc import Callable
from enum import Enum

from extproc.wire.codec import SERVICE
from tests.support.ext_proc_peer import BODY, HEADERS, RESPONSE

_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _ACK, _END_HEADERS = 1, 1, 4
_KINDS = {0x0A: "request_headers", 0x1A: "request_body", 0x12: "response_headers", 0x3A: "immediate_response"}


class Stage(Enum):
    """What a stream has been answered with so far."""

    ASKING = "asking"
    WAITING = "waiting"
    """For a decision: queued, or not decided yet."""
    DISPATCHED = "dispatched"
    RESPONDING = "responding"
    ANSWERED = "answered"
    """By the server itself: evicted or refused."""
    ENDED = "ended"


def _frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream_id) + payload


def _message(message: bytes) -> bytes:
    return b"\0" + struct.pack(">I", len(message)) + message


def _request_head() -> bytes:
    """The header block, all literal, so that it is the same for every stream."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": f"/{SERVICE}/Process",
        ":authority": "extproc",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    return b"".join(
        bytes([0, len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in fields.items()
    )


class RawPeer(asyncio.Protocol):
    """One connection of many streams; `stages` tells how far each is, `counts` how many are there."""

    def __init__(self, counts: Counter[Stage]) -> None:
        self.stages: dict[int, Stage] = {}
        self.lost_by = ""
        """How the connection ended, or that it is about to: empty while it is whole."""
        self.resets = 0
        self.answers_pings = True
        self.responds = True
        """Whether a dispatched request's response headers come at once."""
        self._counts = counts
        self._head = _request_head()
        self._bodies: dict[int, bytes] = {}
        self._next_id = 1
        self._window = 65535
        self._held: deque[bytes] = deque()
        self._received = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        settings = _frame(_SETTINGS, 0, 0, struct.pack(">HI", 4, 2**31 - 1))
        window = _frame(_WINDOW, 0, 0, struct.pack(">I", 2**30))
        transport.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings + window)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost_by = self.lost_by or f"closed: {exc!r}"

    def open(self, headers: bytes = HEADERS, body: bytes = BODY) -> int:
        """Start a request; its body follows when the server has answered the headers."""
        stream_id, self._next_id = self._next_id, self._next_id + 2
        self._bodies[stream_id] = body
        self._move(stream_id, Stage.ASKING)
        self._write(_frame(_HEADERS, _END_HEADERS, stream_id, self._head))
        self._send(stream_id, headers)
        return stream_id

    def finish(self, stream_id: int) -> None:
        """Half-close and reset, as Envoy does with a stream that it is done with."""
        end = _frame(_DATA, _END_STREAM, stream_id)
        self._write(end + _frame(_RESET, 0, stream_id, struct.pack(">I", 0)))
        self._move(stream_id, Stage.ENDED)

    def reset(self, stream_id: int) -> None:
        """Cancel, as Envoy does when its client has left."""
        self._write(_frame(_RESET, 0, stream_id, struct.pack(">I", 8)))
        self._move(stream_id, Stage.ENDED)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        received = self._received + data
        at = 0
        while len(received) - at >= 9:
            length = int.from_bytes(received[at : at + 3])
            if len(received) - at < 9 + length:
                break
            kind, flags, stream_id = struct.unpack_from(">BBI", received, at + 3)
            self._take(kind, flags, stream_id, received[at + 9 : at + 9 + length])
            at += 9 + length
        self._received = received[at:]

    def _take(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if kind == _DATA and len(payload) > 5:
            self._answered(stream_id, _KINDS[payload[5]])
        elif kind == _RESET:
            self.resets += 1
        elif kind == _WINDOW and stream_id == 0:
            self._window += int.from_bytes(payload)
            while self._held and self._window >= len(self._held[0]):
                self._write_data(self._held.popleft())
        elif kind == _PING and not self.answers_pings:
            return
        elif kind in (_SETTINGS, _PING) and not flags & _ACK:
            self._write(_frame(kind, _ACK, 0, payload if kind == _PING else b""))
        elif kind == _GOAWAY:
            last, code = struct.unpack_from(">II", payload)
            self.lost_by = f"GOAWAY: error {code}, {payload[8:]!r}, last stream {last} of {self._next_id - 2}"

    def _answered(self, stream_id: int, kind: str) -> None:
        if self.stages[stream_id] is Stage.ENDED:
            return  # it crossed our end of the stream
        match kind:
            case "request_headers":
                self._send(stream_id, self._bodies.pop(stream_id))
                self._move(stream_id, Stage.WAITING)
            case "request_body":
                self._move(stream_id, Stage.DISPATCHED)
                if self.responds:
                    self._send(stream_id, RESPONSE)
            case "response_headers":
                self._move(stream_id, Stage.RESPONDING)
            case _:
                self._move(stream_id, Stage.ANSWERED)
                self._write(
                    _frame(_DATA, _END_STREAM, stream_id) + _frame(_RESET, 0, stream_id, struct.pack(">I", 0))
                )

    def _move(self, stream_id: int, stage: Stage) -> None:
        before = self.stages.get(stream_id)
        if before is not None:
            self._counts[before] -= 1
        self.stages[stream_id] = stage
        self._counts[stage] += 1

    def _send(self, stream_id: int, message: bytes) -> None:
        frame = _frame(_DATA, 0, stream_id, _message(message))
        if self._held or self._window < len(frame):
            self._held.append(frame)
        else:
            self._write_data(frame)

    def _write_data(self, frame: bytes) -> None:
        self._window -= len(frame) - 9
        self._write(frame)

    def _write(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)


class RawPeers:
    """Several connections to one server, counted together."""

    def __init__(self) -> None:
        self.counts: Counter[Stage] = Counter()
        self.peers: list[RawPeer] = []

    @classmethod
    async def connect(cls, port: int, connections: int) -> RawPeers:
        found = cls()
        loop = asyncio.get_running_loop()
        for _ in range(connections):
            _, peer = await loop.create_connection(lambda: RawPeer(found.counts), "127.0.0.1", port)
            found.peers.append(peer)
        return found

    def in_stage(self, stage: Stage) -> list[tuple[RawPeer, int]]:
        """All streams that are there, the oldest of each connection first."""
        return [(peer, number) for peer in self.peers for number, at in peer.stages.items() if at is stage]

    async def reach(self, condition: Callable[[Counter[Stage]], bool], timeout_s: float = 60.0) -> None:
        """Return once the counts are as wanted. Fails when a connection is lost."""
        async with asyncio.timeout(timeout_s):
            while not condition(self.counts):
                lost = [peer.lost_by for peer in self.peers if peer.lost_by]
                assert not lost, f"{len(lost)} of {len(self.peers)} connections were lost: {lost[0]}"
                await asyncio.sleep(0.005)

    def close(self) -> None:
        for peer in self.peers:
            peer.close()
