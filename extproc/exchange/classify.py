"""What kind of HTTP request the headers describe: which API, which body, how long. Pure functions of
headers.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import msgspec

from extproc.exchange import names
from extproc.formats.openai import ApiKind, api_kind

_MAX_DIGITS = 15


class RequestClass(msgspec.Struct, frozen=True, gc=False):
    """`is_json`: the body may be read as JSON.

    `is_upgrade` is a WebSocket handshake. `is_odd_upgrade`: an Upgrade header with a body. Its end would
    never be told, and it must not be a way around the queue.
    """

    kind: ApiKind
    is_json: bool
    is_compressed: bool
    is_upgrade: bool
    is_odd_upgrade: bool


UNKNOWN = RequestClass(ApiKind.OPAQUE, False, False, False, False)


def classify(headers: Mapping[str, str]) -> RequestClass:
    """Look at the path, the media type and the encoding."""
    get = headers.get
    return _classify(
        get(":path", ""),
        get(":method", ""),
        get("content-type", ""),
        get("content-encoding", "identity"),
        "upgrade" in headers,
    )


@lru_cache(maxsize=1024)
def _classify(
    path: str, method: str, content_type: str, content_encoding: str, has_upgrade: bool
) -> RequestClass:
    """Most requests look like one before; what clients make up can't fill more than the cache."""
    media_type = content_type.partition(";")[0].strip().lower()
    return RequestClass(
        kind=api_kind(path),
        is_json=not media_type.startswith(("multipart/", "audio/", "image/", "video/"))
        and media_type != "application/octet-stream",
        is_compressed=content_encoding.lower() not in ("", "identity"),
        is_upgrade=method == "CONNECT" or (has_upgrade and method == "GET"),
        is_odd_upgrade=has_upgrade and method not in ("GET", "CONNECT"),
    )


def declared_bytes(headers: Mapping[str, str]) -> int | None:
    """The body's announced length."""
    length = headers.get("content-length", "")
    if length.isascii() and length.isdigit() and len(length) <= _MAX_DIGITS:
        return int(length)
    return None


class TraceIds(NamedTuple):
    """What ties a request to its caller's records; both are the client's own words."""

    request_id: str
    traceparent: str


NO_TRACE = TraceIds("", "")


def read_trace(headers: Mapping[str, str]) -> TraceIds:
    """The request id and the W3C trace context."""
    return TraceIds(headers.get(names.REQUEST_ID, ""), headers.get(names.TRACEPARENT, ""))
