"""One suite over every batch store: what is claimed when, what a token may write, what survives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from extproc.batch.job import Counts, FileId, ItemKey, ItemState, Job, JobId, JobState
from extproc.batch.stores.contract import (
    Change,
    Claimed,
    FileRecord,
    Finish,
    JobStore,
    Return,
    Save,
    StoreUnavailableError,
)
from extproc.batch.stores.redis import RedisStore
from extproc.batch.stores.sqlite import SqliteStore
from extproc.clock import SystemClock
from extproc.errors import InvariantError
from tests.support.redis_server import RedisServer, find_redis_server

LEASE_S = 30.0
BLINK_S = 0.02


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    if find_redis_server() is None:
        pytest.skip("no redis-server on this machine (apt-get install redis-server)")
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.kill()


@pytest.fixture(params=["sqlite", "redis"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[JobStore]:
    made: JobStore
    if request.param == "sqlite":
        made = SqliteStore(tmp_path, SystemClock())
    else:
        server: RedisServer = request.getfixturevalue("redis_server")
        made = RedisStore(server.url, prefix=request.node.name)
    await made.open()
    yield made
    await made.close()


async def start_job(store: JobStore, name: str = "job", lines: int = 3, deadline: float = 1000.0) -> Job:
    job = Job(
        id=JobId(name),
        endpoint="/v1/completions",
        input_file_id=FileId("file-1"),
        completion_window="24h",
        created_at=1.0,
        deadline=deadline,
    )
    job = await store.insert_job(job)
    running = replace(job, state=JobState.IN_PROGRESS, total=lines)
    assert await store.move_job(running, JobState.VALIDATING)
    return running


def lines_of(claimed: list[Claimed]) -> list[tuple[str, int]]:
    return [(item.key.job_id, item.key.line) for item in claimed]


async def wait_for_claim(store: JobStore) -> Claimed:
    async with asyncio.timeout(10):
        while not (claimed := await store.claim(1, LEASE_S)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return claimed[0]


async def test_files_are_invisible_until_sealed_and_read_by_position(store: JobStore) -> None:
    file_id = FileId("file-a")
    content = bytes(range(256)) * 10_000
    for start in range(0, len(content), 700_001):
        await store.append_file(file_id, content[start : start + 700_001])
    assert await store.get_file(file_id) is None
    record = FileRecord(
        id=file_id, filename="in.jsonl", purpose="batch", size_bytes=len(content), created_at=5.0
    )
    await store.seal_file(record)
    assert await store.get_file(file_id) == record
    assert await store.list_files() == [record]
    for offset, size in (
        (0, 10),
        (1_048_570, 20),
        (2_000_000, 1_000_000),
        (len(content), 5),
        (0, len(content)),
    ):
        assert await store.read_file(file_id, offset, size) == content[offset : offset + size]
    assert await store.delete_file(file_id)
    assert not await store.delete_file(file_id)
    assert await store.read_file(file_id, 0, 10) == b""


async def test_abandoned_upload_leaves_nothing(store: JobStore) -> None:
    await store.append_file(FileId("file-b"), b"x" * 3_000_000)
    assert not await store.delete_file(FileId("file-b"))
    assert await store.list_files() == []


async def test_empty_file(store: JobStore) -> None:
    record = FileRecord(id=FileId("file-c"), filename="e", purpose="batch", size_bytes=0, created_at=5.0)
    await store.append_file(record.id, b"")
    await store.seal_file(record)
    assert await store.read_file(record.id, 0, 100) == b""
    assert await store.get_file(record.id) == record


async def test_jobs_are_listed_newest_first_and_by_deadline(store: JobStore) -> None:
    for name, deadline in (("a", 30.0), ("b", 10.0), ("c", 20.0)):
        await start_job(store, name, deadline=deadline)
    assert [job.id for job in await store.list_jobs()] == ["c", "b", "a"]
    assert [job.id for job in await store.list_jobs(after=JobId("c"), limit=1)] == ["b"]
    assert [job.id for job in await store.list_jobs(after=JobId("nobody"))] == []
    assert [job.id for job in await store.list_open_jobs()] == ["b", "c", "a"]
    assert [job.sequence for job in await store.list_jobs()] == [3, 2, 1]
    assert await store.get_job(JobId("z")) is None


async def test_field_bug_139_a_job_id_is_used_once(store: JobStore) -> None:
    job = await start_job(store)
    with pytest.raises(StoreUnavailableError):
        await store.insert_job(job)


async def test_a_job_moves_only_from_the_expected_state(store: JobStore) -> None:
    job = await start_job(store)
    cancelling = replace(job, state=JobState.CANCELLING)
    assert not await store.move_job(replace(job, state=JobState.CANCELLED), JobState.CANCELLING)
    with pytest.raises(InvariantError):
        await store.move_job(cancelling, JobState.VALIDATING)
    assert await store.move_job(cancelling, JobState.IN_PROGRESS)
    assert not await store.move_job(replace(job, state=JobState.FINALIZING), JobState.IN_PROGRESS)
    assert await store.get_job(job.id) == cancelling
    assert await store.claim(5, LEASE_S) == []


async def test_claims_follow_deadline_then_job_then_line(store: JobStore) -> None:
    await start_job(store, "late", lines=2, deadline=50.0)
    await start_job(store, "soon", lines=2, deadline=20.0)
    await start_job(store, "soon-too", lines=2, deadline=20.0)
    assert lines_of(await store.claim(3, LEASE_S)) == [("soon", 1), ("soon", 2), ("soon-too", 1)]
    assert lines_of(await store.claim(9, LEASE_S)) == [("soon-too", 2), ("late", 1), ("late", 2)]
    assert await store.claim(9, LEASE_S) == []


async def test_returned_items_come_before_untouched_ones_sunk_first(store: JobStore) -> None:
    job = await start_job(store, lines=12)
    held = {item.key.line: item for item in await store.claim(11, LEASE_S)}
    changes: list[Change] = [
        Return(held[line].key, held[line].token, 0.0, is_sunk=line in (3, 11)) for line in (2, 3, 10, 11)
    ]
    assert await store.apply(changes) == set()
    assert lines_of(await store.claim(9, LEASE_S)) == [(job.id, line) for line in (3, 11, 2, 10, 12)]


async def test_field_bug_131_a_returned_item_waits_out_its_delay(store: JobStore) -> None:
    await start_job(store, lines=1)
    (item,) = await store.claim(1, LEASE_S)
    await store.apply([Return(item.key, item.token, 3600.0, is_sunk=False)])
    assert await store.claim(1, LEASE_S) == []
    assert (await store.count(item.key.job_id)).waiting == 1


async def test_a_short_delay_passes(store: JobStore) -> None:
    await start_job(store, lines=1)
    (item,) = await store.claim(1, LEASE_S)
    await store.apply([Return(item.key, item.token, BLINK_S, is_sunk=True)])
    again = await wait_for_claim(store)
    assert (again.key, again.token) == (item.key, item.token + 1)


async def test_saved_entries_come_back_in_order_to_the_next_owner(store: JobStore) -> None:
    await start_job(store, lines=2)
    (item,) = await store.claim(1, LEASE_S)
    assert item.entries == ()
    await store.apply([Save(item.key, item.token, b"one"), Save(item.key, item.token, b"two\x00\xff")])
    await store.apply([Return(item.key, item.token, 0.0, is_sunk=True, entry=b"three")])
    (again,) = await store.claim(1, LEASE_S)
    assert again.key == item.key
    assert again.entries == (b"one", b"two\x00\xff", b"three")


async def test_field_bug_137_stalled_owner_is_fenced_off(store: JobStore) -> None:
    job = await start_job(store, lines=1)
    (stalled,) = await store.claim(1, BLINK_S)
    await store.apply([Save(stalled.key, stalled.token, b"before")])
    successor = await wait_for_claim(store)
    assert successor.entries == (b"before",)
    late: list[Change] = [
        Save(stalled.key, stalled.token, b"late"),
        Finish(stalled.key, stalled.token, ItemState.SUCCEEDED, b"late"),
        Return(stalled.key, stalled.token, 0.0, is_sunk=True),
    ]
    assert await store.apply(late) == {stalled.key}
    assert await store.renew([(stalled.key, stalled.token)], LEASE_S) == {stalled.key}
    token = successor.token
    assert await store.renew([(stalled.key, token)], LEASE_S) == set()
    assert await store.apply([Finish(stalled.key, token, ItemState.SUCCEEDED, b"good")]) == set()
    assert [result.body for result in await store.read_results(job.id, 0, 10)] == [b"good"]


async def test_a_lease_that_ran_out_but_was_not_taken_is_still_the_owners(store: JobStore) -> None:
    await start_job(store, lines=1)
    (item,) = await store.claim(1, 0.001)
    await asyncio.sleep(0.01)
    assert await store.renew([(item.key, item.token)], LEASE_S) == set()
    assert await store.claim(1, LEASE_S) == []


async def test_exactly_one_result_however_often_it_is_written(store: JobStore) -> None:
    job = await start_job(store, lines=2)
    first, second = await store.claim(2, LEASE_S)
    finish = Finish(first.key, first.token, ItemState.SUCCEEDED, b"ok")
    assert await store.apply([finish, finish]) == {first.key}
    assert await store.apply([finish]) == {first.key}
    await store.apply([Finish(second.key, second.token, ItemState.FAILED, b"bad")])
    assert await store.count(job.id) == Counts(total=2, succeeded=1, failed=1)
    results = await store.read_results(job.id, 0, 10)
    assert [(result.line, result.state, result.body) for result in results] == [
        (1, ItemState.SUCCEEDED, b"ok"),
        (2, ItemState.FAILED, b"bad"),
    ]


async def test_results_by_line_and_as_they_came(store: JobStore) -> None:
    job = await start_job(store, lines=5)
    held = {item.key.line: item for item in await store.claim(5, LEASE_S)}
    for line in (4, 1, 5):
        await store.apply([Finish(held[line].key, held[line].token, ItemState.SUCCEEDED, b"%d" % line)])
    assert [result.line for result in await store.read_results(job.id, 0, 2)] == [1, 4]
    assert [result.line for result in await store.read_results(job.id, 4, 10)] == [5]
    came = await store.tail_results(job.id, 0, 2)
    assert [result.line for result in came] == [4, 1]
    assert [result.line for result in await store.tail_results(job.id, came[-1].sequence, 10)] == [5]


async def test_counts_add_up_at_every_step(store: JobStore) -> None:
    job = await start_job(store, lines=6)
    assert await store.count(job.id) == Counts(total=6, untouched=6)
    a, b, c, d = await store.claim(4, LEASE_S)
    assert await store.count(job.id) == Counts(total=6, untouched=2, leased=4)
    changes: list[Change] = [
        Finish(a.key, a.token, ItemState.SUCCEEDED, b"x"),
        Return(b.key, b.token, 99.0, is_sunk=False),
        Return(c.key, c.token, 0.0, is_sunk=False),
    ]
    await store.apply(changes)
    counts = Counts(total=6, untouched=2, leased=1, waiting=1, ready=1, succeeded=1)
    assert await store.count(job.id) == counts
    await store.drop_open_items(job.id)
    assert await store.count(job.id) == Counts(total=6, untouched=2, succeeded=1, dropped=3)
    assert await store.apply([Finish(d.key, d.token, ItemState.SUCCEEDED, b"late")]) == {d.key}


async def test_closing_a_job_withdraws_its_leases_and_keeps_its_counts(store: JobStore) -> None:
    job = await start_job(store, lines=4)
    first, second = await store.claim(2, LEASE_S)
    await store.apply([Finish(first.key, first.token, ItemState.SUCCEEDED, b"x")])
    cancelling = replace(job, state=JobState.CANCELLING)
    assert await store.move_job(cancelling, JobState.IN_PROGRESS)
    assert await store.renew([(second.key, second.token)], LEASE_S) == {second.key}
    await store.append_file(FileId("out"), b"x\n")
    output = FileRecord(
        id=FileId("out"), filename="out", purpose="batch_output", size_bytes=2, created_at=9.0
    )
    cancelled = replace(cancelling, state=JobState.CANCELLED, output_file_id=output.id)
    assert await store.move_job(cancelled, JobState.CANCELLING, [output])
    assert await store.read_file(output.id, 0, 10) == b"x\n"
    assert await store.count(job.id) == Counts(total=4, succeeded=1, dropped=3)
    assert await store.read_results(job.id, 0, 10) == []
    assert await store.list_open_jobs() == []


async def test_a_refused_move_makes_no_file_visible(store: JobStore) -> None:
    job = await start_job(store)
    await store.append_file(FileId("out"), b"x\n")
    output = FileRecord(
        id=FileId("out"), filename="out", purpose="batch_output", size_bytes=2, created_at=9.0
    )
    assert not await store.move_job(replace(job, state=JobState.COMPLETED), JobState.FINALIZING, [output])
    assert await store.get_file(output.id) is None


async def test_field_bug_136_concurrent_claims_never_share_an_item(store: JobStore) -> None:
    await start_job(store, lines=200)
    rounds = await asyncio.gather(*[store.claim(13, LEASE_S) for _ in range(20)])
    lines = [item.key.line for items in rounds for item in items]
    assert sorted(lines) == list(range(1, 201))


async def test_duties_have_one_holder_and_pass_on_when_it_falls_silent(store: JobStore) -> None:
    assert await store.take_duty("validate:job", "a", LEASE_S)
    assert await store.take_duty("validate:job", "a", BLINK_S)
    async with asyncio.timeout(10):
        while not await store.take_duty("validate:job", "b", LEASE_S):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    await store.drop_duty("validate:job", "a")
    assert not await store.take_duty("validate:job", "a", LEASE_S)
    await store.drop_duty("validate:job", "b")
    assert await store.take_duty("validate:job", "a", LEASE_S)


async def test_unknown_keys_are_refused_not_errors(store: JobStore) -> None:
    ghost = ItemKey(JobId("ghost"), 1)
    assert await store.apply([Save(ghost, 1, b"x")]) == {ghost}
    assert await store.renew([(ghost, 1)], LEASE_S) == {ghost}
    assert await store.apply([]) == set()
    assert await store.count(ghost.job_id) == Counts()


async def test_totals_count_accepted_changes_only(store: JobStore) -> None:
    job = await start_job(store, lines=3)
    assert await store.get_totals(job.id) == {}
    first, second, third = await store.claim(3, LEASE_S)
    changes: list[Change] = [
        Save(first.key, first.token, b"x", {"output_tokens": 100, "evictions": 0}),
        Return(second.key, second.token, 0.0, is_sunk=False, amounts={"evictions": 1}),
        Finish(third.key, third.token, ItemState.SUCCEEDED, b"x", {"output_tokens": 5}),
        Save(first.key, first.token + 1, b"stale", {"output_tokens": 1000}),
    ]
    assert await store.apply(changes) == {first.key}
    assert await store.get_totals(job.id) == {"output_tokens": 105, "evictions": 1}
    assert await store.get_totals(JobId("other")) == {}
