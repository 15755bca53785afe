"""Warm standby on a real Redis: one serves, the other takes over within its lease, never both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from extproc.clock import SystemClock
from extproc.config.replicas import ReplicasConfig
from extproc.runtime.replicas.group import build_store
from extproc.runtime.replicas.standby import RedisElection, StandbyMember
from tests.support.redis_server import RedisServer
from tests.support.replica_times import until

LEASE_S = 0.6


class Member:
    def __init__(self, redis: RedisServer, name: str) -> None:
        config = ReplicasConfig(
            mode="standby", redis_url=redis.url, period_s=0.05, lease_s=LEASE_S, leader_lease_s=0.3
        )
        self.is_ready = False
        election = RedisElection(build_store(config, name), config.lease_s)
        self.member = StandbyMember(config, name, election, SystemClock(), self._set_ready)
        self.task = asyncio.get_running_loop().create_task(self.member.run())

    def _set_ready(self, is_ready: bool) -> None:
        self.is_ready = is_ready

    async def stop(self) -> None:
        """Without a good-bye."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@asynccontextmanager
async def pair(redis: RedisServer) -> AsyncIterator[tuple[Member, Member]]:
    members = Member(redis, "a"), Member(redis, "b")
    try:
        yield members
    finally:
        for member in members:
            await member.stop()
            await member.member.leave()


def at_most_one(members: tuple[Member, Member]) -> Callable[[], None]:
    def check() -> None:
        assert sum(member.is_ready and not member.task.done() for member in members) <= 1

    return check


async def test_one_of_two_serves_and_the_other_takes_over_within_its_lease(redis_server: RedisServer) -> None:
    async with pair(redis_server) as members:
        check = at_most_one(members)
        await until(lambda: any(member.is_ready for member in members), always=check)
        active = next(member for member in members if member.is_ready)
        other = next(member for member in members if member is not active)
        assert other.member.status().state == "standby"
        assert other.member.status().leader == active.member.replica
        await active.stop()
        await until(lambda: other.is_ready, always=check)
        assert active.member.status().lease_left_s == 0, "the lease of the dead one was respected"


async def test_one_that_leaves_hands_over_at_once(redis_server: RedisServer) -> None:
    async with pair(redis_server) as members:
        await until(lambda: any(member.is_ready for member in members))
        active = next(member for member in members if member.is_ready)
        other = next(member for member in members if member is not active)
        await active.stop()
        await active.member.leave()
        await until(lambda: other.is_ready)


async def test_the_active_one_stands_back_when_redis_stops_answering(redis_server: RedisServer) -> None:
    async with pair(redis_server) as members:
        check = at_most_one(members)
        await until(lambda: any(member.is_ready for member in members))
        redis_server.pause()
        try:
            await until(lambda: not any(member.is_ready for member in members), always=check)
            assert sum(member.member.status().store_errors for member in members) > 0
        finally:
            redis_server.go_on()
        await until(lambda: any(member.is_ready for member in members), always=check)
