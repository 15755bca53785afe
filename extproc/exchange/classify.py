"""What kind of HTTP request the headers describe: which API, which body, how long. Pure functions of
headers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from extproc.formats.openai import ApiKind, api_kind

_MAX_DIGITS = 15


@dataclass(frozen=True, slots=True)
class RequestClass:
    """`is_json`: the body may be read as JSON. `declared_bytes`: its length, when announced.

    `is_upgrade` is a WebSocket handshake. `is_odd_upgrade`: an Upgrade header with a body. Its end would
    never be told, and it must not be a way around the queue.
    """

    kind: ApiKind
    is_json: bool
    is_compressed: bool
    is_upgrade: bool
    is_odd_upgrade: bool
    declared_bytes: int | None


UNKNOWN = RequestClass(ApiKind.OPAQUE, False, False, False, False, None)


def classify(headers: Mapping[str, str]) -> RequestClass:
    """Look at the path, the media type, the encoding and the length."""
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    length = headers.get("content-length", "")
    is_number = length.isascii() and length.isdigit() and len(length) <= _MAX_DIGITS
    method = headers.get(":method", "")
    return RequestClass(
        kind=api_kind(headers.get(":path", "")),
        is_json=not media_type.startswith(("multipart/", "audio/", "image/", "video/"))
        and media_type != "application/octet-stream",
        is_compressed=headers.get("content-encoding", "identity").lower() not in ("", "identity"),
        is_upgrade=method == "CONNECT" or ("upgrade" in headers and method == "GET"),
        is_odd_upgrade="upgrade" in headers and method not in ("GET", "CONNECT"),
        declared_bytes=int(length) if is_number else None,
    )
