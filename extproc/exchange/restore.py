"""Putting the client's model name back into a response whose request was rewritten.

Only `"model":"<target>"` (with or without a space) is replaced, wherever the bytes were cut: an end of a
chunk that could be the beginning of a match is held back until the next one.
"""

from __future__ import annotations

import msgspec


class ModelRestorer:
    """Feed it the chunks of one response; what comes out may lag by less than the length of a match."""

    def __init__(self, target: str, client_model: str) -> None:
        old, new = msgspec.json.encode(target), msgspec.json.encode(client_model)
        self._pairs = tuple((b'"model":' + gap + old, b'"model":' + gap + new) for gap in (b"", b" "))
        self._held = b""

    def feed(self, data: bytes, is_end: bool) -> bytes:
        """The bytes to send on instead of `data`."""
        text = self._held + data
        for old, new in self._pairs:
            text = text.replace(old, new)
        keep = 0 if is_end else self._open_match(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _open_match(self, text: bytes) -> int:
        """Length of the longest end of `text` that begins one of the patterns."""
        longest = max(len(old) for old, _ in self._pairs) - 1
        at = text.rfind(b'"', max(0, len(text) - longest))
        best = 0
        while at >= 0:
            tail = text[at:]
            if len(tail) > longest:
                break
            if any(old.startswith(tail) for old, _ in self._pairs):
                best = len(tail)
            at = text.rfind(b'"', max(0, len(text) - longest), at)
        return best
