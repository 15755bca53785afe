"""Everything that a batch depends on is killed, stopped or filled up while it runs; the results are always
the same.

Each test ends with: exactly one result per line, the tokens of an uninterrupted run, counts that add up.
"""

from __future__ import annotations

import asyncio
import os
import random
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from extproc.batch.intake import COMPLETIONS
from extproc.config.batch import WorkerConfig
from tests.support.batch_app import batch_line, direct_replies
from tests.support.fault_rig import FaultRig
from tests.support.redis_server import RedisServer, find_redis_server

REQUESTS = 40
IN_FLIGHT = 40
SAVE_TOKENS = WorkerConfig().save_tokens
TOKENS = 150


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    if find_redis_server() is None:
        pytest.skip("no redis-server on this machine (apt-get install redis-server)")
    server = RedisServer(tmp_path / "redis")
    server.start()
    yield server
    server.kill()


def sqlite_store(folder: Path) -> dict[str, Any]:
    return {"type": "sqlite", "folder": str(folder / "store")}


def redis_store(server: RedisServer) -> dict[str, Any]:
    return {"type": "redis", "url": server.url, "timeout_s": 2.0}


class Job:
    """The requests of one test and their uninterrupted answers."""

    def __init__(self, requests: int = REQUESTS, tokens: int = TOKENS) -> None:
        self.bodies: list[dict[str, object]] = [
            {
                "prompt": f"tell me about {number}",
                "temperature": 0,
                "max_tokens": tokens,
                "ignore_eos": True,
                "return_token_ids": True,
            }
            for number in range(requests)
        ]
        self.content = b"".join(
            batch_line(str(number), COMPLETIONS, body) for number, body in enumerate(self.bodies)
        )

    async def check(self, rig: FaultRig, batch: dict[str, Any], lines: list[dict[str, Any]]) -> None:
        assert batch["status"] == "completed"
        assert [line["custom_id"] for line in lines] == [str(number) for number in range(len(self.bodies))]
        direct = await direct_replies(rig.engine_url, COMPLETIONS, self.bodies)
        got = [line["response"]["body"]["choices"][0] for line in lines]
        assert [choice["token_ids"] for choice in got] == [
            reply["choices"][0]["token_ids"] for reply in direct
        ]
        assert [choice["text"] for choice in got] == [reply["choices"][0]["text"] for reply in direct]
        assert batch["request_counts"] == {"total": len(lines), "completed": len(lines), "failed": 0}


async def kill_workers(rig: FaultRig, kills: int, rng: random.Random, most_s: float) -> None:
    (worker,) = rig.workers
    for _ in range(kills):
        await asyncio.sleep(rng.uniform(0.0, most_s))
        rig.kill_worker(worker)
        await asyncio.to_thread(rig.restart_worker, worker)


async def test_worker_killed_at_random_instants(tmp_path: Path) -> None:
    job = Job()
    with FaultRig(tmp_path, sqlite_store(tmp_path), speed=0.7).running() as rig:
        batch, lines = await rig.run_job(
            COMPLETIONS, job.content, lambda: kill_workers(rig, 3, random.Random(1), 0.5)
        )
        # A kill loses at most what was not saved yet of each running request.
        lost = await rig.generated_tokens() - REQUESTS * TOKENS
        assert 0 <= lost <= 3 * IN_FLIGHT * SAVE_TOKENS
        await job.check(rig, batch, lines)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(2))
async def test_worker_killed_at_fifty_random_instants(tmp_path: Path, seed: int) -> None:
    job = Job(requests=100, tokens=600)
    with FaultRig(tmp_path, sqlite_store(tmp_path), speed=0.3).running() as rig:
        batch, lines = await rig.run_job(
            COMPLETIONS, job.content, lambda: kill_workers(rig, 50, random.Random(seed), 1.5), timeout_s=300
        )
        await job.check(rig, batch, lines)


@pytest.mark.slow
async def test_engine_killed_and_back(tmp_path: Path) -> None:
    job = Job()

    async def faults() -> None:
        for _ in range(2):
            await asyncio.sleep(0.5)
            rig.kill_engine()
            await asyncio.sleep(0.3)
            await asyncio.to_thread(rig.start_engine)

    with FaultRig(tmp_path, sqlite_store(tmp_path), speed=0.7).running() as rig:
        batch, lines = await rig.run_job(COMPLETIONS, job.content, faults)
        await job.check(rig, batch, lines)


@pytest.mark.slow
async def test_envoy_killed_and_back(tmp_path: Path) -> None:
    job = Job()

    async def faults() -> None:
        stack = rig.stack
        assert stack is not None
        for _ in range(2):
            await asyncio.sleep(0.5)
            stack.child("envoy").signal(signal.SIGKILL)
            stack.child("envoy").wait(10)
            await asyncio.sleep(0.2)
            await asyncio.to_thread(stack.start_envoy)

    with FaultRig(tmp_path, sqlite_store(tmp_path), speed=0.7, with_envoy=True).running() as rig:
        batch, lines = await rig.run_job(COMPLETIONS, job.content, faults)
        await job.check(rig, batch, lines)


async def test_redis_killed_and_back(redis_server: RedisServer, tmp_path: Path) -> None:
    job = Job()

    async def faults() -> None:
        for _ in range(3):
            await asyncio.sleep(0.4)
            redis_server.kill()
            await asyncio.sleep(0.2)
            await asyncio.to_thread(redis_server.start)

    with FaultRig(tmp_path, redis_store(redis_server), speed=0.7).running() as rig:
        batch, lines = await rig.run_job(COMPLETIONS, job.content, faults)
        await job.check(rig, batch, lines)


@pytest.mark.slow
async def test_redis_that_answers_late(redis_server: RedisServer, tmp_path: Path) -> None:
    job = Job()

    async def faults() -> None:
        for _ in range(5):
            await asyncio.sleep(0.2)
            redis_server.pause()
            await asyncio.sleep(0.4)
            redis_server.go_on()

    with FaultRig(tmp_path, redis_store(redis_server), speed=0.7).running() as rig:
        batch, lines = await rig.run_job(COMPLETIONS, job.content, faults)
        await job.check(rig, batch, lines)


@pytest.mark.slow
async def test_stalled_worker_wakes_after_its_lease(redis_server: RedisServer, tmp_path: Path) -> None:
    job = Job()

    async def faults() -> None:
        stalled = await asyncio.to_thread(rig.start_worker, has_api=False)
        for _ in range(2):
            await asyncio.sleep(1.0)
            stalled.signal(signal.SIGSTOP)
            await asyncio.sleep(2.0)  # twice the lease: the other worker has taken over
            stalled.signal(signal.SIGCONT)

    with FaultRig(tmp_path, redis_store(redis_server), speed=0.3).running() as rig:
        batch, lines = await rig.run_job(COMPLETIONS, job.content, faults)
        await job.check(rig, batch, lines)


@pytest.mark.slow
async def test_disk_full_for_a_while(tmp_path: Path) -> None:
    job = Job()

    async def faults() -> None:
        pid = rig.workers[0].pid
        await asyncio.sleep(0.4)
        size = (tmp_path / "store" / "batch.db-wal").stat().st_size
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, hard))
        await asyncio.sleep(0.8)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))

    with FaultRig(tmp_path, sqlite_store(tmp_path), speed=0.7).running() as rig:
        batch, lines = await rig.run_job(COMPLETIONS, job.content, faults)
        await job.check(rig, batch, lines)
        assert "can't be saved" in rig.workers[0].log.read_text()


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_everything_killed_in_any_order(redis_server: RedisServer, tmp_path: Path) -> None:
    job = Job(requests=60, tokens=500)
    rng = random.Random(int(os.environ.get("EXTPROC_FAULT_SEED", "4")))

    async def kill_something() -> None:
        stack = rig.stack
        assert stack is not None
        match rng.choice(["worker", "engine", "redis", "envoy"]):
            case "worker":
                worker = rng.choice(rig.workers)
                rig.kill_worker(worker)
                await asyncio.to_thread(rig.restart_worker, worker, has_api=worker is rig.workers[0])
            case "engine":
                rig.kill_engine()
                await asyncio.to_thread(rig.start_engine)
            case "redis":
                redis_server.kill()
                await asyncio.to_thread(redis_server.start)
            case _:
                stack.child("envoy").signal(signal.SIGKILL)
                stack.child("envoy").wait(10)
                await asyncio.to_thread(stack.start_envoy)

    async def faults() -> None:
        for _ in range(25):
            await asyncio.sleep(rng.uniform(0.0, 1.0))
            await kill_something()

    with FaultRig(tmp_path, redis_store(redis_server), speed=0.4, with_envoy=True).running() as rig:
        rig.start_worker(has_api=False)
        batch, lines = await rig.run_job(COMPLETIONS, job.content, faults, timeout_s=200)
        await job.check(rig, batch, lines)
