"""Writing the output and error files of a job that ends: results in line order, then what was never answered.

Everything goes through in pages, so that the size of a job doesn't matter.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from extproc.batch.inputs import InputReader
from extproc.batch.job import FileId, ItemState, Job, JobState
from extproc.batch.progress import Stats
from extproc.batch.reply import failure_line
from extproc.batch.stores.contract import FileRecord, JobStore
from extproc.batch.turn import decode_line

_PAGE_RESULTS = 500
_BUFFER_BYTES = 2**20

_UNANSWERED = {
    JobState.EXPIRED: (
        "batch_expired",
        "This request could not be executed before the completion window expired.",
    ),
    JobState.CANCELLED: ("batch_cancelled", "This request was not executed before the batch was cancelled."),
}


class _Output:
    """One file being written; made when its first line comes."""

    def __init__(self, store: JobStore, file_id: FileId) -> None:
        self._store = store
        self.file_id = file_id
        self.size_bytes = 0
        self._buffer = bytearray()

    async def write_line(self, line: bytes) -> None:
        self._buffer += line
        self._buffer += b"\n"
        self.size_bytes += len(line) + 1
        if len(self._buffer) >= _BUFFER_BYTES:
            await self.flush()

    async def flush(self) -> None:
        await self._store.append_file(self.file_id, bytes(self._buffer))
        self._buffer.clear()


async def write_outputs(
    store: JobStore, inputs: InputReader, job: Job, token: str, now: float
) -> AsyncIterator[list[FileRecord]]:
    """Write both files, yielding an empty list after each page and at last the records to be sealed.

    Files without lines are not made. `token` makes the file ids unique to this attempt.
    """
    outputs = {
        ItemState.SUCCEEDED: _Output(store, FileId(f"file-{token}-output")),
        ItemState.FAILED: _Output(store, FileId(f"file-{token}-error")),
    }
    line = 0
    while line < job.total:
        page = await store.read_results(job.id, line, _PAGE_RESULTS)
        for result in page:
            await _write_unanswered(inputs, job, line + 1, result.line - 1, outputs[ItemState.FAILED])
            await outputs[result.state].write_line(result.body)
            line = result.line
        if len(page) < _PAGE_RESULTS:
            last = min(line + _PAGE_RESULTS, job.total) if not page else job.total
            await _write_unanswered(inputs, job, line + 1, last, outputs[ItemState.FAILED])
            line = last
        yield []
    records: list[FileRecord] = []
    for state, output in outputs.items():
        if output.size_bytes:
            await output.flush()
            purpose = "output" if state is ItemState.SUCCEEDED else "error"
            records.append(
                FileRecord(
                    id=output.file_id,
                    filename=f"{job.id}_{purpose}.jsonl",
                    purpose="batch_output",
                    size_bytes=output.size_bytes,
                    created_at=now,
                )
            )
    yield records


async def _write_unanswered(inputs: InputReader, job: Job, first: int, last: int, output: _Output) -> None:
    """An error line for each of the lines `first` to `last`."""
    code, message = _UNANSWERED.get(
        job.ending, ("internal_error", "The request was lost: please report this.")
    )
    line = first
    while line <= last:
        for raw in await inputs.read_lines(job, line, last):
            custom_id = decode_line(raw).custom_id
            await output.write_line(
                failure_line(
                    request_id=f"{job.id}-{line}",
                    custom_id=custom_id,
                    code=code,
                    message=message,
                    stats=Stats(),
                )
            )
            line += 1
