"""Reasoning and tool calls under cut connections: continued over ids, the message made of all of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from extproc.batch.intake import CHAT
from extproc.config.batch import BatchConfig, ResumeMode
from tests.support.batch_app import batch_line, direct_replies, emulator, fast_config, run_job
from tests.support.cutting_relay import CuttingRelay
from tests.support.scripted_engine import ScriptedEngine

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
ANSWERS = 16


@pytest.fixture(scope="module")
def server_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    folder = tmp_path_factory.mktemp("emulator")
    with emulator(folder, "--speed", "8", "--parse-output", "--mean-output-tokens", "300") as port:
        yield port


def bodies_of(**fields: object) -> list[dict[str, object]]:
    return [
        {
            "messages": [{"role": "user", "content": f"think about {number} é"}],
            "temperature": 0,
            "max_tokens": 400,
            "return_token_ids": True,
            **fields,
        }
        for number in range(ANSWERS)
    ]


def with_renderer(config: BatchConfig, port: int) -> BatchConfig:
    return replace(config, gateway=replace(config.gateway, render_url=f"http://127.0.0.1:{port}"))


async def run_cut(
    port: int, folder: Path, bodies: list[dict[str, object]], *, cut_after: int = 4_000, render: bool = True
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    content = b"".join(batch_line(str(number), CHAT, body) for number, body in enumerate(bodies))
    async with CuttingRelay(port, random.Random(4), cut_after).running() as url:
        config = fast_config(url, folder)
        return await run_job(with_renderer(config, port) if render else config, CHAT, content)


def check(results: list[dict[str, Any]], direct: list[dict[str, Any]]) -> None:
    assert len(results) == len(direct)
    for line, want in zip(results, direct, strict=True):
        got = line["response"]["body"]
        for name in ("message", "token_ids", "finish_reason", "stop_reason", "index", "logprobs"):
            assert got["choices"][0][name] == want["choices"][0][name], name
        assert got["prompt_token_ids"] == want["prompt_token_ids"]
        for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert got["usage"][name] == want["usage"][name]


@pytest.mark.parametrize(
    "fields",
    [{"tools": TOOLS}, {}, {"tools": TOOLS, "ignore_eos": True}],
    ids=["tools", "reasoning", "length"],
)
async def test_parsed_answers_are_continued_and_equal_the_servers_own(
    server_port: int, tmp_path: Path, fields: dict[str, object]
) -> None:
    bodies = bodies_of(**fields)
    direct = await direct_replies(f"http://127.0.0.1:{server_port}", CHAT, bodies)
    messages = [reply["choices"][0]["message"] for reply in direct]
    assert any(message["reasoning"] for message in messages)
    assert any(message["content"] for message in messages)
    if "tools" in fields:
        assert any("tool_calls" in message for message in messages)
    batch, results = await run_cut(server_port, tmp_path, bodies)
    check(results, direct)
    totals = batch["extproc"]["totals"]
    assert totals["resumed_tokens"] > 0
    # Where nothing in a request tells of the parser, the first piece of the stream does.
    assert totals["restarts"] == (0 if "tools" in fields else ANSWERS)
    verdict = "adjusted" if "tools" in fields else "exact"
    assert {line["extproc"]["resume"] for line in results} == {verdict}


async def test_without_a_render_server_they_are_asked_for_whole(server_port: int, tmp_path: Path) -> None:
    bodies = bodies_of(tools=TOOLS)[:4]
    direct = await direct_replies(f"http://127.0.0.1:{server_port}", CHAT, bodies)
    batch, results = await run_cut(server_port, tmp_path, bodies, cut_after=10**9, render=False)
    check(results, direct)
    assert {line["extproc"]["resume"] for line in results} == {"restart"}
    assert batch["extproc"]["totals"]["resumed_tokens"] == 0


async def test_stop_strings_and_a_parser_need_the_whole_answer(server_port: int, tmp_path: Path) -> None:
    bodies = bodies_of(tools=TOOLS, stop=["ba"])[:4]
    direct = await direct_replies(f"http://127.0.0.1:{server_port}", CHAT, bodies)
    _, results = await run_cut(server_port, tmp_path, bodies, cut_after=10**9)
    check(results, direct)
    assert {line["extproc"]["resume"] for line in results} == {"restart"}


class RenderServer:
    """In front of the emulator's routes: fails as `status` says, `failures` times for each path."""

    def __init__(self, port: int, failing: str, status: int, failures: int) -> None:
        self._port = port
        self._failing, self._status, self.failures = failing, status, failures

    async def reply(self, number: int, request: web.Request) -> web.StreamResponse:
        if request.path.endswith(self._failing) and self.failures:
            self.failures -= 1
            return web.json_response({"error": {"message": "not now"}}, status=self._status)
        url = f"http://127.0.0.1:{self._port}"
        (answer,) = await direct_replies(url, request.path, [await request.json()])
        return web.json_response(answer)


@pytest.mark.parametrize("failing", ["/render", "/derender"])
async def test_a_render_server_that_is_away_is_waited_for_and_nothing_is_generated_twice(
    server_port: int, tmp_path: Path, failing: str
) -> None:
    bodies = bodies_of(tools=TOOLS)[:1]
    direct = await direct_replies(f"http://127.0.0.1:{server_port}", CHAT, bodies)
    front = RenderServer(server_port, failing, 503, failures=9)
    async with ScriptedEngine(front.reply).running() as render_url:
        config = fast_config(f"http://127.0.0.1:{server_port}", tmp_path)
        config = replace(config, gateway=replace(config.gateway, render_url=render_url))
        batch, results = await run_job(config, CHAT, batch_line("0", CHAT, bodies[0]))
    check(results, direct)
    assert front.failures == 0
    totals = batch["extproc"]["totals"]
    assert totals["output_tokens"] == direct[0]["usage"]["completion_tokens"]
    assert totals["redone_tokens"] == totals["restarts"] == 0


async def test_a_render_server_without_derender_means_the_whole_answer(
    server_port: int, tmp_path: Path
) -> None:
    bodies = bodies_of(tools=TOOLS)[:2]
    direct = await direct_replies(f"http://127.0.0.1:{server_port}", CHAT, bodies)
    front = RenderServer(server_port, "/derender", 404, failures=10**6)
    content = b"".join(batch_line(str(number), CHAT, body) for number, body in enumerate(bodies))
    async with ScriptedEngine(front.reply).running() as render_url:
        config = fast_config(f"http://127.0.0.1:{server_port}", tmp_path)
        config = replace(config, gateway=replace(config.gateway, render_url=render_url))
        _, results = await run_job(config, CHAT, content)
    check(results, direct)


async def test_resume_off_restarts_parsed_answers(server_port: int, tmp_path: Path) -> None:
    bodies = bodies_of(tools=TOOLS, max_tokens=120)[:2]
    direct = await direct_replies(f"http://127.0.0.1:{server_port}", CHAT, bodies)
    content = b"".join(batch_line(str(number), CHAT, body) for number, body in enumerate(bodies))
    async with CuttingRelay(server_port, random.Random(4), 15_000).running() as url:
        config = with_renderer(fast_config(url, tmp_path, resume=ResumeMode.OFF), server_port)
        batch, results = await run_job(config, CHAT, content)
    check(results, direct)
    assert batch["extproc"]["totals"]["resumed_tokens"] == 0
    assert batch["extproc"]["totals"]["redone_tokens"] > 0
