"""The OpenAI-compatible Files and Batches API over any store; the `openai` client drives it unchanged.

Uploads are streamed to the store, downloads from it. It only writes files and job records: the work is done
by workers and the lifecycle, which it nudges.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from aiohttp import BodyPartReader, web

from extproc.batch.api_objects import (
    ApiError,
    batch_object,
    checked_endpoint,
    checked_metadata,
    checked_text,
    checked_window,
    file_object,
    list_object,
)
from extproc.batch.job import FINAL_STATES, FileId, Job, JobId, JobState
from extproc.batch.stores.contract import INDEX_PURPOSE, FileRecord, JobStore, StoreUnavailableError
from extproc.clock import Clock
from extproc.config.batch import ApiConfig

logger = logging.getLogger(__name__)

_CHUNK_BYTES = 2**18
_MAX_JSON_BYTES = 2**20
_MAX_PAGE = 100

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class BatchApi:
    """`new_token()` gives a fresh random id; `on_change()` is called when a job was created or cancelled."""

    def __init__(
        self,
        store: JobStore,
        clock: Clock,
        config: ApiConfig,
        *,
        new_token: Callable[[], str],
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._config = config
        self._new_token = new_token
        self._on_change = on_change

    def application(self) -> web.Application:
        """The routes, to be served by anyone."""
        app = web.Application(middlewares=[_answer_problems], client_max_size=_MAX_JSON_BYTES)
        app.add_routes(
            [
                web.post("/v1/files", self._upload),
                web.get("/v1/files", self._list_files),
                web.get("/v1/files/{file_id}", self._get_file),
                web.delete("/v1/files/{file_id}", self._delete_file),
                web.get("/v1/files/{file_id}/content", self._download),
                web.post("/v1/batches", self._create_batch),
                web.get("/v1/batches", self._list_batches),
                web.get("/v1/batches/{batch_id}", self._get_batch),
                web.post("/v1/batches/{batch_id}/cancel", self._cancel_batch),
                web.get("/v1/batches/{batch_id}/results", self._tail),
            ]
        )
        return app

    # Files

    async def _upload(self, request: web.Request) -> web.StreamResponse:
        if not request.content_type.startswith("multipart/"):
            raise ApiError(400, "send the file as multipart/form-data with the fields file and purpose")
        file_id = FileId(f"file-{self._new_token()}")
        purpose, filename, size_bytes = "", None, 0
        try:
            async for part in await request.multipart():
                if not isinstance(part, BodyPartReader):
                    continue
                if part.name == "purpose":
                    purpose = (await part.read()).decode("utf-8", "replace")
                elif part.name == "file" and filename is None:
                    filename = (part.filename or "upload.jsonl")[:255]
                    size_bytes = await self._store_part(part, file_id)
            if filename is None:
                raise ApiError(400, "the field file is missing", param="file")
            if purpose != "batch":
                raise ApiError(400, "purpose must be batch", param="purpose")
            record = FileRecord(
                id=file_id,
                filename=filename,
                purpose=purpose,
                size_bytes=size_bytes,
                created_at=self._clock.wall_time(),
            )
            await self._store.seal_file(record)
        except BaseException:
            await self._store.delete_file(file_id)
            raise
        return web.json_response(file_object(record))

    async def _store_part(self, part: BodyPartReader, file_id: FileId) -> int:
        size_bytes = 0
        await self._store.append_file(file_id, b"")
        while chunk := await part.read_chunk(_CHUNK_BYTES):
            size_bytes += len(chunk)
            if size_bytes > self._config.max_file_bytes:
                limit = self._config.max_file_bytes
                raise ApiError(
                    413, f"the file is larger than {limit} bytes", param="file", code="file_too_large"
                )
            await self._store.append_file(file_id, bytes(chunk))
        return size_bytes

    async def _list_files(self, request: web.Request) -> web.StreamResponse:
        purpose = request.query.get("purpose")
        records = [record for record in await self._store.list_files() if record.purpose != INDEX_PURPOSE]
        objects = [file_object(record) for record in records if purpose in (None, record.purpose)]
        return web.json_response(list_object(objects))

    async def _get_file(self, request: web.Request) -> web.StreamResponse:
        return web.json_response(file_object(await self._file_of(request)))

    async def _delete_file(self, request: web.Request) -> web.StreamResponse:
        record = await self._file_of(request)
        for job in await self._store.list_open_jobs():
            if job.input_file_id == record.id:
                raise ApiError(409, f"the file is the input of {job.id}, which is {job.state.value}")
        await self._store.delete_file(record.id)
        return web.json_response({"id": record.id, "object": "file", "deleted": True})

    async def _download(self, request: web.Request) -> web.StreamResponse:
        record = await self._file_of(request)
        response = web.StreamResponse(headers={"content-type": "application/jsonl"})
        response.content_length = record.size_bytes
        await response.prepare(request)
        for offset in range(0, record.size_bytes, _CHUNK_BYTES):
            await response.write(await self._store.read_file(record.id, offset, _CHUNK_BYTES))
        return response

    async def _file_of(self, request: web.Request) -> FileRecord:
        file_id = FileId(request.match_info["file_id"])
        record = await self._store.get_file(file_id)
        if record is None or record.purpose == INDEX_PURPOSE:
            raise ApiError(404, f"no file {file_id}", code="not_found")
        return record

    # Batches

    async def _create_batch(self, request: web.Request) -> web.StreamResponse:
        given = await _json_object(request)
        endpoint = checked_endpoint(given)
        window, seconds = checked_window(given)
        file_id = FileId(checked_text(given, "input_file_id"))
        record = await self._store.get_file(file_id)
        if record is None or record.purpose != "batch":
            raise ApiError(
                400, f"no batch input file {file_id}", param="input_file_id", code="file_not_found"
            )
        now = self._clock.wall_time()
        job = await self._store.insert_job(
            Job(
                id=JobId(f"batch_{self._new_token()}"),
                endpoint=endpoint,
                input_file_id=file_id,
                completion_window=window,
                created_at=now,
                deadline=now + seconds,
                metadata=checked_metadata(given),
            )
        )
        self._on_change()
        return await self._answer(job)

    async def _list_batches(self, request: web.Request) -> web.StreamResponse:
        limit = _limit_of(request, default=20)
        after = request.query.get("after")
        found = await self._store.list_jobs(after=JobId(after) if after else None, limit=limit + 1)
        objects = [await self._object(job) for job in found[:limit]]
        return web.json_response(list_object(objects, has_more=len(found) > limit))

    async def _get_batch(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(await self._job_of(request))

    async def _cancel_batch(self, request: web.Request) -> web.StreamResponse:
        now = self._clock.wall_time()
        while True:
            job = await self._job_of(request)
            if job.state is JobState.VALIDATING:
                moved = replace(job, state=JobState.CANCELLED, cancelling_at=now, cancelled_at=now)
            elif job.state is JobState.IN_PROGRESS:
                moved = replace(job, state=JobState.CANCELLING, ending=JobState.CANCELLED, cancelling_at=now)
            elif job.state in FINAL_STATES and job.state is not JobState.CANCELLED:
                raise ApiError(409, f"the batch is {job.state.value} already", code="batch_ended")
            else:
                return await self._answer(job)
            # Another state by now: look again.
            if await self._store.move_job(moved, job.state):
                self._on_change()
                return await self._answer(moved)

    async def _tail(self, request: web.Request) -> web.StreamResponse:
        """Results as they came: an extension, for `extproc batch tail`."""
        job = await self._job_of(request)
        after = _number_of(request, "after", 0)
        results = await self._store.tail_results(job.id, after, _limit_of(request, default=_MAX_PAGE))
        lines = [
            {
                "sequence": result.sequence,
                "line": result.line,
                "state": result.state.value,
                "result": json.loads(result.body),
            }
            for result in results
        ]
        return web.json_response({"object": "list", "data": lines, "status": job.state.value})

    async def _job_of(self, request: web.Request) -> Job:
        job_id = JobId(request.match_info["batch_id"])
        job = await self._store.get_job(job_id)
        if job is None:
            raise ApiError(404, f"no batch {job_id}", code="not_found")
        return job

    async def _answer(self, job: Job) -> web.StreamResponse:
        return web.json_response(await self._object(job))

    async def _object(self, job: Job) -> dict[str, object]:
        return batch_object(job, await self._store.count(job.id), await self._store.get_totals(job.id))


@web.middleware
async def _answer_problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except ApiError as error:
        return _error_response(error)
    except web.HTTPException as error:
        return _error_response(ApiError(error.status, error.reason))
    except StoreUnavailableError as error:
        logger.warning("%s %s: %s", request.method, request.path, error)
        message = "the store is not available; nothing was accepted"
        return _error_response(ApiError(503, message, code="store_unavailable"))


def _error_response(error: ApiError) -> web.Response:
    headers = {"Retry-After": "1"} if error.status == 503 else None
    return web.json_response(error.body, status=error.status, headers=headers)


async def _json_object(request: web.Request) -> dict[str, object]:
    try:
        value = json.loads(await request.read())
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ApiError(400, "the body must be a JSON object")
    return value


def _number_of(request: web.Request, name: str, default: int) -> int:
    text = request.query.get(name, str(default))
    if not text.isdecimal() or len(text) > 15:
        raise ApiError(400, f"{name} must be a whole number", param=name)
    return int(text)


def _limit_of(request: web.Request, default: int) -> int:
    limit = _number_of(request, "limit", default)
    if not 1 <= limit <= _MAX_PAGE:
        raise ApiError(400, f"limit must be from 1 to {_MAX_PAGE}", param="limit")
    return limit
