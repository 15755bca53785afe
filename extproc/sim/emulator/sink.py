"""Where the tokens of one choice go: straight onto the connection when streamed, else kept for the body.

Written for many streams on one core: a token costs one small JSON text and one write, no task and no queue.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable

from extproc.clock import Clock
from extproc.sim.emulator.answer import Answer, Delta
from extproc.sim.emulator.chunks import StreamShape, error_chunks
from extproc.sim.emulator.faults import Fault
from extproc.sim.emulator.metrics import EmulatorMetrics

_LINGER_ZERO = struct.pack("ii", 1, 0)


class Connection:
    """The open response of one request; frames the chunks of a streamed one for HTTP/1.1 itself."""

    __slots__ = ("_is_chunked", "_transport")

    def __init__(self, transport: asyncio.Transport, *, is_chunked: bool) -> None:
        self._transport = transport
        self._is_chunked = is_chunked

    def write(self, data: bytes) -> None:
        if not data or self._transport.is_closing():
            return
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data)

    def reset(self) -> None:
        """Break the connection with a TCP reset, losing what has not been sent."""
        sock = self._transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
        self._transport.abort()


class AnswerSink:
    """One choice: counts its latencies, writes its chunks, and tells its request when it is complete.

    `shape` None: not streamed. `strike` is a stream fault that this request suffers.
    """

    def __init__(
        self,
        answer: Answer,
        *,
        shape: StreamShape | None,
        connection: Connection,
        strike: Fault | None,
        metrics: EmulatorMetrics,
        clock: Clock,
        on_complete: Callable[[], None],
    ) -> None:
        self.answer = answer
        self.ending: Delta | None = None
        self.failure: str | None = None
        self._shape = shape
        self._connection = connection
        self._strike = strike
        self._metrics = metrics
        self._clock = clock
        self._on_complete = on_complete
        self._began_at = clock.now()
        self._latest_at: float | None = None

    def on_token(self) -> bool:
        delta = self.answer.next_delta()
        now = self._clock.now()
        is_first = self._latest_at is None
        if self._latest_at is None:
            self._metrics.ttft.observe(now - self._began_at)
        else:
            self._metrics.gaps.observe(now - self._latest_at)
        self._latest_at = now
        if self._strike is not None and self._strikes(self._strike):
            return self._strike.kind == "reset"
        if self._shape is not None:
            data = self._shape.chunk(delta)
            self._connection.write(self._shape.opening() + data if is_first else data)
        if delta.finish_reason is None:
            return False
        self.ending = delta
        self._metrics.finished[delta.finish_reason] += 1
        self._metrics.end_to_end.observe(now - self._began_at)
        self._on_complete()
        return True

    def on_failure(self, message: str) -> None:
        self.failure = message
        if self._shape is not None:
            self._connection.write(error_chunks(message))
        self._on_complete()

    def _strikes(self, fault: Fault) -> bool:
        """Do what `fault` does at this token; True: the token is not shown."""
        produced, after = self.answer.output_tokens, fault["after"]
        if produced <= after:
            return False
        match fault.kind:
            case "garbage":
                if produced == after + 1 and self._shape is not None:
                    self._connection.write(b"data: {this is not JSON\n\n")
                return False
            case "reset":
                self._connection.reset()
        return True
