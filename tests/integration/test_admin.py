"""The admin port over real HTTP: who may read what, health, reload, and the feed of snapshots."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from extproc.config.admin import AdminConfig
from extproc.errors import ConfigError, Problem
from extproc.runtime.admin import AdminServer
from tests.support.admin import FakeAdminSource, until


class Port:
    """A started admin server and a client for it."""

    def __init__(self, source: FakeAdminSource, port: int, session: aiohttp.ClientSession) -> None:
        self.source = source
        self.base = f"http://127.0.0.1:{port}"
        self.session = session

    async def get(self, path: str, **headers: str) -> tuple[int, str]:
        async with self.session.get(self.base + path, headers=headers) as answer:
            return answer.status, await answer.text()

    async def post(self, path: str, body: str, content_type: str = "application/json") -> tuple[int, str]:
        headers = {"Content-Type": content_type}
        async with self.session.post(self.base + path, data=body.encode(), headers=headers) as answer:
            return answer.status, await answer.text()


async def serve(config: AdminConfig) -> AsyncIterator[Port]:
    source = FakeAdminSource()
    server = AdminServer(config, source)
    port = await server.start()
    async with aiohttp.ClientSession() as session:
        yield Port(source, port, session)
    await server.stop()


@pytest.fixture
async def port() -> AsyncIterator[Port]:
    async for started in serve(AdminConfig(port=0)):
        yield started


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[tuple[Port, Path]]:
    token = tmp_path / "token"
    token.write_text("open sesame\n")
    async for started in serve(AdminConfig(port=0, token_file=str(token))):
        yield started, token


async def test_health_turns_with_the_reasons(port: Port) -> None:
    assert await port.get("/healthz") == (200, '{"ok":true,"reasons":[]}')
    assert (await port.get("/readyz"))[0] == 200
    port.source.not_ready = ["shutting down"]
    assert await port.get("/readyz") == (503, '{"ok":false,"reasons":["shutting down"]}')
    assert (await port.get("/healthz"))[0] == 200


async def test_views_are_plain_json_and_text(port: Port) -> None:
    assert await port.get("/metrics") == (200, "extproc_up 1\n")
    assert json.loads((await port.get("/config"))[1]) == {"mode": "enforce"}
    assert json.loads((await port.get("/debug/state"))[1]) == {"bands": []}
    assert json.loads((await port.post("/explain", '{"priority": 3}'))[1]) == {"asked": {"priority": 3}}
    assert (await port.get("/nothing"))[0] == 404


@pytest.mark.parametrize("body", ["{", "[]", '"x"', "null", "[" * 100_000])
async def test_a_body_that_is_no_object_is_refused(port: Port, body: str) -> None:
    status, text = await port.post("/explain", body)
    assert status == 400
    assert json.loads(text)["problems"]


async def test_a_form_of_another_site_cannot_change_anything(port: Port) -> None:
    assert (await port.post("/reload", "{}", "text/plain"))[0] == 400
    assert (await port.post("/reload", "{}", "application/x-www-form-urlencoded"))[0] == 400
    assert port.source.reloads == 0


async def test_a_name_that_resolves_to_loopback_is_refused(port: Port) -> None:
    assert (await port.get("/debug/state", Host="attacker.example"))[0] == 421
    assert (await port.get("/debug/state", Host="localhost:1234"))[0] == 200
    assert (await port.get("/debug/state", Host="[::1]:1234"))[0] == 200


async def test_reload_answers_all_problems_with_their_lines(port: Port) -> None:
    assert await port.post("/reload", "{}") == (200, '{"result":"applied"}')
    port.source.reload_error = ConfigError([Problem("bands", "bad", 3), Problem("mode", "worse", 9)])
    status, text = await port.post("/reload", "")
    assert status == 400
    assert [problem["line"] for problem in json.loads(text)["problems"]] == [3, 9]


async def test_without_the_token_only_health_and_the_page_answer(guarded: tuple[Port, Path]) -> None:
    port, token = guarded
    for path in ("/healthz", "/readyz", "/ui"):
        assert (await port.get(path))[0] == 200
    for path in ("/metrics", "/config", "/debug/state", "/api/history", "/api/events"):
        assert (await port.get(path))[0] == 401
        assert (await port.get(path, Authorization="Bearer wrong"))[0] == 401
        assert (await port.get(path, Authorization="open sesame"))[0] == 401
    assert (await port.get("/config", Authorization="Bearer open sesame"))[0] == 200
    token.write_text("rotated")
    assert (await port.get("/config", Authorization="Bearer open sesame"))[0] == 401
    assert (await port.get("/config", Authorization="Bearer rotated"))[0] == 200
    token.unlink()
    assert (await port.get("/config", Authorization="Bearer rotated"))[0] == 401
    token.write_text("")
    assert (await port.get("/config", Authorization="Bearer "))[0] == 401


async def test_the_feed_sends_each_snapshot_and_forgets_readers_that_left(port: Port) -> None:
    async with port.session.get(port.base + "/api/events") as answer:
        assert answer.content_type == "text/event-stream"
        await until(lambda: port.source.feed.readers == 1)
        port.source.feed.take_now()
        assert await answer.content.readuntil(b"\n\n") == b'data: {"seq":0}\n\n'
        port.source.reloads = 7
        port.source.feed.take_now()
        assert await answer.content.readuntil(b"\n\n") == b'data: {"seq":7}\n\n'
    assert json.loads((await port.get("/api/history"))[1])["snapshots"] == [{"seq": 0}, {"seq": 7}]
    await until(lambda: port.source.feed.readers == 0, each=port.source.feed.take_now)


async def test_stopping_ends_open_feeds() -> None:
    source = FakeAdminSource()
    server = AdminServer(AdminConfig(port=0), source)
    number = await server.start()
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{number}/api/events") as answer,
    ):
        await until(lambda: source.feed.readers == 1)
        async with asyncio.timeout(10):
            source.feed.close()
            await server.stop()
            assert await answer.content.read() == b""
    assert source.feed.readers == 0


async def test_the_log_level_changes_while_running(port: Port) -> None:
    before = logging.getLogger("extproc").level
    try:
        assert (await port.post("/log-level", '{"level": "debug"}'))[0] == 200
        assert logging.getLogger("extproc").level == logging.DEBUG
        assert (await port.post("/log-level", '{"level": "loud"}'))[0] == 400
    finally:
        logging.getLogger("extproc").setLevel(before)
