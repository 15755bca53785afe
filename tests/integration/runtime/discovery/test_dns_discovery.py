"""DNS discovery against a small name server on loopback."""

from __future__ import annotations

import asyncio

import dns.rcode

from extproc.clock import SystemClock
from extproc.config.endpoints import DnsDiscovery
from extproc.runtime.discovery.dns import DnsSource
from tests.support.name_server import name_server
from tests.support.published import running, wait_for


def source(address: str, **settings: object) -> DnsSource:
    values = {"name": "vllm.test.", "min_ttl_s": 0.1, "timeout_s": 1.0, "nameservers": (address,), **settings}
    return DnsSource(DnsDiscovery(**values), SystemClock())  # type: ignore[arg-type]


async def test_every_address_of_both_families_becomes_an_endpoint() -> None:
    async with name_server() as (server, address):
        server.records["vllm.test.", "A"] = (60, ["10.0.0.2", "10.0.0.1"])
        server.records["vllm.test.", "AAAA"] = (60, ["fd00::1"])
        async with running(source(address, record="host", port=8000, labels={"zone": "a"})) as published:
            await published.shows("10.0.0.1:8000", "10.0.0.2:8000", "[fd00::1]:8000")
            assert published.lists[0][0].name == "vllm.test./10.0.0.1:8000"
            assert published.lists[0][0].labels == {"zone": "a"}


async def test_srv_records_bring_ports_and_only_the_best_priority_counts() -> None:
    async with name_server() as (server, address):
        server.records["vllm.test.", "SRV"] = (
            60,
            ["10 5 8001 a.test.", "10 5 8002 b.test.", "20 5 9999 spare.test."],
        )
        server.records["a.test.", "A"] = (60, ["10.0.0.1"])
        server.records["b.test.", "AAAA"] = (60, ["fd00::2"])
        server.records["spare.test.", "A"] = (60, ["10.9.9.9"])
        async with running(source(address, record="SRV")) as published:
            await published.shows("10.0.0.1:8001", "[fd00::2]:8002")


async def test_the_time_to_live_says_when_to_ask_again() -> None:
    async with name_server() as (server, address):
        server.records["vllm.test.", "A"] = (0, ["10.0.0.1"])
        quick = source(address, port=80)
        async with running(quick) as published:
            await published.shows("10.0.0.1:80")
            server.records["vllm.test.", "A"] = (3600, ["10.0.0.2"])
            await published.shows("10.0.0.2:80")
            asked = server.questions
            server.records["vllm.test.", "A"] = (3600, ["10.0.0.3"])
            await asyncio.sleep(5 * 0.1)  # several times the least interval: the answer holds an hour
            assert server.questions == asked


async def test_no_such_name_is_an_empty_pool_and_a_failing_server_keeps_the_list() -> None:
    async with name_server() as (server, address):
        server.records["vllm.test.", "A"] = (0, ["10.0.0.1"])
        tested = source(address, port=80, timeout_s=0.2)
        async with running(tested) as published:
            await published.shows("10.0.0.1:80")
            server.failure = dns.rcode.SERVFAIL
            await wait_for(lambda: tested.health.problem is not None)
            server.failure, server.is_silent = None, True
            await wait_for(lambda: "timed out" in str(tested.health.problem) or tested.health.problems > 1)
            assert published.addresses == {"10.0.0.1:80"}
            server.is_silent = False
            del server.records["vllm.test.", "A"]
            await published.shows()
            assert tested.health.problem is None
            server.records["vllm.test.", "A"] = (0, ["10.0.0.4"])
            await published.shows("10.0.0.4:80")
