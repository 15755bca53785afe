"""The shared store: Redis or Valkey, for many workers on many machines. Needs the `redis` extra.

Every change of state is one Lua script (`redis_scripts`), so that workers never see half of one. The client's
own retries are switched off: the callers know what may be repeated.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.commands.core import AsyncScript
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from extproc.batch.job import (
    FINAL_STATES,
    Counts,
    FileId,
    ItemKey,
    ItemState,
    Job,
    JobId,
    JobState,
    check_job_transition,
)
from extproc.batch.stores import redis_scripts
from extproc.batch.stores.contract import (
    Change,
    Claimed,
    FileRecord,
    Finish,
    Result,
    Return,
    Save,
    StoreUnavailableError,
)

T = TypeVar("T")

_PIECE_BYTES = 2**20
_CHANGES_PER_CALL = 500
"""Each call is atomic; changes of different items don't depend on each other."""
_encode = msgspec.json.Encoder().encode
_decode_job = msgspec.json.Decoder(Job).decode
_decode_file = msgspec.json.Decoder(FileRecord).decode
_STATE_MARKS = {ItemState.SUCCEEDED: b"s", ItemState.FAILED: b"f"}
_MARKED_STATES = {mark[0]: state for state, mark in _STATE_MARKS.items()}


class RedisStore:
    """`url` as in redis://host:6379/0; `prefix` separates several stores in one server."""

    def __init__(self, url: str, *, prefix: str = "extproc-batch", timeout_s: float = 10.0) -> None:
        self._prefix = "{" + prefix + "}:"
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=16,
            timeout=timeout_s,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
        )
        self._pool = pool
        self._redis: Redis = Redis.from_pool(pool)
        self._scripts: dict[str, AsyncScript] = {}
        self._uploads: dict[FileId, bytearray] = {}

    async def open(self) -> None:
        await self._guard(self._redis.ping)

    async def close(self) -> None:
        for file_id in list(self._uploads):
            self._uploads.pop(file_id)
        await self._redis.aclose()

    async def _guard(self, call: Callable[[], Awaitable[T]]) -> T:
        try:
            return await call()
        except (RedisError, OSError, TimeoutError) as error:
            if isinstance(error, (RedisConnectionError, OSError)):
                # The idle connections are broken, too: each would fail a call after the server is back.
                with suppress(RedisError, OSError):
                    await self._pool.disconnect(inuse_connections=False)
            raise StoreUnavailableError(f"the Redis store failed: {error or type(error).__name__}") from error

    async def _script(self, source: str, *values: Any) -> Any:
        script = self._scripts.get(source)
        if script is None:
            script = self._scripts[source] = self._redis.register_script(source)
        return await self._guard(lambda: script(keys=[self._prefix], args=values))

    def _key(self, *parts: object) -> str:
        return self._prefix + ":".join(str(part) for part in parts)

    # Files: lists of pieces of equal size, so that a position is found without reading what is before it.

    async def append_file(self, file_id: FileId, data: bytes) -> None:
        buffer = self._uploads.get(file_id)
        if buffer is None:
            await self._guard(lambda: self._redis.delete(self._key("file", file_id)))
            buffer = self._uploads[file_id] = bytearray()
        buffer += data
        while len(buffer) >= _PIECE_BYTES:
            await self._push_piece(file_id, bytes(buffer[:_PIECE_BYTES]))
            del buffer[:_PIECE_BYTES]

    async def _push_piece(self, file_id: FileId, piece: bytes) -> None:
        await self._guard(lambda: self._redis.rpush(self._key("file", file_id), piece))

    async def _flush_upload(self, file_id: FileId) -> None:
        buffer = self._uploads.get(file_id)
        if buffer:
            await self._push_piece(file_id, bytes(buffer))
            buffer.clear()

    async def seal_file(self, record: FileRecord) -> None:
        await self._flush_upload(record.id)
        await self._guard(lambda: self._redis.hset(self._key("files"), record.id, _encode(record)))
        self._uploads.pop(record.id, None)

    async def delete_file(self, file_id: FileId) -> bool:
        self._uploads.pop(file_id, None)

        async def delete() -> bool:
            async with self._redis.pipeline(transaction=True) as pipeline:
                pipeline.hdel(self._key("files"), file_id)
                pipeline.unlink(self._key("file", file_id))
                return bool((await pipeline.execute())[0])

        return await self._guard(delete)

    async def get_file(self, file_id: FileId) -> FileRecord | None:
        raw = await self._guard(lambda: self._redis.hget(self._key("files"), file_id))
        return None if raw is None else _decode_file(raw)

    async def list_files(self) -> list[FileRecord]:
        raws = await self._guard(lambda: self._redis.hgetall(self._key("files")))
        records = [_decode_file(raw) for raw in raws.values()]
        return sorted(records, key=lambda record: (record.created_at, record.id), reverse=True)

    async def read_file(self, file_id: FileId, offset: int, size: int) -> bytes:
        first, last = offset // _PIECE_BYTES, (offset + size - 1) // _PIECE_BYTES
        if size <= 0:
            return b""
        pieces = await self._guard(lambda: self._redis.lrange(self._key("file", file_id), first, last))
        start = offset - first * _PIECE_BYTES
        return b"".join(pieces)[start : start + size]

    # Jobs

    async def insert_job(self, job: Job) -> Job:
        sequence = await self._script(
            redis_scripts.INSERT_JOB, job.id, job.state.value, job.deadline, job.total, _encode(job)
        )
        return dataclasses.replace(job, sequence=int(sequence))

    async def get_job(self, job_id: JobId) -> Job | None:
        found = await self._jobs([job_id])
        return found[0] if found else None

    async def _jobs(self, ids: Sequence[str]) -> list[Job]:
        async def read() -> list[list[bytes | None]]:
            async with self._redis.pipeline(transaction=False) as pipeline:
                for job_id in ids:
                    pipeline.hmget(self._key("job", job_id), ["record", "sequence"])
                rows: list[list[bytes | None]] = await pipeline.execute()
                return rows

        rows = await self._guard(read) if ids else []
        return [
            dataclasses.replace(_decode_job(record), sequence=int(sequence or 0))
            for record, sequence in rows
            if record is not None
        ]

    async def list_jobs(self, *, after: JobId | None = None, limit: int = 20) -> list[Job]:
        newest = "+inf"
        if after is not None:
            score = await self._guard(lambda: self._redis.zscore(self._key("all"), after))
            newest = "-inf" if score is None else f"({score:.0f}"
        ids = await self._guard(
            lambda: self._redis.zrange(
                self._key("all"), newest, "-inf", desc=True, byscore=True, offset=0, num=limit
            )
        )
        return await self._jobs([one.decode() for one in ids])

    async def list_open_jobs(self) -> list[Job]:
        members = await self._guard(lambda: self._redis.zrange(self._key("open"), 0, -1))
        return await self._jobs([member.decode().partition(":")[2] for member in members])

    async def move_job(self, job: Job, expected: JobState, files: Sequence[FileRecord] = ()) -> bool:
        check_job_transition(expected, job.state)
        for record in files:
            await self._flush_upload(record.id)
        records = [value for record in files for value in (record.id, _encode(record))]
        is_final = int(job.state in FINAL_STATES)
        moved = await self._script(
            redis_scripts.MOVE_JOB,
            *(job.id, expected.value, job.state.value, job.deadline, job.total, _encode(job), is_final),
            *records,
        )
        for record in files:
            self._uploads.pop(record.id, None)
        return bool(moved)

    async def count(self, job_id: JobId) -> Counts:
        total, cursor, succeeded, failed, leased, waiting, ready = await self._script(
            redis_scripts.COUNT, job_id
        )
        return Counts(
            total=total,
            untouched=total - cursor,
            leased=leased,
            waiting=waiting,
            ready=ready,
            succeeded=succeeded,
            failed=failed,
            dropped=cursor - leased - waiting - ready - succeeded - failed,
        )

    async def get_totals(self, job_id: JobId) -> dict[str, int]:
        found = await self._guard(lambda: self._redis.hgetall(self._key("job", job_id, "totals")))
        return {name.decode(): int(value) for name, value in found.items()}

    async def take_duty(self, name: str, worker: str, lease_s: float) -> bool:
        return bool(await self._script(redis_scripts.TAKE_DUTY, name, worker, int(lease_s * 1000)))

    async def drop_duty(self, name: str, worker: str) -> None:
        await self._script(redis_scripts.DROP_DUTY, name, worker)

    # Work

    async def claim(self, limit: int, lease_s: float) -> list[Claimed]:
        rows = await self._script(redis_scripts.CLAIM, limit, lease_s)
        keys = [(ItemKey(JobId(job.decode()), int(line)), int(token)) for job, line, token in rows]

        async def read_logs() -> list[list[bytes]]:
            async with self._redis.pipeline(transaction=False) as pipeline:
                for key, _ in keys:
                    pipeline.lrange(self._key("job", key.job_id, "log", key.line), 0, -1)
                logs: list[list[bytes]] = await pipeline.execute()
                return logs

        logs = await self._guard(read_logs) if keys else []
        return [Claimed(key, token, tuple(log)) for (key, token), log in zip(keys, logs, strict=True)]

    async def renew(self, held: Sequence[tuple[ItemKey, int]], lease_s: float) -> set[ItemKey]:
        if not held:
            return set()
        values = [value for key, token in held for value in (*key, token)]
        lost = await self._script(redis_scripts.RENEW, lease_s, *values)
        return {held[int(index)][0] for index in lost}

    async def apply(self, changes: Sequence[Change]) -> set[ItemKey]:
        refused: set[ItemKey] = set()
        for start in range(0, len(changes), _CHANGES_PER_CALL):
            some = changes[start : start + _CHANGES_PER_CALL]
            values = [value for change in some for value in _row(change)]
            refused |= {some[int(index)].key for index in await self._script(redis_scripts.APPLY, *values)}
        return refused

    async def drop_open_items(self, job_id: JobId) -> None:
        await self._script(redis_scripts.DROP_OPEN, job_id)

    async def read_results(self, job_id: JobId, after_line: int, limit: int) -> list[Result]:
        total = (await self.count(job_id)).total
        results: list[Result] = []
        line = after_line
        while len(results) < limit and line < total:
            lines = list(range(line + 1, min(line + 1000, total) + 1))
            results += await self._results(job_id, lines)
            line = lines[-1]
        return results[:limit]

    async def tail_results(self, job_id: JobId, after_sequence: int, limit: int) -> list[Result]:
        order = self._key("job", job_id, "order")
        last = after_sequence + limit - 1
        lines = await self._guard(lambda: self._redis.lrange(order, after_sequence, last))
        return await self._results(job_id, [int(line) for line in lines], after_sequence)

    async def _results(self, job_id: JobId, lines: list[int], before: int = 0) -> list[Result]:
        if not lines:
            return []
        bodies = await self._guard(lambda: self._redis.hmget(self._key("job", job_id, "results"), lines))
        return [
            Result(before + position, line, _MARKED_STATES[body[0]], body[1:])
            for position, (line, body) in enumerate(zip(lines, bodies, strict=True), start=1)
            if body is not None
        ]


def _row(change: Change) -> tuple[str | int | float | bytes, ...]:
    """The eight script arguments of one change."""
    amounts = " ".join(f"{name}:{amount}" for name, amount in change.amounts.items())
    match change:
        case Save(key=key, token=token, entry=entry):
            return ("save", *key, token, 0, 0, entry, amounts)
        case Return(key=key, token=token, delay_s=delay_s, is_sunk=is_sunk, entry=entry):
            return ("return", *key, token, delay_s, int(is_sunk), entry or b"", amounts)
        case Finish(key=key, token=token, state=state, result=result):
            return ("finish", *key, token, state.value, 0, _STATE_MARKS[state] + result, amounts)
