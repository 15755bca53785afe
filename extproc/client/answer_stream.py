"""One streamed exchange with a server: its pieces as they come, and one definite end.

The end is read strictly: only a finish reason is success, whatever else the server says.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType

import aiohttp

from extproc.client.answers import (
    NO_HEADERS,
    DecodedEvent,
    EndKind,
    Piece,
    StreamEnd,
    UsageCounts,
    decode_error,
    decode_event,
)
from extproc.clock import Clock
from extproc.errors import InvariantError
from extproc.formats.sse import DONE, SseSplitter

ERROR_BODY_BYTES = 64 * 1024
"""So much of a refusal is kept."""


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Seconds to wait for response headers, for each further read, and for all of it; None: for ever."""

    headers_s: float | None
    stall_s: float | None
    total_s: float | None


class AnswerStream:
    """One exchange: an async context manager and an async iterator of pieces.

    `end` is set when the iteration has stopped by itself; `sent_at` is when the request was handed to the
    transport, `headers_at` when response headers came.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        clock: Clock,
        url: str,
        body: bytes,
        headers: Mapping[str, str],
        limits: TimeLimits,
    ) -> None:
        self._session = session
        self._clock = clock
        self._url = url
        self._body = body
        self._headers = headers
        self._limits = limits
        self._response: aiohttp.ClientResponse | None = None
        self._splitter = SseSplitter()
        self._usage: UsageCounts | None = None
        self._finish_reasons: dict[int, str | None] = {}
        self._pending: deque[Piece] = deque()
        self._end: StreamEnd | None = None
        self.sent_at = 0.0
        self.headers_at: float | None = None

    @property
    def end(self) -> StreamEnd:
        """How it ended; only there after the iteration has stopped by itself."""
        if self._end is None:
            raise InvariantError("the stream has not ended yet")
        return self._end

    @property
    def status(self) -> int:
        """The response's status; 0 before its headers."""
        return self._response.status if self._response is not None else 0

    @property
    def headers(self) -> Mapping[str, str]:
        """The response's headers in lower case; empty before they came."""
        return lowered(self._response.headers) if self._response is not None else NO_HEADERS

    async def __aenter__(self) -> AnswerStream:
        self.sent_at = self._clock.now()
        try:
            async with asyncio.timeout(self._wait_s()):
                self._response = await self._session.post(
                    self._url, data=self._body, headers={"content-type": "application/json", **self._headers}
                )
        except TimeoutError:
            self._finish_with(self._timeout_kind(), "no response headers in time")
        except (aiohttp.ClientError, OSError) as error:
            self._finish_with(EndKind.UNREACHABLE, describe(error))
        else:
            self.headers_at = self._clock.now()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._response is not None:
            # Closing, not releasing: an unread body means that we are no longer interested in it.
            self._response.close()

    def __aiter__(self) -> AnswerStream:
        return self

    async def __anext__(self) -> Piece:
        while not self._pending:
            if self._end is not None:
                raise StopAsyncIteration
            await self._advance()
        return self._pending.popleft()

    async def _advance(self) -> None:
        """Read once: new pieces, the end, or neither (a cut event)."""
        response = self._response
        assert response is not None  # without a response `_end` was set on entering
        if not 200 <= response.status < 300:
            await self._refuse(response)
            return
        chunk = await self._read(response)
        at = self._clock.now()
        for payload in self._splitter.feed(chunk) if chunk else self._splitter.finish():
            if self._end is None:
                self._pending.extend(self._take(payload, at))
        if not chunk and self._end is None:
            self._finish_with(
                self._kind_at_eof(EndKind.TRUNCATED), "the stream ended without a finish reason"
            )

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        """The next bytes; empty at the end, with `_end` set when that end is a failure."""
        try:
            async with asyncio.timeout(self._wait_s()):
                return await response.content.readany()
        except TimeoutError:
            kind = self._timeout_kind()
            self._finish_with(self._kind_at_eof(kind), f"nothing arrived in time ({kind.value})")
        except (aiohttp.ClientError, OSError) as error:
            self._finish_with(self._kind_at_eof(EndKind.RESET), describe(error))
        return b""

    def _take(self, payload: bytes, at: float) -> tuple[Piece, ...]:
        if payload == DONE:
            self._finish_with(self._kind_at_eof(EndKind.TRUNCATED), "[DONE] without a finish reason")
            return ()
        try:
            event: DecodedEvent = decode_event(payload, at)
        except ValueError as error:
            self._finish_with(EndKind.ERROR_EVENT, str(error))
            return ()
        if event.usage is not None:
            self._usage = event.usage
        for piece in event.pieces:
            self._finish_reasons[piece.index] = piece.finish_reason or self._finish_reasons.get(piece.index)
        if event.error is not None:
            message, code = event.error
            self._finish_with(EndKind.ERROR_EVENT, message, code)
        return event.pieces

    def _kind_at_eof(self, failure: EndKind) -> EndKind:
        reasons = self._finish_reasons.values()
        if not reasons or not all(reasons):
            return failure
        return EndKind.ABORTED if "abort" in reasons else EndKind.FINISHED

    async def _refuse(self, response: aiohttp.ClientResponse) -> None:
        raw = b""
        try:
            async with asyncio.timeout(self._wait_s()):
                raw = await response.content.read(ERROR_BODY_BYTES)
        except (TimeoutError, aiohttp.ClientError, OSError):
            pass  # the status alone says that it was refused
        message, code = decode_error(raw) or ("", None)
        self._finish_with(EndKind.REFUSED, message or f"status {response.status}", code, raw)

    def _finish_with(self, kind: EndKind, message: str, code: str | None = None, body: bytes = b"") -> None:
        self._end = StreamEnd(
            kind=kind,
            at=self._clock.now(),
            status=self.status,
            headers=self.headers,
            message="" if kind is EndKind.FINISHED else message,
            error_code=code,
            body=body,
            usage=self._usage,
        )

    def _wait_s(self) -> float | None:
        patience_s = self._limits.headers_s if self._response is None else self._limits.stall_s
        waits = [] if patience_s is None else [patience_s]
        if self._limits.total_s is not None:
            waits.append(self.sent_at + self._limits.total_s - self._clock.now())
        return max(0.0, min(waits)) if waits else None

    def _timeout_kind(self) -> EndKind:
        total_s = self._limits.total_s
        is_over = total_s is not None and self._clock.now() >= self.sent_at + total_s
        return EndKind.TIMED_OUT if is_over else EndKind.STALLED


def lowered(headers: Mapping[str, str]) -> Mapping[str, str]:
    """The headers with their names in lower case."""
    return {name.lower(): value for name, value in headers.items()}


def describe(error: BaseException) -> str:
    """A transport error for people; some have no text of their own."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
