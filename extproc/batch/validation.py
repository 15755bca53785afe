"""Validation of a submitted job: every line is checked, then the job starts or fails as a whole.

Reads the input file block by block in a helper thread, so that a million lines neither fill the memory nor
stop the streams of the worker in the same process.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import AsyncIterator
from sys import byteorder

from extproc.batch.intake import Intake, IntakeLimits
from extproc.batch.job import FileId, LineError
from extproc.batch.stores.contract import JobStore

BLOCK_BYTES = 4 * 2**20


class InputCheck:
    """Feeds an `Intake` with the blocks of a file; `offsets` collects where the requests start."""

    def __init__(self, endpoint: str, limits: IntakeLimits) -> None:
        self.intake = Intake(endpoint, limits)
        self._max_line_bytes = limits.max_line_bytes
        self._offsets = array("Q")
        self._tail = b""
        self._position = 0
        self._file_line = 0
        self._is_skipping = False

    def feed(self, block: bytes) -> None:
        """Check the lines that end in this block."""
        lines = (self._tail + block).split(b"\n")
        self._tail = lines.pop()
        for raw in lines:
            self._take(raw, len(raw) + 1)
        if len(self._tail) > self._max_line_bytes:
            # Too long already: note it once and forget its bytes until it ends.
            self._position += len(self._tail)
            self._tail = b""
            self._is_skipping = True

    def finish(self) -> list[LineError]:
        """The file is over: its last line, and all that is wrong."""
        if self._tail or self._is_skipping:
            self._take(self._tail, len(self._tail))
        self._offsets.append(self._position)
        return self.intake.conclude()

    def _take(self, raw: bytes, size: int) -> None:
        self._file_line += 1
        if self._is_skipping:
            self._is_skipping = False
            self.intake.complain_oversize(self._file_line)
        elif self.intake.take(raw, self._file_line):
            self._offsets.append(self._position)
        self._position += size

    def take_index(self) -> bytes:
        """The index entries since the last call, encoded."""
        entries, self._offsets = self._offsets, array("Q")
        if byteorder == "big":
            entries.byteswap()
        return entries.tobytes()


async def run_check(
    check: InputCheck, store: JobStore, input_id: FileId, size_bytes: int, index_id: FileId
) -> AsyncIterator[int]:
    """Feed the file to `check`, yielding the position after each block; it is finished when this ends.

    The line index goes to `index_id` as far as it is known; the caller seals or deletes it.
    """
    for offset in range(0, size_bytes, BLOCK_BYTES):
        block = await store.read_file(input_id, offset, BLOCK_BYTES)
        await asyncio.to_thread(check.feed, block)
        await store.append_file(index_id, check.take_index())
        yield offset + len(block)
    check.finish()
    await store.append_file(index_id, check.take_index())
