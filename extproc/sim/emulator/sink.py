"""Where the tokens of one choice go: straight onto the connection when streamed, else kept for the body.

Written for many streams on one core: a token costs one small JSON text and one write, no task and no queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from extproc.clock import Clock
from extproc.sim.emulator.answer import Answer, Delta
from extproc.sim.emulator.chunks import StreamShape, error_chunks
from extproc.sim.emulator.metrics import EmulatorMetrics


class Connection:
    """The open response of one streamed request; frames its chunks for HTTP/1.1 itself."""

    __slots__ = ("_is_chunked", "_transport")

    def __init__(self, transport: asyncio.WriteTransport, *, is_chunked: bool) -> None:
        self._transport = transport
        self._is_chunked = is_chunked

    def write(self, data: bytes) -> None:
        if not data or self._transport.is_closing():
            return
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._is_chunked else data)


class AnswerSink:
    """One choice: counts its latencies, writes its chunks, and tells its request when it is complete."""

    def __init__(
        self,
        answer: Answer,
        *,
        shape: StreamShape | None,
        connection: Connection | None,
        metrics: EmulatorMetrics,
        clock: Clock,
        on_complete: Callable[[], None],
    ) -> None:
        self.answer = answer
        self.ending: Delta | None = None
        self.failure: str | None = None
        self._shape = shape
        self._connection = connection
        self._metrics = metrics
        self._clock = clock
        self._on_complete = on_complete
        self._began_at = clock.now()
        self._latest_at = 0.0

    def on_token(self) -> bool:
        delta = self.answer.next_delta()
        now = self._clock.now()
        is_first = self._latest_at == 0.0
        if is_first:
            self._metrics.ttft.observe(now - self._began_at)
        else:
            self._metrics.gaps.observe(now - self._latest_at)
        self._latest_at = now
        if self._shape is not None and self._connection is not None:
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
        if self._connection is not None:
            self._connection.write(error_chunks(message))
        self._on_complete()
