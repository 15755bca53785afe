"""Splitting a connection's bytes into responses."""

import pytest

from extproc.errors import PeerProtocolError
from extproc.formats.http_response import MAX_HEAD_BYTES, HttpResponseReader

LENGTH = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3;ext=1\r\nhel\r\n2\r\nlo\r\n0\r\nTrailer: x\r\n\r\n"
)


def read(wire: bytes, size: int) -> tuple[HttpResponseReader, bytes]:
    reader = HttpResponseReader()
    reader.start()
    body = b""
    for start in range(0, len(wire), size):
        body += b"".join(reader.feed(wire[start : start + size]))
    return reader, body


@pytest.mark.parametrize("wire", [LENGTH, CHUNKED, b"HTTP/1.1 100 Continue\r\n\r\n" + LENGTH])
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_a_body_comes_out_whole_however_it_is_cut(wire: bytes, size: int) -> None:
    reader, body = read(wire, size)
    assert (reader.status, body, reader.is_complete, reader.keeps_open) == (200, b"hello", True, True)
    assert reader.body_bytes == 5
    reader.start()
    assert b"".join(reader.feed(wire)) == b"hello"


def test_a_close_ends_a_body_without_length() -> None:
    reader, body = read(b"HTTP/1.0 200 OK\r\n\r\nhello", 4)
    assert (body, reader.is_complete, reader.keeps_open) == (b"hello", False, False)
    reader.end()
    assert reader.is_complete


@pytest.mark.parametrize("wire", [b"", b"HTTP/1.1 200 OK\r\n", LENGTH[:-1], CHUNKED[:-1], CHUNKED[:60]])
def test_half_an_answer_is_told_at_the_close(wire: bytes) -> None:
    reader, _ = read(wire, 1000)
    with pytest.raises(PeerProtocolError, match="closed the connection while"):
        reader.end()


@pytest.mark.parametrize(
    "wire",
    [
        b"\x16\x03\x01\x02\x00",
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: five\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * MAX_HEAD_BYTES,
        LENGTH + b"more",
    ],
)
def test_what_is_not_http_is_refused(wire: bytes) -> None:
    with pytest.raises(PeerProtocolError):
        read(wire, 64)


def test_connection_close_and_empty_bodies() -> None:
    reader, _ = read(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n", 1000)
    assert (reader.status, reader.is_complete, reader.keeps_open) == (204, True, False)
