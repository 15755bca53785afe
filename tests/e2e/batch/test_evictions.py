"""Batch work through the real Envoy and extproc, evicted again and again by interactive bursts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from extproc.batch.intake import CHAT, COMPLETIONS
from extproc.client.answers import EndKind
from extproc.stack.local import LocalStack
from tests.support.batch_app import batch_line, direct_replies, fast_config, run_under_bursts

FLOW_CONTROL = {
    "default_ttl_s": 300.0,
    "detector": {"type": "concurrency-detector", "mode": "requests", "max_concurrency": 16},
    "eviction": {"enabled": True},
}


def make_stack(slots: int, speed: float, servers: int = 1, options: Sequence[str] = ()) -> LocalStack:
    detector = {"type": "concurrency-detector", "mode": "requests", "max_concurrency": slots}
    config = {
        "flow_control": {**FLOW_CONTROL, "detector": detector},
        "requests": {"priority": {"objectives": {"interactive": 10, "batch": -1}}},
    }
    emulator = ["--max-num-seqs", str(slots), "--speed", str(speed), *options]
    return LocalStack(config, emulators=[emulator] * servers)


def bodies_of(count: int, tokens: int) -> list[dict[str, object]]:
    return [
        {
            "prompt": f"write a long text about {number}",
            "temperature": 0,
            "max_tokens": tokens,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        for number in range(count)
    ]


async def check_evicted_batch(
    stack: LocalStack, folder: Path, requests: int, tokens: int, evictions: int
) -> None:
    bodies = bodies_of(requests, tokens)
    direct = await direct_replies(f"http://{stack.endpoints[0]}", COMPLETIONS, bodies)
    config = fast_config(stack.url, folder)
    config = replace(config, window=replace(config.window, initial=16, maximum=64))
    content = b"".join(batch_line(str(number), COMPLETIONS, body) for number, body in enumerate(bodies))
    batch, lines, ends = await run_under_bursts(
        stack.url, config, content, burst_size=16, evictions=evictions, busy=16
    )
    totals = batch["extproc"]["totals"]
    assert batch["status"] == "completed"
    assert set(ends) == {EndKind.FINISHED}
    assert totals["evictions"] >= evictions
    got = [line["response"]["body"]["choices"][0] for line in lines]
    assert [choice["token_ids"] for choice in got] == [reply["choices"][0]["token_ids"] for reply in direct]
    assert [choice["text"] for choice in got] == [reply["choices"][0]["text"] for reply in direct]
    assert totals["output_tokens"] == requests * tokens + totals["redone_tokens"]
    # Only the step back to a whole character is generated again: at most three tokens an eviction.
    assert totals["redone_tokens"] <= 3 * totals["evictions"]


async def test_evicted_batch_is_token_identical(tmp_path: Path) -> None:
    with make_stack(slots=16, speed=0.5) as stack:
        await check_evicted_batch(stack, tmp_path, requests=24, tokens=150, evictions=30)


async def test_evicted_reasoning_and_tool_calls_are_those_of_an_uninterrupted_run(tmp_path: Path) -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    fixed: dict[str, object] = {"tools": tools, "temperature": 0, "max_tokens": 300, "return_token_ids": True}
    bodies = [
        {"messages": [{"role": "user", "content": f"think about {number}"}], "ignore_eos": True, **fixed}
        for number in range(16)
    ]
    with make_stack(slots=8, speed=1.0, options=["--parse-output"]) as stack:
        server = f"http://{stack.endpoints[0]}"
        direct = await direct_replies(server, CHAT, bodies)
        config = fast_config(stack.url, tmp_path)
        config = replace(config, gateway=replace(config.gateway, render_url=server))
        content = b"".join(batch_line(str(number), CHAT, body) for number, body in enumerate(bodies))
        batch, lines, ends = await run_under_bursts(
            stack.url, config, content, burst_size=8, evictions=20, busy=8, endpoint=CHAT
        )
    assert batch["status"] == "completed"
    assert set(ends) == {EndKind.FINISHED}
    assert batch["extproc"]["totals"]["evictions"] >= 20
    got = [line["response"]["body"]["choices"][0] for line in lines]
    for name in ("token_ids", "message", "finish_reason"):
        assert [choice[name] for choice in got] == [reply["choices"][0][name] for reply in direct]
    assert {choice["finish_reason"] for choice in got} >= {"tool_calls"}
    assert batch["extproc"]["totals"]["restarts"] == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_two_hundred_evictions_of_long_answers(tmp_path: Path) -> None:
    with make_stack(slots=16, speed=0.4) as stack:
        await check_evicted_batch(stack, tmp_path, requests=64, tokens=1500, evictions=200)
