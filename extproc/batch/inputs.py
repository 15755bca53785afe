"""Reading single lines of a job's input file through its line index; a few index pages are kept in memory."""

from __future__ import annotations

import struct
from collections import OrderedDict
from itertools import pairwise

from extproc.batch.job import FileId, Job
from extproc.batch.stores.contract import JobStore
from extproc.errors import InvariantError

OFFSET = struct.Struct("<Q")
"""One entry of a line index: entry n - 1 is where line n (1-based) starts; one more entry ends the file."""

_PAGE_ENTRIES = 1024
_MAX_PAGES = 16
_MAX_READ_BYTES = 4 * 2**20


class InputReader:
    """Lines by number, over any store."""

    def __init__(self, store: JobStore) -> None:
        self._store = store
        self._pages: OrderedDict[tuple[FileId, int], bytes] = OrderedDict()

    async def read_line(self, job: Job, line: int) -> bytes:
        """The raw bytes of line `line` of the job's input."""
        return (await self.read_lines(job, line, line))[0]

    async def read_lines(self, job: Job, first: int, last: int) -> list[bytes]:
        """Lines `first` to `last`, as many of them as fit in one read; at least one."""
        start = await self._offset(job, first - 1)
        edges = [start]
        for line in range(first, last + 1):
            edge = await self._offset(job, line)
            if len(edges) > 1 and edge - start > _MAX_READ_BYTES:
                break
            edges.append(edge)
        raw = await self._store.read_file(job.input_file_id, start, edges[-1] - start)
        if len(raw) != edges[-1] - start:
            raise InvariantError(f"the input file {job.input_file_id} of job {job.id} is cut short")
        return [raw[one - start : other - start] for one, other in pairwise(edges)]

    async def _offset(self, job: Job, entry: int) -> int:
        index_id = job.index_file_id
        if index_id is None:
            raise InvariantError(f"job {job.id} is worked on without a line index")
        number, position = divmod(entry, _PAGE_ENTRIES)
        page = self._pages.get((index_id, number))
        if page is None:
            size = _PAGE_ENTRIES * OFFSET.size
            page = self._pages[index_id, number] = await self._store.read_file(index_id, number * size, size)
            if len(self._pages) > _MAX_PAGES:
                self._pages.popitem(last=False)
        value: int = OFFSET.unpack_from(page, position * OFFSET.size)[0]
        return value
