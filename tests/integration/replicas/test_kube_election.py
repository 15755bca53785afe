"""Election by a Kubernetes Lease against an API server over real HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from extproc.runtime.discovery.kube_client import KubeAccess
from extproc.runtime.replicas.kube_election import KubernetesElection
from extproc.runtime.replicas.store import StoreError
from tests.support.kube_leases import LeaseServer

LEASE_S = 3.0


class Clock:
    """Time that the test sets; each candidate has its own, and their wall clocks differ by an hour."""

    def __init__(self, ahead_s: float = 0.0) -> None:
        self.time = 100.5
        self.ahead_s = ahead_s

    def now(self) -> float:
        return self.time

    def wall_time(self) -> float:
        return 1.7e9 + self.time + self.ahead_s

    async def sleep_until(self, deadline: float) -> None:
        raise AssertionError("nothing sleeps here")


class Candidates:
    def __init__(self, server: LeaseServer) -> None:
        access = KubeAccess(server.url, "default", None, None)
        self.clocks = Clock(), Clock(ahead_s=3600.0)
        self.a = KubernetesElection(access, "extproc", "a", LEASE_S, self.clocks[0])
        self.b = KubernetesElection(access, "extproc", "b", LEASE_S, self.clocks[1])

    def advance(self, seconds: float) -> None:
        for clock in self.clocks:
            clock.time += seconds


@asynccontextmanager
async def election() -> AsyncIterator[tuple[LeaseServer, Candidates]]:
    async with LeaseServer().running() as server:
        candidates = Candidates(server)
        try:
            yield server, candidates
        finally:
            server.is_failing = False
            await candidates.a.resign()
            await candidates.b.resign()


async def test_the_first_creates_the_lease_and_keeps_it_by_renewing() -> None:
    async with election() as (server, candidates):
        for _ in range(5):
            assert await candidates.a.acquire() == "a"
            assert await candidates.b.acquire() == "a"
            candidates.advance(LEASE_S - 0.5)
        assert server.lease is not None
        assert server.lease["spec"]["leaseTransitions"] == 1


async def test_a_lease_ends_by_the_watchers_own_clock_whatever_the_wall_clocks_say() -> None:
    async with election() as (_, candidates):
        assert await candidates.a.acquire() == "a"
        assert await candidates.b.acquire() == "a"
        candidates.advance(LEASE_S - 0.1)
        assert await candidates.b.acquire() == "a"
        candidates.advance(0.2)
        assert await candidates.b.acquire() == "b"
        assert await candidates.a.acquire() == "b"


async def test_of_two_writers_one_gets_a_conflict_and_stands_back() -> None:
    async with election() as (server, candidates):
        server.steals_next_write_for = "b"
        assert await candidates.a.acquire() != "a"
        assert server.conflicts == 1
        assert await candidates.a.acquire() == "b"
        server.steals_next_write_for = "somebody"
        assert await candidates.b.acquire() == ""
        assert server.holder == "somebody"


async def test_one_that_resigns_is_followed_at_once() -> None:
    async with LeaseServer().running() as server:
        candidates = Candidates(server)
        assert await candidates.a.acquire() == "a"
        assert await candidates.b.acquire() == "a"
        await candidates.a.resign()
        assert server.holder == ""
        assert await candidates.b.acquire() == "b"
        await candidates.b.resign()


async def test_a_server_that_fails_is_named() -> None:
    async with election() as (server, candidates):
        server.is_failing = True
        with pytest.raises(StoreError, match="kubernetes lease extproc"):
            await candidates.a.acquire()
