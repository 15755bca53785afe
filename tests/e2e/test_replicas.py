"""Three replicas on one pool through the real Envoy: what each of them, the allocator and Redis may suffer.

Every test runs interactive requests and a batch job and asks for: failures only of streams that a killed
replica held, the engine's own count within the capacity, all credits back in time, and the batch's tokens
equal to those of an uninterrupted run.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from extproc.batch.intake import COMPLETIONS
from extproc.stack.redis import answers_ping
from tests.e2e.batch.test_faults import Job
from tests.support.replica_rig import (
    LEASE_S,
    REPLICAS,
    SHARE,
    SLOTS,
    EngineWatch,
    InteractiveLoad,
    ReplicaRig,
)

Faults = Callable[[ReplicaRig], Awaitable[int]]
"""What happens meanwhile; returns how many requests may fail by it."""

BACK_S = 2 * LEASE_S + 1.0
"""Two lease times; a second more for a busy machine."""


async def under_load(folder: Path, faults: Faults, *, requests: int, may_exceed: int = 0) -> None:
    job = Job(requests=requests, tokens=150)
    rig = ReplicaRig(folder)
    may_fail = 0
    with rig.running():
        watch = EngineWatch(rig.engine_url)
        load = InteractiveLoad(rig.group.url)

        async def happen() -> None:
            nonlocal may_fail
            await rig.until_busy(watch)
            may_fail = await faults(rig)

        watching = asyncio.create_task(watch.run())
        async with load.running():
            batch, lines = await rig.run_job(COMPLETIONS, job.content, happen, timeout_s=150.0)
        watching.cancel()
        failures = load.failures()
        assert len(failures) <= may_fail, failures[:3]
        assert len(load.ends) > 20
        assert SLOTS <= watch.peak <= SLOTS + may_exceed
        await job.check(rig, batch, lines)


async def test_killed_allocator(tmp_path: Path) -> None:
    async def faults(rig: ReplicaRig) -> int:
        leader = await rig.leader()
        held = await rig.held_by(leader)
        rig.kill(leader)
        others = [index for index in range(REPLICAS) if index != leader]
        await rig.until_credits_are_back(others, BACK_S)
        assert await rig.leader() in others
        return held + 3  # that many may have arrived since they were counted

    await under_load(tmp_path, faults, requests=24)


@pytest.mark.slow
async def test_killed_replica_that_comes_back(tmp_path: Path) -> None:
    async def faults(rig: ReplicaRig) -> int:
        victim = (await rig.leader() + 1) % REPLICAS
        held = await rig.held_by(victim)
        rig.kill(victim)
        await rig.until_credits_are_back([i for i in range(REPLICAS) if i != victim], BACK_S)
        await asyncio.to_thread(rig.group.start_extproc, victim)
        await rig.until_credits_are_back(range(REPLICAS), BACK_S)
        return held + 3

    await under_load(tmp_path, faults, requests=60)


@pytest.mark.slow
async def test_killed_redis_that_is_started_again_after_ten_seconds(tmp_path: Path) -> None:
    async def faults(rig: ReplicaRig) -> int:
        rig.group.child("redis").signal(signal.SIGKILL)
        for index in range(REPLICAS):
            await rig.until_state(index, "fallback")
        await asyncio.sleep(10 - LEASE_S)
        await asyncio.to_thread(rig.group.start_redis)
        await rig.until_credits_are_back(range(REPLICAS), BACK_S)
        return 0

    await under_load(tmp_path, faults, requests=120, may_exceed=REPLICAS - 1)


@pytest.mark.slow
async def test_replica_that_is_paused_for_ten_seconds(tmp_path: Path) -> None:
    async def faults(rig: ReplicaRig) -> int:
        paused = await rig.leader()
        child = rig.group.child(rig.group.extproc_name(paused))
        child.signal(signal.SIGSTOP)
        try:
            others = [index for index in range(REPLICAS) if index != paused]
            await asyncio.sleep(10)
            assert await rig.leader() in others
        finally:
            child.signal(signal.SIGCONT)
        await rig.until_credits_are_back(range(REPLICAS), BACK_S)
        return 0

    await under_load(tmp_path, faults, requests=120, may_exceed=SHARE)


@pytest.mark.slow
async def test_partition_between_one_replica_and_redis(tmp_path: Path) -> None:
    async def faults(rig: ReplicaRig) -> int:
        rig.proxy.cut()
        await rig.until_state(0, "fallback")
        await asyncio.sleep(5)
        rig.proxy.mend()
        await rig.until_credits_are_back(range(REPLICAS), BACK_S)
        return 0

    await under_load(tmp_path, faults, requests=100, may_exceed=SHARE)


@pytest.mark.slow
async def test_field_bug_130_rolling_restart_of_all_three_fails_no_request(tmp_path: Path) -> None:
    async def faults(rig: ReplicaRig) -> int:
        for index in range(REPLICAS):
            child = rig.group.child(rig.group.extproc_name(index))
            child.signal(signal.SIGTERM)
            assert await asyncio.to_thread(child.wait, 60) == 0
            await asyncio.to_thread(rig.group.start_extproc, index)
            await rig.until_credits_are_back(range(REPLICAS), BACK_S)
        return 0

    await under_load(tmp_path, faults, requests=160)


@pytest.mark.slow
async def test_without_redis_nothing_is_served_and_everything_once_it_is_there(tmp_path: Path) -> None:
    rig = ReplicaRig(tmp_path)
    with rig.running():
        rig.group.child("redis").stop()
        rig.kill(1)
        rig.group.spawn_extproc(1)
        await rig.until_state(1, "starting")
        assert not answers_ping(rig.group.redis_port)
        await asyncio.to_thread(rig.group.start_redis)
        await rig.until_credits_are_back(range(REPLICAS), BACK_S)
