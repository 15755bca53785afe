"""How large a prompt is: bytes of text, token ids, and images, sound and video by their dimensions.

Works on undecoded JSON, so a prompt is never copied into Python objects. It knows no tokenizer and no price:
`PromptSize` says what is there, the caller turns it into tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from msgspec import Raw

from extproc.formats.media import Media, measure_media

MAX_PIECES = 20_000
"""Messages, parts or texts that are measured one by one (about a microsecond each). A prompt of more counts
by its bytes: nobody may hold everybody up for seconds with a body of a million empty objects."""

_ABSENT = Raw(b"")
_NUMERIC = b"0123456789-, \t\r\n[]"
_DIGITS = bytes.maketrans(b"-023456789", b"1" * 10)


class PromptSize(NamedTuple):
    """Sizes to be added up. `text_parts` counts the separate pieces of text in `text_bytes`."""

    text_bytes: int = 0
    text_parts: int = 0
    token_ids: int = 0
    media: tuple[Media, ...] = ()

    def __add__(self, other: object) -> PromptSize:
        assert isinstance(other, PromptSize)
        if other is EMPTY:
            return self
        return PromptSize(
            self.text_bytes + other.text_bytes,
            self.text_parts + other.text_parts,
            self.token_ids + other.token_ids,
            self.media + other.media,
        )

    @property
    def is_exact(self) -> bool:
        """True when the tokens were given as ids: nothing is left to estimate."""
        return self.token_ids > 0 and not self.text_bytes and not self.media


EMPTY = PromptSize()


class _Message(msgspec.Struct):
    role: Raw = _ABSENT
    content: Raw = _ABSENT
    tool_calls: Raw = _ABSENT
    text: Raw = _ABSENT
    """Anthropic's `system` is a list of text parts: messages that carry their text directly."""


class _Part(msgspec.Struct):
    type: Raw = _ABSENT
    text: Raw = _ABSENT
    thinking: Raw = _ABSENT
    input: Raw = _ABSENT
    content: Raw = _ABSENT


_decode_list = msgspec.json.Decoder(list[Raw]).decode
_decode_messages = msgspec.json.Decoder(list[_Message]).decode
_decode_part = msgspec.json.Decoder(_Part).decode

_MEDIA_MARKS = (b"image", b"audio", b"video", b"file", b"document")


def measure_prompt(raw: Raw) -> PromptSize:
    """A string, an array of strings, of token ids, or of arrays of token ids; other JSON counts by its
    bytes.
    """
    data = bytes(raw)
    first = data[:1]
    if first == b'"':
        return PromptSize(text_length(data), 1)
    if first != b"[":
        return EMPTY if data in (b"", b"null") else PromptSize(len(data), 1)
    if not data.translate(None, _NUMERIC):
        return PromptSize(token_ids=_count_ids(data))
    if _has_many_pieces(data):
        return PromptSize(len(data), 1)
    try:
        items = _decode_list(data)
    except (msgspec.MsgspecError, RecursionError):
        return PromptSize(len(data), 1)
    size, parts = 0, 0
    for item in items:
        text = bytes(item)
        size += text_length(text) if text[:1] == b'"' else len(text)
        parts += 1
    return PromptSize(size, parts)


def measure_messages(raw: Raw) -> PromptSize:
    """A list of chat messages with string or multi-part content, or a plain string."""
    data = bytes(raw)
    if data[:1] != b"[" or data.count(b"{") > MAX_PIECES or data.count(b"[") > MAX_PIECES:
        return measure_prompt(raw)
    try:
        messages = _decode_messages(data)
    except (msgspec.MsgspecError, RecursionError):
        return measure_prompt(raw)
    size, parts = 0, 0
    media: list[Media] = []
    for message in messages:
        size += text_length(bytes(message.role)) + text_length(bytes(message.text))
        size += text_length(bytes(message.tool_calls))
        parts += 1
        content = bytes(message.content)
        if content[:1] == b"[":
            size += _measure_parts(content, media)
        else:
            size += text_length(content)
    return PromptSize(size, parts, 0, tuple(media))


def _measure_parts(content: bytes, media: list[Media]) -> int:
    """Bytes of text in a list of content parts; images and the like go to `media` instead."""
    try:
        parts = _decode_list(content)
    except (msgspec.MsgspecError, RecursionError):
        return len(content)
    size = 0
    for raw in parts:
        data = bytes(raw)
        try:
            part = _decode_part(data)
        except (msgspec.MsgspecError, RecursionError):
            size += text_length(data)
            continue
        kind = bytes(part.type)
        if any(mark in kind for mark in _MEDIA_MARKS):
            media.append(measure_media(kind, data))
            continue
        size += text_length(bytes(part.text)) + text_length(bytes(part.thinking)) + len(bytes(part.input))
        nested = bytes(part.content)
        size += _measure_parts(nested, media) if nested[:1] == b"[" else text_length(nested)
    return size


def text_length(data: bytes) -> int:
    """Bytes of UTF-8 that a raw JSON string stands for, to within its escaped backslashes; 0 for no string.

    An escape of two characters stands for one byte; a \\uXXXX escape of six for about three.
    """
    if data[:1] != b'"':
        return 0 if data in (b"", b"null") else len(data)
    length = len(data) - 2
    escapes = data.count(b"\\")
    if escapes:
        length -= escapes + 2 * data.count(b"\\u")
    return max(length, 0)


def _has_many_pieces(data: bytes) -> bool:
    """More than `MAX_PIECES` texts, objects or lists, by upper bounds that take no look at each."""
    quotes = data.count(b'"') - data.count(b'\\"')
    return max(quotes // 2, data.count(b"{"), data.count(b"[")) > MAX_PIECES


def _count_ids(data: bytes) -> int:
    """Numbers in an array of integers or of such arrays; empty arrays hold none."""
    ends = data.translate(_DIGITS, b" \t\r\n")
    return ends.count(b"1,") + ends.count(b"1]")
