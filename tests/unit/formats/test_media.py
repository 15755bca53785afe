"""Sizes of inline images, read from their first bytes."""

from __future__ import annotations

import base64
import json
import struct

import pytest

from extproc.formats.media import MediaKind, measure_media

PNG = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 640, 480) + b"\0" * 5000
GIF = b"GIF89a" + struct.pack("<HH", 320, 200) + b"\0" * 500
JPEG = (
    b"\xff\xd8\xff\xe0" + struct.pack(">H", 16) + b"\0" * 14
    + b"\xff\xc0" + struct.pack(">HBHH", 17, 8, 100, 200) + b"\0" * 500
)  # fmt: skip


def _part(data: bytes, kind: str = "png") -> bytes:
    url = f"data:image/{kind};base64,{base64.b64encode(data).decode()}"
    return json.dumps({"type": "image_url", "image_url": {"url": url}}).encode()


@pytest.mark.parametrize(("data", "pixels"), [(PNG, 640 * 480), (GIF, 320 * 200), (JPEG, 100 * 200)])
def test_field_bug_053_inline_images_are_measured(data: bytes, pixels: int) -> None:
    assert measure_media(b'"image_url"', _part(data)).pixels == pixels


def test_anthropic_images_are_measured() -> None:
    source = {"type": "base64", "media_type": "image/png", "data": base64.b64encode(PNG).decode()}
    part = json.dumps({"type": "image", "source": source}).encode()
    assert measure_media(b'"image"', part).pixels == 640 * 480


@pytest.mark.parametrize(
    "data", [b"", b"\x89PNG", b"\xff\xd8\xff", b"\xff\xd8\xff\xe0\x00\x00" * 30, b"x" * 500]
)
def test_broken_images_have_no_size(data: bytes) -> None:
    media = measure_media(b'"image_url"', _part(data))
    assert (media.kind, media.pixels) == (MediaKind.IMAGE, None)
