"""Replica agents on a real Redis: credits move, die with their owner, and survive the store's faults."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

import pytest
import redis.asyncio

from extproc.clock import SystemClock
from extproc.config.replicas import ReplicasConfig
from extproc.core.credits import BandUse, Credits, Reclaim, ReplicaDemand, Waiting
from extproc.core.urgency import Need, need_of
from extproc.runtime.replicas.agent import ReplicaAgent
from extproc.runtime.replicas.store import ReplicaStore, StoreError
from tests.support.redis_server import RedisServer

SLOTS = 32
CAPACITY = {"10.0.0.1:8000": Credits(SLOTS, 1 << 40), "10.0.0.2:8000": Credits(SLOTS, 1 << 40)}


class Pool:
    """A replica's flow control in small: batch work that fills whatever it may use."""

    def __init__(self) -> None:
        self.credits: Mapping[str, Credits] = {}
        self.inflight = dict.fromkeys(CAPACITY, 0)
        self.urgent = dict.fromkeys(CAPACITY, 0)
        self.waiting = {-1: 0, 10: 0}
        self.measured_counts: dict[str, int] = {}
        self.holds_sheddable = False

    def capacity(self) -> Mapping[str, Credits]:
        return CAPACITY

    def demand(self) -> ReplicaDemand:
        addresses = list(CAPACITY)
        uses = {
            -1: BandUse([self.inflight[a] for a in addresses], [0] * len(addresses)),
            10: BandUse([self.urgent[a] for a in addresses], [0] * len(addresses)),
        }
        waiting = [Waiting(priority, count, 0) for priority, count in self.waiting.items() if count]
        return ReplicaDemand(addresses=addresses, in_use=uses, waiting=waiting)

    def measured(self) -> Mapping[str, int]:
        return self.measured_counts

    def need(self) -> Need:
        return need_of(self.demand())

    def lease(self, credits: Mapping[str, Credits], *, hold_sheddable: bool) -> None:
        self.credits = credits
        self.holds_sheddable = hold_sheddable
        self.fill()

    def reclaim(self, reclaims: Sequence[Reclaim]) -> None:
        for reclaim in reclaims:
            count = min(reclaim.slots, self.inflight[reclaim.address])
            self.inflight[reclaim.address] -= count
            self.waiting[-1] += count

    def fill(self) -> None:
        for address in CAPACITY:
            room = self.credits.get(address, Credits(0, 0)).slots - self.used(address)
            for load, priority in ((self.urgent, 10), (self.inflight, -1)):
                count = max(0, min(room, self.waiting[priority]))
                load[address] += count
                self.waiting[priority] -= count
                room -= count

    def used(self, address: str) -> int:
        return self.inflight[address] + self.urgent[address]

    @property
    def total(self) -> int:
        return sum(self.used(address) for address in CAPACITY)


class Member:
    def __init__(self, redis: RedisServer, name: str, **settings: object) -> None:
        fields = {"mode": "leased", "redis_url": redis.url, "period_s": 0.03, "lease_s": 0.6}
        fields |= {"leader_lease_s": 0.3, **settings}
        config = ReplicasConfig(**fields)  # type: ignore[arg-type]
        self.pool = Pool()
        self.store = ReplicaStore(
            config.redis_url, pool=config.pool, replica=name, timeout_s=config.redis_timeout_s
        )
        self.agent = ReplicaAgent(config, name, self.store, self.pool, SystemClock())
        self.task = asyncio.get_running_loop().create_task(self.agent.run())

    async def kill(self) -> None:
        """Stop without a good-bye, as `kill -9` does."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.store.close()


@asynccontextmanager
async def group(redis: RedisServer, count: int, **settings: object) -> AsyncIterator[list[Member]]:
    members = [Member(redis, f"r{index}", **settings) for index in range(count)]
    try:
        yield members
    finally:
        await asyncio.gather(*(member.kill() for member in members))


async def until(
    condition: Callable[[], bool], *, always: Callable[[], None] = lambda: None, timeout_s: float = 15
) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            always()
            await asyncio.sleep(0.005)


def within_capacity(members: Sequence[Member]) -> Callable[[], None]:
    def check() -> None:
        for address in CAPACITY:
            assert sum(member.pool.used(address) for member in members) <= SLOTS

    return check


def measured(members: Sequence[Member]) -> Callable[[], None]:
    """As `within_capacity`, and lets every replica see the engines' own counts."""
    check = within_capacity(members)

    def measure() -> None:
        check()
        for member in members:
            member.pool.measured_counts = {
                address: sum(other.pool.used(address) for other in members) for address in CAPACITY
            }

    return measure


def finish_all(pool: Pool) -> None:
    for address in CAPACITY:
        pool.inflight[address] = pool.urgent[address] = 0


async def test_three_replicas_share_a_pool_without_exceeding_it(redis_server: RedisServer) -> None:
    async with group(redis_server, 3) as members:
        check = within_capacity(members)
        for member in members:
            member.pool.waiting[-1] = 500
        await until(lambda: sum(member.pool.total for member in members) == 2 * SLOTS, always=check)
        assert sum(member.agent.is_leader for member in members) == 1

        members[1].pool.waiting[10] = 20
        await until(lambda: sum(members[1].pool.urgent.values()) == 20, always=check)


async def test_killed_replica_and_killed_leader_free_their_credits(redis_server: RedisServer) -> None:
    async with group(redis_server, 3) as members:
        for member in members:
            member.pool.waiting[-1] = 500
        await until(lambda: sum(member.pool.total for member in members) == 2 * SLOTS)
        leader = next(member for member in members if member.agent.is_leader)
        others = [member for member in members if member is not leader]
        await leader.kill()
        await until(lambda: sum(member.pool.total for member in others) == 2 * SLOTS, always=measured(others))
        assert any(member.agent.is_leader for member in others)


async def test_requests_of_a_paused_replica_keep_their_place(redis_server: RedisServer) -> None:
    async with group(redis_server, 2) as members:
        members[0].pool.waiting[-1] = 500
        await until(lambda: members[0].pool.total == 2 * SLOTS)
        await members[0].kill()
        running = members[0].pool
        other = members[1].pool
        other.measured_counts = {address: running.used(address) for address in CAPACITY}
        other.waiting[10] = 5
        await until(lambda: "r0" not in members[1].agent.status().leader)
        started = SystemClock().now()
        while SystemClock().now() < started + 2.0:
            assert other.total == 0
            await asyncio.sleep(0.01)
        for address in CAPACITY:
            other.measured_counts[address] = running.used(address) - 3
        await until(lambda: sum(other.urgent.values()) == 5)


async def test_store_outage_leaves_even_shares_and_heals(redis_server: RedisServer) -> None:
    async with group(redis_server, 3) as members:
        check = measured(members)
        for member in members:
            member.pool.waiting[-1] = 500
        await until(lambda: sum(member.pool.total for member in members) == 2 * SLOTS, always=check)
        redis_server.kill()
        await until(
            lambda: all(member.agent.status().state == "fallback" for member in members), always=check
        )
        for member in members:
            finish_all(member.pool)
        for _ in range(20):
            check()
            await asyncio.sleep(0.02)
        for member in members:
            assert sum(credits.slots for credits in member.pool.credits.values()) in (21, 22)
        redis_server.start()
        await until(lambda: all(member.agent.status().state == "leased" for member in members), always=check)
        members[2].pool.waiting[10] = 30
        await until(lambda: sum(members[2].pool.urgent.values()) == 30, always=check)


async def test_fallback_may_hold_sheddable_work(redis_server: RedisServer) -> None:
    async with group(redis_server, 1, fallback="hold-sheddable") as (member,):
        await until(lambda: member.agent.status().state == "leased")
        assert not member.pool.holds_sheddable
        redis_server.kill()
        await until(lambda: member.agent.status().state == "fallback")
        assert member.pool.holds_sheddable


async def test_without_redis_at_start_a_replica_takes_nothing_and_is_not_ready(
    redis_server: RedisServer,
) -> None:
    redis_server.kill()
    async with group(redis_server, 1) as (member,):
        await until(lambda: member.agent.status().store_errors > 3)
        assert not member.agent.is_ready
        assert member.pool.credits == {}
        redis_server.start()
        await until(lambda: member.agent.is_ready)
        await until(lambda: sum(c.slots for c in member.pool.credits.values()) == 2 * SLOTS)


async def test_wrong_password_is_named(redis_server: RedisServer) -> None:
    async with redis.asyncio.from_url(redis_server.url) as admin:
        await admin.config_set("requirepass", "right")
    for password in ("wrong", None):
        store = ReplicaStore(redis_server.url, pool="p", replica="r", timeout_s=1.0, password=password)
        with pytest.raises(StoreError, match="check redis_url or password_file"):
            await store.report(b"", b"", lease_s=1, leader_lease_s=1)
        await store.close()
    store = ReplicaStore(redis_server.url, pool="p", replica="r", timeout_s=1.0, password="right")
    assert (await store.report(b"", b"", lease_s=1, leader_lease_s=1)).shares == {"r": b""}
    await store.close()


@pytest.mark.parametrize("takes_the_lead", [False, True])
async def test_what_another_program_wrote_there_ends_no_replica(
    takes_the_lead: bool, redis_server: RedisServer
) -> None:
    """Bytes that are no text, as field, value or leader: the group comes back once they are gone."""
    async with group(redis_server, 2) as (first, second), redis.asyncio.from_url(redis_server.url) as admin:
        members = (first, second)
        whole = dict.fromkeys(CAPACITY, 0)
        await until(lambda: all(member.pool.credits.keys() == whole.keys() for member in members))
        for key in await admin.keys("*"):
            if await admin.type(key) == b"hash":
                for field in (b"\xff\xf5", b"r0", b"r1"):
                    await admin.hset(key, field, b"\x00\xff")
            elif takes_the_lead and key.endswith(b"leader"):
                await admin.set(key, b"\xff\xf5:x")
        calls = [member.store.calls for member in members]
        await until(lambda: all(m.store.calls > before + 5 for m, before in zip(members, calls, strict=True)))
        assert not any(member.task.done() for member in members)
        await admin.flushall()
        await until(lambda: sorted(first.agent.status().members) == ["r0", "r1"])
        await until(lambda: sum(c.slots for m in members for c in m.pool.credits.values()) == 2 * SLOTS)


async def test_two_pools_on_one_redis_do_not_meet(redis_server: RedisServer) -> None:
    async with group(redis_server, 1, pool="a") as (first,), group(redis_server, 1, pool="b") as (second,):
        for member in (first, second):
            await until(lambda: sum(c.slots for c in member.pool.credits.values()) == 2 * SLOTS)  # noqa: B023
            assert member.agent.status().members == ["r0"]


async def test_replica_that_leaves_gives_its_credits_back_at_once(redis_server: RedisServer) -> None:
    async with group(redis_server, 2, lease_s=30.0, leader_lease_s=30.0) as members:
        for member in members:
            member.pool.waiting[-1] = 500
        await until(lambda: sum(member.pool.total for member in members) == 2 * SLOTS)
        members[0].task.cancel()
        await asyncio.gather(members[0].task, return_exceptions=True)
        await members[0].agent.leave()
        await until(lambda: members[1].pool.total == 2 * SLOTS)


async def test_a_paused_process_drops_credits_before_it_uses_them(redis_server: RedisServer) -> None:
    async with group(redis_server, 1) as (member,):
        await until(lambda: member.agent.status().state == "leased")
        later = SystemClock().now() + 10
        member.agent.guard(later)
        assert member.agent.status().state == "fallback"


async def test_a_redis_that_stops_answering_counts_as_gone_until_it_answers_again(
    redis_server: RedisServer,
) -> None:
    """Its connections stay open: only the time limit of a call notices."""
    async with group(redis_server, 2, redis_timeout_s=0.1) as members:
        await until(lambda: all(member.agent.status().state == "leased" for member in members))
        redis_server.pause()
        try:
            await until(lambda: all(member.agent.status().state == "fallback" for member in members))
            used = sum(c.slots for member in members for c in member.pool.credits.values())
            assert used == 2 * SLOTS
        finally:
            redis_server.go_on()
        await until(lambda: all(member.agent.status().state == "leased" for member in members))
        assert all(member.agent.status().store_errors > 0 for member in members)
