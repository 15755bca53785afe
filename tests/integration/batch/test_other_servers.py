"""Servers that stream less than vLLM, or more: no prompt ids, no ids, parsed output, changed prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from aiohttp import web

from extproc.batch.intake import CHAT, COMPLETIONS
from tests.support.batch_app import batch_line, fast_config, run_job
from tests.support.scripted_engine import ScriptedEngine


def chunk(**choice: object) -> bytes:
    return b"data: " + json.dumps({"choices": [{"index": 0, **choice}]}).encode() + b"\n\n"


async def stream(request: web.Request, *parts: bytes, cut: bool = False) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    for part in parts:
        await response.write(part)
    if cut:
        assert request.transport is not None
        request.transport.close()
    return response


async def run(
    engine: ScriptedEngine, folder: Path, endpoint: str, body: dict[str, object]
) -> tuple[Any, Any]:
    async with engine.running() as url:
        batch, (line,) = await run_job(fast_config(url, folder), endpoint, batch_line("a", endpoint, body))
    return batch, line


async def test_prompt_ids_are_asked_for_where_the_stream_has_none(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []

    async def reply(n: int, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if request.path == "/tokenize":
            return web.json_response({"count": 2, "tokens": [11, 12]})
        seen.append(body)
        if len(seen) == 1:
            return await stream(request, chunk(text="a", token_ids=[1]), cut=True)
        return await stream(request, chunk(text="b", token_ids=[2], finish_reason="stop"))

    body: dict[str, object] = {"prompt": "x", "temperature": 0, "max_tokens": 9}
    batch, line = await run(ScriptedEngine(reply), tmp_path, COMPLETIONS, body)
    assert seen[1]["prompt"] == [11, 12, 1]
    assert line["response"]["body"]["choices"][0]["text"] == "ab"
    assert line["response"]["body"]["usage"]["prompt_tokens"] == 2
    assert batch["extproc"]["totals"]["redone_tokens"] == 0


async def test_without_any_ids_an_interrupted_request_restarts_and_usage_is_the_servers(
    tmp_path: Path,
) -> None:
    usage = b'data: {"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":2}}\n\n'

    async def reply(n: int, request: web.Request) -> web.StreamResponse:
        if n == 1:
            return await stream(request, chunk(text="a"), cut=True)
        return await stream(request, chunk(text="a"), chunk(text="b", finish_reason="stop"), usage)

    body: dict[str, object] = {"prompt": "x", "temperature": 0, "max_tokens": 9}
    batch, line = await run(ScriptedEngine(reply), tmp_path, COMPLETIONS, body)
    assert line["response"]["body"]["choices"][0]["text"] == "ab"
    assert line["response"]["body"]["usage"]["completion_tokens"] == 2
    assert batch["extproc"]["totals"]["restarts"] == 1


async def test_parsed_output_is_asked_for_whole(tmp_path: Path) -> None:
    whole = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "b", "reasoning": "a"}}]}

    async def reply(n: int, request: web.Request) -> web.StreamResponse:
        if (await request.json()).get("stream"):
            piece = {"delta": {"reasoning": "a"}, "token_ids": [1]}
            return await stream(request, chunk(**piece), chunk(delta={"content": "b"}, finish_reason="stop"))
        return web.json_response(whole)

    body: dict[str, object] = {"messages": [], "temperature": 0}
    batch, line = await run(ScriptedEngine(reply), tmp_path, CHAT, body)
    assert line["response"]["body"] == whole
    assert batch["extproc"]["totals"]["restarts"] == 1


async def test_a_changed_prompt_is_noticed_and_not_built_on(tmp_path: Path) -> None:
    async def reply(n: int, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        if not body.get("stream"):
            return web.json_response({"choices": [{"index": 0, "text": "whole"}]})
        first = chunk(text="a", token_ids=[1], prompt_token_ids=[5, 6])
        return await stream(request, first, cut=True)

    body: dict[str, object] = {"prompt": "x", "temperature": 0, "max_tokens": 9}
    _, line = await run(ScriptedEngine(reply), tmp_path, COMPLETIONS, body)
    assert line["response"]["body"]["choices"][0]["text"] == "whole"


async def test_an_error_chunk_in_a_good_stream_is_a_failure_that_keeps_its_tokens(tmp_path: Path) -> None:
    prompts: list[object] = []
    error = b'data: {"error":{"message":"EngineCore encountered an issue","code":500}}\n\ndata: [DONE]\n\n'

    async def reply(n: int, request: web.Request) -> web.StreamResponse:
        prompts.append((await request.json())["prompt"])
        if n == 1:
            return await stream(request, chunk(text="a", token_ids=[1], prompt_token_ids=[5]), error)
        return await stream(request, chunk(text="b", token_ids=[2], finish_reason="length"))

    body: dict[str, object] = {"prompt": "x", "temperature": 0, "max_tokens": 2}
    # The context length is never needed here, and the one saved token leaves one more to generate.
    _, line = await run(ScriptedEngine(reply), tmp_path, COMPLETIONS, body)
    assert prompts == ["x", [5, 1]]
    assert line["response"]["body"]["choices"][0]["text"] == "ab"
