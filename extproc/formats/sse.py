"""Incremental splitter of server-sent events: bytes in, event payloads out, whatever the cuts.

It works on bytes, so that a character cut by the network is never decoded in halves, and knows nothing of
what the payloads mean. Lines end in LF or CRLF; comments and the fields `event`, `id` and `retry` are
skipped.
"""

from __future__ import annotations

DONE = b"[DONE]"
"""The payload with which OpenAI-style servers end a stream; it says nothing about success."""


class SseSplitter:
    """Feed it what the network delivers; it returns the `data` payload of every event completed by that.

    An event longer than `max_event_bytes` is dropped alone and counted in `overflows`; the next one is whole.
    """

    __slots__ = ("_data", "_is_oversize", "_max_event_bytes", "_size", "_tail", "overflows")

    def __init__(self, max_event_bytes: int = 16 * 2**20) -> None:
        self._max_event_bytes = max_event_bytes
        self._tail = b""
        self._data: list[bytes] = []
        self._size = 0
        self._is_oversize = False
        self.overflows = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take the next bytes; return the payloads of the events that they complete, in order."""
        lines = (self._tail + chunk).split(b"\n")
        self._tail = lines.pop()
        events: list[bytes] = []
        for line in lines:
            self._take_line(line.removesuffix(b"\r"), events)
        if self._size + len(self._tail) > self._max_event_bytes:
            # Keep one byte, so that the rest of this line is never taken for a line of its own.
            self._tail = self._tail[:1]
            self._mark_oversize()
        return events

    def finish(self) -> list[bytes]:
        """The stream has ended: return the last event if only its closing blank line is missing."""
        events: list[bytes] = []
        if self._tail:
            self._take_line(self._tail.removesuffix(b"\r"), events)
            self._tail = b""
        self._take_line(b"", events)
        return events

    def _take_line(self, line: bytes, events: list[bytes]) -> None:
        if not line:
            self._end_event(events)
        elif line.startswith(b"data:"):
            payload = line[6:] if line[5:6] == b" " else line[5:]
            self._size += len(payload)
            if self._size > self._max_event_bytes:
                self._mark_oversize()
            elif not self._is_oversize:
                self._data.append(payload)

    def _end_event(self, events: list[bytes]) -> None:
        if self._is_oversize:
            self.overflows += 1
        elif self._data:
            events.append(self._data[0] if len(self._data) == 1 else b"\n".join(self._data))
        self._data.clear()
        self._size = 0
        self._is_oversize = False

    def _mark_oversize(self) -> None:
        self._is_oversize = True
        self._data.clear()
        self._size = 0
