"""Faults that other batch systems have had, tried on this one; numbers are those of tests/FIELD_BUGS.md."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from extproc.batch.intake import COMPLETIONS
from extproc.client.batches import BatchesClient
from extproc.clock import SystemClock
from extproc.config.batch import BatchConfig, RedisStoreConfig, RetryConfig, WindowConfig
from tests.support.batch_app import (
    batch_line,
    emulator,
    fast_config,
    output_lines,
    run_job,
    running,
    wait_for_end,
)
from tests.support.redis_server import RedisServer, find_redis_server
from tests.support.scripted_engine import ScriptedEngine, one_token, refusal
from tests.support.waiting import eventually


def lines(count: int, tokens: int = 1) -> bytes:
    body: dict[str, object] = {"prompt": "x", "temperature": 0, "max_tokens": tokens}
    return b"".join(batch_line(str(number), COMPLETIONS, body) for number in range(count))


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    if find_redis_server() is None:
        pytest.skip("no redis-server on this machine (apt-get install redis-server)")
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.kill()


async def test_field_bug_131_attempts_follow_the_backoff(tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda n, request: _async(refusal(500)))
    async with engine.running() as url:
        config = replace(
            fast_config(url, tmp_path), retry=RetryConfig(base_s=0.4, cap_s=0.8, max_failures=1000)
        )
        async with running(config) as app, BatchesClient(f"http://127.0.0.1:{app.api_port}") as client:
            (tmp_path / "in.jsonl").write_bytes(lines(1))
            file = await client.upload(tmp_path / "in.jsonl")
            batch = await client.create(file["id"], COMPLETIONS, "1.5s")
            ended = await wait_for_end(client, batch["id"], 30)
    assert ended["status"] == "expired"
    # Full jitter up to 0.8 s: about 4 in 1.5 s, never a burst at the polling rate (30).
    assert 1 <= engine.calls <= 15


async def test_field_bug_134_retries_leak_no_slot(tmp_path: Path) -> None:
    async def reply(n: int, request: web.Request) -> web.StreamResponse:
        return refusal(429, "rejected-saturated", "0") if n <= 8 else await one_token(request)

    engine = ScriptedEngine(reply)
    async with engine.running() as url:
        config = replace(
            fast_config(url, tmp_path), window=WindowConfig(initial=4, minimum=4, maximum=4, max_queued=4)
        )
        batch, results = await run_job(config, COMPLETIONS, lines(40))
    assert len(results) == 40
    assert batch["request_counts"] == {"total": 40, "completed": 40, "failed": 0}
    assert engine.most_at_once <= 4
    assert engine.calls == 48


async def test_field_bug_142_refusals_never_fail_an_item(tmp_path: Path) -> None:
    async def reply(n: int, request: web.Request) -> web.StreamResponse:
        return refusal(429, "rejected-saturated") if n <= 40 else await one_token(request)

    engine = ScriptedEngine(reply)
    async with engine.running() as url:
        config = replace(
            fast_config(url, tmp_path), retry=RetryConfig(base_s=0.01, cap_s=0.02, max_failures=2)
        )
        batch, results = await run_job(config, COMPLETIONS, lines(3))
    assert batch["request_counts"]["failed"] == 0
    assert len(results) == 3


async def test_field_bug_142_the_window_shrinks_when_pushed_back(tmp_path: Path) -> None:
    async def reply(n: int, request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.02)
        return refusal(429, "rejected-saturated", "0")

    engine = ScriptedEngine(reply)
    async with engine.running() as url:
        window = WindowConfig(initial=16, max_queued=16, interval_s=0.05)
        config = replace(fast_config(url, tmp_path), window=window)
        async with running(config) as app, BatchesClient(f"http://127.0.0.1:{app.api_port}") as client:
            (tmp_path / "in.jsonl").write_bytes(lines(100))
            file = await client.upload(tmp_path / "in.jsonl")
            await client.create(file["id"], COMPLETIONS, "1h")
            async with asyncio.timeout(30):
                while app.metric("extproc_batch_window_requests") > 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)


async def test_field_bug_140_a_hung_server_blocks_nobody(tmp_path: Path) -> None:
    hung = 0

    async def reply(n: int, request: web.Request) -> web.StreamResponse:
        nonlocal hung
        if "hang" in await request.text():
            hung += 1
            await asyncio.sleep(60)
        return await one_token(request)

    engine = ScriptedEngine(reply)
    bodies: list[dict[str, object]] = [{"prompt": "hang", "max_tokens": 1}] * 4 + [
        {"prompt": "x", "max_tokens": 1}
    ] * 32
    content = b"".join(batch_line(str(number), COMPLETIONS, body) for number, body in enumerate(bodies))
    async with engine.running() as url:
        config = fast_config(url, tmp_path)
        config = replace(config, gateway=replace(config.gateway, queue_timeout_s=0.2))
        config = replace(config, retry=RetryConfig(base_s=0.01, cap_s=0.02, max_failures=2))
        batch, results = await run_job(config, COMPLETIONS, content)
    assert len(results) == 32
    assert batch["request_counts"]["failed"] == 4
    assert hung == 8


async def test_an_absent_server_costs_no_attempts(tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda n, request: one_token(request))
    async with engine.running() as url:
        pass
    config = replace(fast_config(url, tmp_path), retry=RetryConfig(base_s=0.02, cap_s=0.05, max_failures=1))
    async with running(config) as app, BatchesClient(f"http://127.0.0.1:{app.api_port}") as client:
        (tmp_path / "in.jsonl").write_bytes(lines(5))
        file = await client.upload(tmp_path / "in.jsonl")
        batch = await client.create(file["id"], COMPLETIONS, "1h")
        async with asyncio.timeout(20):
            while (await client.get(batch["id"]))["extproc"]["totals"]["attempts"] < 5:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        running_batch = await client.get(batch["id"])
        assert running_batch["request_counts"]["failed"] == 0


async def test_servers_away_behind_a_proxy_cost_no_attempts(tmp_path: Path) -> None:
    async def reply(n: int, request: web.Request) -> web.StreamResponse:
        return refusal(503) if n <= 40 else await one_token(request)

    engine = ScriptedEngine(reply)
    async with engine.running() as url:
        config = replace(
            fast_config(url, tmp_path), retry=RetryConfig(base_s=0.01, cap_s=0.02, max_failures=4)
        )
        batch, results = await run_job(config, COMPLETIONS, lines(3))
    assert batch["request_counts"]["failed"] == 0
    assert len(results) == 3


async def test_a_request_that_always_fails_is_given_up(tmp_path: Path) -> None:
    async def reply(n: int, request: web.Request) -> web.StreamResponse:
        return refusal(503) if "poison" in await request.text() else await one_token(request)

    engine = ScriptedEngine(reply)
    bodies: list[dict[str, object]] = [
        {"prompt": "poison", "max_tokens": 1},
        *[{"prompt": "x", "max_tokens": 1}] * 200,
    ]
    content = b"".join(batch_line(str(number), COMPLETIONS, body) for number, body in enumerate(bodies))
    async with engine.running() as url:
        config = replace(
            fast_config(url, tmp_path), retry=RetryConfig(base_s=0.01, cap_s=0.02, max_failures=4)
        )
        batch, results = await run_job(config, COMPLETIONS, content)
    assert len(results) == 200
    assert batch["request_counts"]["failed"] == 1


async def test_field_bug_136_four_workers_share_a_job_without_sending_twice(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    store = RedisStoreConfig(url=redis_server.url, prefix="four-workers")
    seen: dict[str, int] = {}

    async def reply(n: int, request: web.Request) -> web.StreamResponse:
        request_id = request.headers["x-request-id"]
        seen[request_id] = seen.get(request_id, 0) + 1
        await asyncio.sleep(random.Random(n).uniform(0.0, 0.02))
        return await one_token(request)

    engine = ScriptedEngine(reply)
    async with engine.running() as url:
        config = fast_config(url, store)
        async with (
            running(config, has_api=False),
            running(config, has_api=False),
            running(config, has_api=False),
        ):
            batch, results = await run_job(config, COMPLETIONS, lines(400))
    assert [line["custom_id"] for line in results] == [str(number) for number in range(400)]
    assert batch["request_counts"] == {"total": 400, "completed": 400, "failed": 0}
    assert set(seen.values()) == {1}
    assert len(seen) == 400


async def test_field_bug_106_a_store_that_is_away_is_said_once_by_each_loop(
    redis_server: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """For many tries of every loop; the work that was running ends as if nothing had happened."""
    store = RedisStoreConfig(url=redis_server.url, prefix="away")
    content = b"".join(
        batch_line(str(n), COMPLETIONS, {"prompt": "x", "max_tokens": 800, "ignore_eos": True})
        for n in range(4)
    )
    caplog.set_level("INFO", logger="extproc.batch")
    with emulator(tmp_path, "--speed", "0.5") as port:
        config = fast_config(f"http://127.0.0.1:{port}", store, lease_s=9.0)
        async with running(config) as app, BatchesClient(f"http://127.0.0.1:{app.api_port}") as client:
            (tmp_path / "in.jsonl").write_bytes(content)
            file = await client.upload(tmp_path / "in.jsonl")
            batch = await client.create(file["id"], COMPLETIONS, "1h")
            await eventually(lambda: app.metric("extproc_batch_output_tokens_total") > 0, poll_s=0.05)
            redis_server.kill()
            told = ["nothing can be claimed", "leases can't be renewed", "jobs can't be looked after"]
            await eventually(lambda: all(what in caplog.text for what in told), poll_s=0.05)
            failed = app.metric("extproc_batch_store_failures_total")
            await eventually(
                lambda: app.metric("extproc_batch_store_failures_total") > failed + 10, poll_s=0.05
            )
            await asyncio.to_thread(redis_server.start)
            ended = await wait_for_end(client, batch["id"], 30)
            await eventually(lambda: "the store is back (nothing can be claimed)" in caplog.text, poll_s=0.05)
    assert ended["request_counts"] == {"total": 4, "completed": 4, "failed": 0}
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    for what in told:
        assert sum(message.startswith(what) for message in warnings) == 1, what


async def test_field_bug_137_waiting_for_a_place_outlives_the_lease(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    """No answer has begun after three leases: nobody else takes the request, and it is sent once."""
    seen: list[float] = []

    async def reply(number: int, request: web.Request) -> web.StreamResponse:
        seen.append(number)
        await asyncio.sleep(3 * 0.8)
        return await one_token(request)

    store = RedisStoreConfig(url=redis_server.url, prefix="queued")
    async with ScriptedEngine(reply).running() as url:
        config = fast_config(url, store, lease_s=0.8)
        async with running(config, has_api=False):
            batch, results = await run_job(config, COMPLETIONS, lines(1))
    assert len(results) == len(seen) == 1
    assert batch["extproc"]["totals"]["attempts"] == 1


async def test_field_bug_137_long_answers_outlive_their_lease(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    store = RedisStoreConfig(url=redis_server.url, prefix="long")
    with emulator(tmp_path, "--speed", "0.5") as port:
        config = fast_config(f"http://127.0.0.1:{port}", store, lease_s=0.8)
        async with running(config, has_api=False):
            content = batch_line("a", COMPLETIONS, {"prompt": "x", "max_tokens": 300, "ignore_eos": True})
            batch, results = await run_job(config, COMPLETIONS, content)
    assert len(results) == 1
    assert batch["extproc"]["totals"]["attempts"] == 1
    assert batch["extproc"]["totals"]["output_tokens"] == 300


@pytest.mark.slow
async def test_throughput_grows_with_workers_until_the_pool_is_the_limit(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    pool = asyncio.Semaphore(12)

    async def reply(n: int, request: web.Request) -> web.StreamResponse:
        async with pool:
            await asyncio.sleep(0.25)
            return await one_token(request)

    took_s: list[float] = []
    clock = SystemClock()
    engine = ScriptedEngine(reply)
    async with engine.running() as url:
        for workers in (1, 2, 4):
            store = RedisStoreConfig(url=redis_server.url, prefix=f"scale-{workers}")
            window = WindowConfig(initial=4, minimum=4, maximum=4, max_queued=4)
            config = replace(fast_config(url, store), window=window)
            async with contextlib.AsyncExitStack() as stack:
                for _ in range(workers - 1):
                    await stack.enter_async_context(running(config, has_api=False))
                started = clock.now()
                batch, results = await run_job(config, COMPLETIONS, lines(96))
                took_s.append(clock.now() - started)
            assert len(results) == 96
            assert batch["extproc"]["totals"]["attempts"] == 96
    one, two, four = took_s
    assert one / two > 1.4
    assert two / four > 1.15
    assert engine.calls == 3 * 96


async def test_field_bug_139_cancel_and_submit_again_are_two_jobs(tmp_path: Path) -> None:
    async def reply(n: int, request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.02)
        return await one_token(request)

    engine = ScriptedEngine(reply)
    async with engine.running() as url:
        config: BatchConfig = fast_config(url, tmp_path)
        async with running(config) as app, BatchesClient(f"http://127.0.0.1:{app.api_port}") as client:
            (tmp_path / "in.jsonl").write_bytes(lines(50))
            file = await client.upload(tmp_path / "in.jsonl")
            first = await client.create(file["id"], COMPLETIONS, "1h")
            await client.cancel(first["id"])
            second, third = [await client.create(file["id"], COMPLETIONS, "1h") for _ in range(2)]
            ended = [await wait_for_end(client, one["id"], 30) for one in (first, second, third)]
            assert [one["status"] for one in ended] == ["cancelled", "completed", "completed"]
            for one in ended[1:]:
                assert len(await output_lines(client, one["output_file_id"])) == 50


async def _async(response: web.StreamResponse) -> web.StreamResponse:
    return response


async def test_one_broken_job_does_not_stop_the_others(tmp_path: Path) -> None:
    async def reply(n: int, request: web.Request) -> web.StreamResponse:
        if "hang" in await request.text():
            await asyncio.sleep(60)
        return await one_token(request)

    hanging = batch_line("a", COMPLETIONS, {"prompt": "hang", "max_tokens": 1})
    engine = ScriptedEngine(reply)
    async with engine.running() as url:
        config = fast_config(url, tmp_path)
        async with running(config) as app, BatchesClient(f"http://127.0.0.1:{app.api_port}") as client:
            (tmp_path / "in.jsonl").write_bytes(hanging)
            file = await client.upload(tmp_path / "in.jsonl")
            broken = await client.create(file["id"], COMPLETIONS, "0.5s")
            async with asyncio.timeout(20):
                while engine.calls == 0:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            (tmp_path / "files" / file["id"]).unlink()
            async with asyncio.timeout(20):
                while (await client.get(broken["id"]))["status"] != "finalizing":  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            (tmp_path / "in.jsonl").write_bytes(lines(5))
            file = await client.upload(tmp_path / "in.jsonl")
            good = await client.create(file["id"], COMPLETIONS, "1h")
            assert (await wait_for_end(client, good["id"], 20))["request_counts"]["completed"] == 5
