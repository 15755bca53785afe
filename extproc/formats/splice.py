"""Change single top-level members of a JSON object and leave every other byte as it was.

A JSON round trip would reorder, re-escape and re-round what nobody asked to change. The text must be
valid JSON already (the parser has been over it); values are replaced in all places where a key is
repeated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import NamedTuple

import msgspec

MAX_TOKENS = 400_000
"""Brackets, commas, colons and strings that are walked over, a tenth of a second's worth. Texts count as one
however long they are, and so do flat lists of numbers."""

_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|\[[-+.,\seE\d]*+\]|[{}\[\],:]', re.DOTALL)

_WHITESPACE = b" \t\r\n"


class _Member(NamedTuple):
    key: str
    key_start: int
    value_start: int
    value_end: int
    end: int
    """Where the comma or the closing brace is."""


def splice_members(body: bytes, changes: Mapping[str, bytes | None]) -> bytes:
    """Set each named top-level member to the given JSON text, or remove it (None). Absent members stay
    absent.
    """
    pieces: list[bytes] = []
    kept_from = 0
    members = list(_members(body))
    removed_all_before = True
    for index, member in enumerate(members):
        if member.key not in changes:
            removed_all_before = False
            continue
        value = changes[member.key]
        if value is not None:
            pieces += (body[kept_from : member.value_start], value)
            kept_from = member.value_end
            removed_all_before = False
            continue
        start, end = member.key_start, member.end
        if not removed_all_before:
            start = body.rindex(b",", 0, start)  # the comma before it goes too
        elif index + 1 < len(members):
            end = members[index + 1].key_start
        pieces.append(body[kept_from:start])
        kept_from = max(end, kept_from)
    pieces.append(body[kept_from:])
    return b"".join(pieces)


def is_too_fine(body: bytes) -> bool:
    """Whether to change a member would mean walking over more than `MAX_TOKENS`."""
    if body.count(b"{") + body.count(b"[") + body.count(b",") <= MAX_TOKENS // 4:
        return False
    return next(islice(_TOKEN.finditer(body), MAX_TOKENS, None), None) is not None


def _members(body: bytes) -> Iterator[_Member]:
    depth = 0
    key: bytes | None = None
    key_start = value_start = -1
    for token in _TOKEN.finditer(body):
        first = body[token.start()]
        if first == 0x5B and body[token.end() - 1] == 0x5D:
            continue  # a flat list, whole
        if first in b"{[":
            depth += 1
        elif first in b"}]":
            depth -= 1
            if depth == 0:
                if key is not None:
                    yield _member(body, key, key_start, value_start, token.start())
                return
        elif depth != 1:
            continue
        elif first == 0x22 and key is None:
            key, key_start, value_start = token.group(), token.start(), -1
        elif first == 0x3A and value_start < 0:
            value_start = token.end()
        elif first == 0x2C and key is not None:
            yield _member(body, key, key_start, value_start, token.start())
            key = None


def _member(body: bytes, key: bytes, key_start: int, after_colon: int, end: int) -> _Member:
    """With the whitespace around the value left out of it."""
    value = body[after_colon:end]
    value_start = end - len(value.lstrip(_WHITESPACE))
    value_end = after_colon + len(value.rstrip(_WHITESPACE))
    return _Member(_decode(key), key_start, value_start, value_end, end)


def _decode(key: bytes) -> str:
    return str(msgspec.json.decode(key)) if b"\\" in key else key[1:-1].decode()
