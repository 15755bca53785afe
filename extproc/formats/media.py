"""Images, sound and video inside a prompt: what kind they are and, where it is cheap to see, how large.

An inline image is never priced as text: a base64 megabyte would count as a quarter of a million tokens.
Only the first bytes of an inline image are decoded, enough to read its dimensions; links are never
followed.
"""

from __future__ import annotations

import binascii
import re
import struct
from enum import Enum
from typing import NamedTuple

_INLINE_DATA = re.compile(rb'"(?:data:image/[a-z+.-]{1,20};base64,|)([A-Za-z0-9+/\\]{44,})')
_SCANNED_CHARACTERS = 43_692
"""Base64 characters looked at, 32 KiB of data: a JPEG's size sits behind its metadata."""

_JPEG_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


class MediaKind(Enum):
    IMAGE = "image"
    AUDIO = "audio"
    VIDEO = "video"
    DOCUMENT = "document"


class Media(NamedTuple):
    """One media part; `pixels` is width x height, None when it can't be seen."""

    kind: MediaKind
    pixels: int | None = None


def measure_media(type_label: bytes, part: bytes) -> Media:
    """Classify a content part by its raw `type`; for an inline image also read its dimensions."""
    if b"audio" in type_label:
        return Media(MediaKind.AUDIO)
    if b"video" in type_label:
        return Media(MediaKind.VIDEO)
    if b"image" not in type_label:
        return Media(MediaKind.DOCUMENT)
    found = _INLINE_DATA.search(part)
    if found is None:
        return Media(MediaKind.IMAGE)
    text = part[found.start(1) : min(found.end(1), found.start(1) + _SCANNED_CHARACTERS)].replace(b"\\", b"")
    try:
        head = binascii.a2b_base64(text[: len(text) // 4 * 4])
    except binascii.Error:
        return Media(MediaKind.IMAGE)
    return Media(MediaKind.IMAGE, _pixels(head))


def _pixels(head: bytes) -> int | None:
    if head[:8] == b"\x89PNG\r\n\x1a\n" and len(head) >= 24:
        width, height = struct.unpack(">II", head[16:24])
        return int(width * height)
    if head[:4] == b"GIF8" and len(head) >= 10:
        width, height = struct.unpack("<HH", head[6:10])
        return int(width * height)
    if head[:2] == b"\xff\xd8":
        return _jpeg_pixels(head)
    return None


def _jpeg_pixels(head: bytes) -> int | None:
    """Walk the segments to the frame header, within the bytes at hand."""
    at = 2
    while at + 9 <= len(head) and head[at] == 0xFF:
        if head[at + 1] in _JPEG_SIZES:
            height, width = struct.unpack(">HH", head[at + 5 : at + 9])
            return int(width * height)
        at += 2 + int(struct.unpack(">H", head[at + 2 : at + 4])[0])
    return None
