"""One kept HTTP/1.1 connection to one model server, for GET requests, one at a time.

A lean client, since the pool may be 256 servers at 200 ms: no task, timer or header object per request.
The caller sends with `get()` when the connection is free and hears of the end once, through its `listener`;
time limits are the caller's too. Must not know what is fetched, or when.
"""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

from extproc.errors import PeerProtocolError
from extproc.formats.http_response import HttpResponseReader


class ResponseListener(Protocol):
    """Hears of one request's answer: pieces of the body in order, then exactly one of the last two."""

    def on_body(self, piece: bytes, status: int) -> str | None:
        """A piece of the body; a text refuses the rest of it (and costs the connection)."""
        ...

    def on_end(self, status: int) -> None:
        """The whole body was handed over."""
        ...

    def on_failure(self, reason: str, *, is_unreachable: bool) -> None:
        """No (whole) answer; `is_unreachable` when not even the connection held."""
        ...


class ScrapeConnection(asyncio.Protocol):
    """The asyncio side of `HttpResponseReader`."""

    __slots__ = ("_listener", "_reader", "_transport", "has_answered")

    def __init__(self, listener: ResponseListener) -> None:
        self._listener = listener
        self._reader = HttpResponseReader()
        self._transport: asyncio.Transport | None = None
        self.has_answered = False
        """A kept connection may be closed by the peer just when the next request goes out."""

    @property
    def is_free(self) -> bool:
        """True when `get` may be called."""
        return self._transport is not None and not self._transport.is_closing() and self._reader.is_complete

    def get(self, request: bytes) -> None:
        """Send a whole GET request."""
        assert self._transport is not None
        self._reader.start()
        self._transport.write(request)

    def abort(self) -> None:
        """Drop the connection; the listener hears nothing more."""
        if self._transport is not None:
            transport, self._transport = self._transport, None
            transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass of it

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            return
        reader = self._reader
        was_awaiting = not reader.is_complete
        try:
            pieces = reader.feed(data)
        except PeerProtocolError as error:
            self.abort()
            if was_awaiting:
                self._listener.on_failure(str(error), is_unreachable=False)
            return
        for piece in pieces:
            refusal = self._listener.on_body(piece, reader.status)
            if refusal is not None:
                self.abort()
                self._listener.on_failure(refusal, is_unreachable=False)
                return
        if reader.is_complete:
            self.has_answered = True
            if not reader.keeps_open:
                self.abort()
            self._listener.on_end(reader.status)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is None:
            return
        self._transport = None
        if self._reader.is_complete:
            return
        try:
            if exc is None:
                self._reader.end()
        except PeerProtocolError as error:
            self._listener.on_failure(str(error), is_unreachable=self._reader.status == 0)
        else:
            if exc is None:
                self._listener.on_end(self._reader.status)
            else:
                self._listener.on_failure(f"the connection broke: {exc}", is_unreachable=True)
