"""Discovery, scraping and health together, with real servers that die, come back and are replaced."""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from extproc.clock import SystemClock
from extproc.config.endpoints import (
    EndpointEntry,
    EndpointsConfig,
    FileDiscovery,
    HealthConfig,
    ScrapeConfig,
    StaticDiscovery,
)
from extproc.core.events import (
    EndpointAdded,
    EndpointHealthChanged,
    EndpointRemoved,
    EndpointSampled,
    Event,
)
from extproc.core.types import EndpointId
from extproc.runtime.health import HealthState
from extproc.runtime.pool_gauges import read_pool
from extproc.runtime.pool_watch import PoolWatch
from extproc.runtime.scrape_target import ScrapeStatus
from extproc.tasks import TaskKeeper
from tests.support.engines import ModelServer, metrics_page, served
from tests.support.published import wait_for

SCRAPE = ScrapeConfig(
    min_interval_s=0.02, busy_interval_s=0.02, max_interval_s=0.04, max_duty_fraction=1.0, timeout_s=0.5
)
HEALTH = HealthConfig(base_ejection_s=0.15, max_ejection_s=10.0)


class Log(list[Event]):
    """Every posted event."""

    def of(self, *kinds: type) -> list[Event]:
        return [event for event in self if isinstance(event, kinds)]

    @property
    def health(self) -> list[tuple[bool, bool]]:
        return [
            (event.is_healthy, event.is_probing) for event in self if isinstance(event, EndpointHealthChanged)
        ]


def static(*addresses: str) -> StaticDiscovery:
    return StaticDiscovery(
        endpoints=tuple(EndpointEntry(name=f"s{n}", address=address) for n, address in enumerate(addresses))
    )


@asynccontextmanager
async def watching(config: EndpointsConfig) -> AsyncIterator[tuple[PoolWatch, Log]]:
    problems: list[BaseException] = []
    keeper = TaskKeeper(lambda _name, error: problems.append(error))
    log = Log()
    watch = PoolWatch(config, clock=SystemClock(), post=log.append, keeper=keeper, rng=random.Random(1))
    watch.start()
    try:
        yield watch, log
    finally:
        watch.close()
        await keeper.close()
    assert problems == []


def sampled(events: list[Event]) -> list[EndpointId]:
    return [event.sample.endpoint_id for event in events if isinstance(event, EndpointSampled)]


def only_id(watch: PoolWatch) -> EndpointId:
    (status,) = watch.endpoints()
    return status.endpoint_id


async def test_a_static_list_is_in_force_at_once_and_its_samples_follow() -> None:
    async with served(ModelServer()) as address:
        config = EndpointsConfig(discovery=(static(address),), scrape=SCRAPE)
        async with watching(config) as (watch, log):
            assert [event.endpoint.address for event in log if isinstance(event, EndpointAdded)] == [address]
            await wait_for(lambda: len(log.of(EndpointSampled)) >= 2)
            readings = {(r.name, r.labels): r.value for r in read_pool(watch)}
            assert readings["extproc_endpoints", ("ready",)] == 1
            assert readings["extproc_endpoint_running_requests", (address,)] == 1
            assert readings["extproc_discovery_up", ("static list",)] == 1


async def test_a_dead_server_is_ejected_probed_and_brought_back_by_a_request() -> None:
    server = ModelServer()
    async with served(server) as address:
        pass
    config = EndpointsConfig(discovery=(static(address),), scrape=SCRAPE, health=HEALTH)
    async with watching(config) as (watch, log):
        await wait_for(lambda: log.health[:1] == [(False, False)])
        async with served(server, port=int(address.split(":")[1])):
            await wait_for(lambda: log.health[-1] == (True, True))
            assert {r.labels for r in read_pool(watch) if r.name == "extproc_endpoints" and r.value} == {
                ("probing",)
            }
            watch.note_response(only_id(watch), None, 200)
            assert log.health[-1] == (True, False)


async def test_a_metrics_port_that_never_worked_is_no_evidence_and_one_that_stops_is() -> None:
    """Behind TLS or a network policy the scraper may be the only one who can't get through."""
    server = ModelServer()
    is_closing = True

    async def close_or_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not is_closing:
            await server(reader, writer)

    async with served(close_or_answer) as address:
        config = EndpointsConfig(discovery=(static(address),), scrape=SCRAPE, health=HEALTH)
        async with watching(config) as (watch, log):

            def scrape() -> ScrapeStatus:
                status = watch.endpoints()[0].scrape
                assert status is not None
                return status

            await wait_for(lambda: scrape().failures >= 5)
            assert log.health == []
            is_closing = False
            await wait_for(lambda: len(log.of(EndpointSampled)) >= 2)
            is_closing = True
            await server.stop()
            await wait_for(lambda: log.health == [(False, False)])


async def test_5xx_answers_eject_although_the_metrics_port_works(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with served(ModelServer()) as first, served(ModelServer()) as second:
        config = EndpointsConfig(discovery=(static(first, second),), scrape=SCRAPE, health=HEALTH)
        async with watching(config) as (watch, log):
            bad, good = (status.endpoint_id for status in watch.endpoints())
            await wait_for(lambda: len(log.of(EndpointSampled)) >= 4)
            for _ in range(3):
                watch.note_response(bad, None, 503)
                watch.note_response(good, None, 200)
            assert log.health == [(False, False)]
            await wait_for(lambda: log.health == [(False, False), (True, True)])
            watch.note_response(bad, None, 500)
            assert log.health[-1] == (False, False)
            assert [status.health for status in watch.endpoints()] == [
                HealthState.EJECTED,
                HealthState.HEALTHY,
            ]
    messages = [record.getMessage() for record in caplog.records if "is ejected" in record.getMessage()]
    assert "3 failures in a row (5xx): out for 0.15 s" in messages[0]
    assert "its probe failed (5xx): out for 0.3 s" in messages[1]


async def test_field_bug_109_an_answer_by_a_fallback_counts_against_the_picked_endpoint() -> None:
    config = EndpointsConfig(
        discovery=(static("127.0.0.1:1", "127.0.0.1:2"),), scrape=ScrapeConfig(enabled=False), health=HEALTH
    )
    async with watching(config) as (watch, log):
        dead, alive = (status.endpoint_id for status in watch.endpoints())
        for _ in range(3):
            watch.note_response(dead, "127.0.0.1:2", 200)
        assert [event.endpoint_id for event in log if isinstance(event, EndpointHealthChanged)] == [dead]
        assert [status.health for status in watch.endpoints()] == [HealthState.EJECTED, HealthState.HEALTHY]
        watch.note_response(alive, "127.0.0.1:2", 200)
        watch.note_response(EndpointId("gone|127.0.0.1:3|+9"), "127.0.0.1:3", 500)
        assert len(log.health) == 1


async def test_a_restarted_server_becomes_another_endpoint() -> None:
    server = ModelServer()
    async with (
        served(server) as address,
        watching(EndpointsConfig(discovery=(static(address),), scrape=SCRAPE)) as (watch, log),
    ):
        await wait_for(lambda: len(log.of(EndpointSampled)) >= 2)
        before = only_id(watch)
        server.body = metrics_page(start=900.0, tokens=1)
        await wait_for(lambda: only_id(watch) != before)
        after = only_id(watch)
        changes = log.of(EndpointAdded, EndpointRemoved)
        assert [type(event) for event in changes] == [EndpointAdded, EndpointRemoved, EndpointAdded]
        of_the_new = [EndpointId(after)]
        await wait_for(lambda: sampled(log[-1:]) == of_the_new)
        assert set(sampled(log[log.index(changes[1]) :])) == set(of_the_new)


async def test_field_bug_107_every_rewrite_ends_at_the_pool_that_the_file_names(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.json"

    def write(*ports: int) -> None:
        rows = [{"name": f"s{port}", "address": f"127.0.0.1:{port}"} for port in ports]
        path.with_suffix(".new").write_text(json.dumps({"endpoints": rows}))
        path.with_suffix(".new").replace(path)

    write(1, 2)
    discovery = FileDiscovery(path=str(path), poll_interval_s=0.05)
    config = EndpointsConfig(discovery=(discovery,), scrape=ScrapeConfig(enabled=False))
    async with watching(config) as (watch, log):
        for ports in ((1, 2), (2,), (1, 2), (), (1,), (1, 3)):
            write(*ports)
            wanted = {f"127.0.0.1:{port}" for port in ports}
            await wait_for(lambda wanted=wanted: {s.address for s in watch.endpoints()} == wanted)
            known: set[EndpointId] = set()
            for event in log:
                if isinstance(event, EndpointAdded):
                    known.add(event.endpoint.id)
                elif isinstance(event, EndpointRemoved):
                    known.remove(event.endpoint_id)
            assert known == {status.endpoint_id for status in watch.endpoints()}


async def test_draining_endpoints_stay_known_and_a_metrics_port_elsewhere_proves_nothing(
    tmp_path: Path,
) -> None:
    async with served(ModelServer()) as metrics:
        entry = EndpointEntry(name="a", address="127.0.0.1:1", metrics_address=metrics, draining=True)
        config = EndpointsConfig(
            discovery=(StaticDiscovery(endpoints=(entry,)),), scrape=SCRAPE, health=HEALTH
        )
        async with watching(config) as (watch, log):
            assert [e.endpoint.is_draining for e in log if isinstance(e, EndpointAdded)] == [True]
            for _ in range(3):
                watch.note_response(only_id(watch), "127.0.0.1:1", 502)
            await wait_for(lambda: len(log.of(EndpointSampled)) >= 3)
            assert {r.labels for r in read_pool(watch) if r.name == "extproc_endpoints" and r.value} == {
                ("draining",)
            }
