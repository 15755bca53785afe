"""Batch work against a real vLLM in float32: cut and evicted answers equal the uninterrupted ones."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from extproc.batch.intake import CHAT, COMPLETIONS
from extproc.client.answers import EndKind
from extproc.stack.envoy import EnvoySettings
from extproc.stack.local import HOST, LocalStack
from tests.support.batch_app import batch_line, direct_replies, fast_config, run_job, run_under_bursts
from tests.support.cutting_relay import CuttingRelay
from tests.vllm.conftest import SLOTS, VllmServer

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
MODEL = "small"


def bodies_of(endpoint: str, count: int, tokens: int, **fields: object) -> list[dict[str, object]]:
    bodies: list[dict[str, object]] = []
    for number in range(count):
        text = f"batch work number {number} waits " * (1 + number % 5)
        prompt: dict[str, object] = {"prompt": text}
        if endpoint == CHAT:
            prompt = {"messages": [{"role": "user", "content": text}]}
        fixed: dict[str, object] = {
            "model": MODEL,
            "temperature": 0,
            "max_tokens": tokens,
            "return_token_ids": True,
        }
        bodies.append({**prompt, **fixed, **fields})
    return bodies


def check(lines: list[dict[str, Any]], direct: list[dict[str, Any]]) -> None:
    assert len(lines) == len(direct)
    for line, reply in zip(lines, direct, strict=True):
        got, want = line["response"]["body"], reply
        assert got["choices"][0]["token_ids"] == want["choices"][0]["token_ids"]
        assert got["choices"][0].get("text") == want["choices"][0].get("text")
        assert got["choices"][0].get("message", {}).get("content") == want["choices"][0].get(
            "message", {}
        ).get("content")
        assert got["choices"][0]["finish_reason"] == want["choices"][0]["finish_reason"]
        assert got["usage"]["completion_tokens"] == want["usage"]["completion_tokens"]
        assert got["usage"]["prompt_tokens"] == want["usage"]["prompt_tokens"]


CASES: list[tuple[str, str, dict[str, object]]] = [
    ("completions", COMPLETIONS, {}),
    ("chat", CHAT, {}),
    ("min_tokens", COMPLETIONS, {"min_tokens": 60}),
    ("stop", COMPLETIONS, {"stop": ["a", "ta "], "min_tokens": 30}),
    ("repetition_penalty", COMPLETIONS, {"repetition_penalty": 1.2}),
]


@pytest.mark.parametrize(
    ("endpoint", "fields"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
async def test_cut_connections(
    vllm_server: VllmServer, tmp_path: Path, endpoint: str, fields: dict[str, object]
) -> None:
    bodies = bodies_of(endpoint, 16, 100, **fields)
    direct = await direct_replies(f"http://{vllm_server.address}", endpoint, bodies)
    relay = CuttingRelay(int(vllm_server.address.rpartition(":")[2]), random.Random(2), 6_000)
    async with relay.running() as url:
        content = b"".join(batch_line(str(number), endpoint, body) for number, body in enumerate(bodies))
        batch, lines = await run_job(fast_config(url, tmp_path), endpoint, content, timeout_s=300)
    assert relay.cuts > 10
    assert batch["status"] == "completed"
    check(lines, direct)


async def test_evictions_through_envoy(vllm_server: VllmServer, tmp_path: Path) -> None:
    bodies = bodies_of(COMPLETIONS, 24, 200, ignore_eos=True)
    direct = await direct_replies(f"http://{vllm_server.address}", COMPLETIONS, bodies)
    config = {
        "flow_control": {
            "default_ttl_s": 300.0,
            "detector": {"type": "concurrency-detector", "mode": "requests", "max_concurrency": SLOTS},
            "eviction": {"enabled": True},
        },
        "requests": {"priority": {"objectives": {"interactive": 10, "batch": -1}}},
    }
    stack = LocalStack(
        config,
        emulators=[],
        endpoints=[vllm_server.address],
        envoy=EnvoySettings(listen_host=HOST, listen_port=0, admin_port=0),
    )
    with stack:
        settings = fast_config(stack.url, tmp_path)
        settings = replace(settings, window=replace(settings.window, initial=SLOTS, maximum=32))
        content = b"".join(batch_line(str(number), COMPLETIONS, body) for number, body in enumerate(bodies))
        batch, lines, ends = await run_under_bursts(
            stack.url, settings, content, burst_size=SLOTS, evictions=60, busy=SLOTS, model=MODEL
        )
    assert set(ends) == {EndKind.FINISHED}
    assert batch["extproc"]["totals"]["evictions"] >= 60
    check(lines, direct)
    totals = batch["extproc"]["totals"]
    assert totals["output_tokens"] == 24 * 200 + totals["redone_tokens"]
