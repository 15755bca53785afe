"""Splits the bytes of an HTTP/1.1 connection into responses to GET requests, in bounded memory.

Made for scraping: the fields that matter are the status and how the body ends. Pieces of a body are handed
out as they come and never kept. Must not know sockets, or what is in a body.
"""

from __future__ import annotations

from enum import Enum

from extproc.errors import PeerProtocolError

MAX_HEAD_BYTES = 16_384
_MAX_CHUNK_LINE_BYTES = 1024
_NO_BODY = frozenset({204, 304})


class _Await(Enum):
    HEAD = "head"
    LENGTH = "length"
    CLOSE = "close"
    CHUNK_SIZE = "chunk size"
    CHUNK_DATA = "chunk data"
    CHUNK_END = "chunk end"
    TRAILERS = "trailers"
    NOTHING = "nothing"


class HttpResponseReader:
    """One response after the other. Feed bytes, take body pieces; `is_complete` tells the end.

    `start()` begins the next response. Bytes that come when none is awaited, a head that is no HTTP/1 head,
    and a body that ends early raise `PeerProtocolError`: the connection is of no use then.
    """

    __slots__ = ("_awaits", "_buffer", "_left", "body_bytes", "keeps_open", "status")

    def __init__(self) -> None:
        self._awaits = _Await.NOTHING
        self._buffer = b""
        self._left = 0
        self.status = 0
        self.body_bytes = 0
        self.keeps_open = True

    @property
    def is_complete(self) -> bool:
        """True between a whole response and the next `start()`."""
        return self._awaits is _Await.NOTHING

    def start(self) -> None:
        """A request was sent: its response is what comes next."""
        self._awaits = _Await.HEAD
        self._buffer = b""
        self.status = 0
        self.body_bytes = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The pieces of the body in `data`, in order."""
        if self._awaits is _Await.LENGTH and len(data) <= self._left:  # the usual case, without a copy
            self._left -= len(data)
            self.body_bytes += len(data)
            if not self._left:
                self._awaits = _Await.NOTHING
            return [data]
        pieces: list[bytes] = []
        data, self._buffer = self._buffer + data, b""
        while data:
            data = self._step(data, pieces)
        self.body_bytes += sum(map(len, pieces))
        return pieces

    def end(self) -> None:
        """The peer has closed the connection: right only where the close ends the body."""
        if self._awaits is _Await.CLOSE:
            self._awaits = _Await.NOTHING
        elif self._awaits is not _Await.NOTHING:
            raise PeerProtocolError(
                f"closed the connection while its response lacked the {self._awaits.value}"
            )

    def _step(self, data: bytes, pieces: list[bytes]) -> bytes:
        """Consume one element of `data`; returns the rest (b"" also when more bytes are needed)."""
        match self._awaits:
            case _Await.HEAD:
                return self._head(data)
            case _Await.LENGTH | _Await.CHUNK_DATA:
                return self._counted(data, pieces)
            case _Await.CLOSE:
                pieces.append(data)
                return b""
            case _Await.CHUNK_SIZE | _Await.CHUNK_END | _Await.TRAILERS:
                return self._chunk_line(data)
            case _Await.NOTHING:
                raise PeerProtocolError("sent bytes that no request asked for")

    def _counted(self, data: bytes, pieces: list[bytes]) -> bytes:
        pieces.append(data[: self._left])
        rest = data[self._left :]
        self._left -= len(pieces[-1])
        if not self._left:
            self._awaits = _Await.NOTHING if self._awaits is _Await.LENGTH else _Await.CHUNK_END
        return rest

    def _head(self, data: bytes) -> bytes:
        end = data.find(b"\r\n\r\n", 0, MAX_HEAD_BYTES + 4)
        if end < 0:
            if len(data) > MAX_HEAD_BYTES or not b"HTTP/1.".startswith(data[:7]):
                raise PeerProtocolError("answered something that is not HTTP/1")
            self._buffer = data
            return b""
        status_line, *fields = data[:end].split(b"\r\n")
        parts = status_line.split(b" ", 2)
        if (
            len(parts) < 2
            or not parts[0].startswith(b"HTTP/1.")
            or len(parts[1]) != 3
            or not parts[1].isdigit()
        ):
            raise PeerProtocolError("answered something that is not HTTP/1")
        self.status = int(parts[1])
        if 100 <= self.status < 200:
            return data[end + 4 :]
        self._body_rule(fields, is_old=parts[0] == b"HTTP/1.0")
        return data[end + 4 :]

    def _body_rule(self, fields: list[bytes], *, is_old: bool) -> None:
        length: int | None = None
        is_chunked = False
        self.keeps_open = not is_old
        for field in fields:
            name, _, value = field.partition(b":")
            lowered = name.lower()
            if lowered == b"content-length":
                value = value.strip()
                if not value.isdigit() or len(value) > 15 or length not in (None, int(value)):
                    raise PeerProtocolError("sent an unreadable content-length")
                length = int(value)
            elif lowered == b"transfer-encoding":
                is_chunked = value.strip().lower() == b"chunked"
                if not is_chunked:
                    raise PeerProtocolError("used a transfer-encoding other than chunked")
            elif lowered == b"connection":
                self.keeps_open = b"close" not in value.lower() and (
                    self.keeps_open or b"keep-alive" in value.lower()
                )
        if is_chunked:
            self._awaits = _Await.CHUNK_SIZE
        elif length is not None or self.status in _NO_BODY:
            self._left = length if length is not None and self.status not in _NO_BODY else 0
            self._awaits = _Await.LENGTH if self._left else _Await.NOTHING
        else:
            self._awaits, self.keeps_open = _Await.CLOSE, False

    def _chunk_line(self, data: bytes) -> bytes:
        end = data.find(b"\r\n", 0, _MAX_CHUNK_LINE_BYTES + 2)
        if end < 0:
            if len(data) > _MAX_CHUNK_LINE_BYTES:
                raise PeerProtocolError("sent a broken chunk of its body")
            self._buffer = data
            return b""
        line = data[:end]
        if self._awaits is _Await.CHUNK_END:
            if line:
                raise PeerProtocolError("sent a broken chunk of its body")
            self._awaits = _Await.CHUNK_SIZE
        elif self._awaits is _Await.TRAILERS:
            self._awaits = _Await.TRAILERS if line else _Await.NOTHING
        else:
            self._left = _chunk_size(line)
            self._awaits = _Await.CHUNK_DATA if self._left else _Await.TRAILERS
        return data[end + 2 :]


def _chunk_size(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    if not digits or len(digits) > 12 or digits.strip(b"0123456789abcdefABCDEF"):
        raise PeerProtocolError("sent a broken chunk of its body")
    return int(digits, 16)
