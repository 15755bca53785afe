"""Chat with reasoning and tool parsers, cut and continued: the message is the one that vLLM itself makes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from extproc.batch.intake import CHAT
from tests.support.batch_app import batch_line, direct_replies, fast_config, run_job
from tests.support.cutting_relay import CuttingRelay
from tests.support.real_vllm import real_vllm

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]
OPTIONS = ["--max-num-seqs", "4", "--num-gpu-blocks-override", "64", "--enable-scale-out"]
PARSERS = ["--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3"]
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def parsing_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with real_vllm(tmp_path_factory.mktemp("vllm"), *OPTIONS, *PARSERS) as port:
        yield port


@pytest.mark.parametrize("fields", [{"tools": TOOLS}, {}], ids=["tools", "reasoning"])
async def test_cut_parsed_answers_equal_the_servers_own(
    parsing_server: int, tmp_path: Path, fields: dict[str, object]
) -> None:
    bodies: list[dict[str, object]] = [
        {
            "model": "small",
            "messages": [{"role": "user", "content": f"work number {number} " * (1 + number % 4)}],
            "temperature": 0,
            "max_tokens": 100,
            "return_token_ids": True,
            **fields,
        }
        for number in range(12)
    ]
    url = f"http://127.0.0.1:{parsing_server}"
    direct = await direct_replies(url, CHAT, bodies)
    assert any(reply["choices"][0]["message"]["reasoning"] for reply in direct)
    relay = CuttingRelay(parsing_server, random.Random(2), 6_000)
    async with relay.running() as cutting_url:
        config = fast_config(cutting_url, tmp_path)
        config = replace(config, gateway=replace(config.gateway, render_url=url))
        content = b"".join(batch_line(str(number), CHAT, body) for number, body in enumerate(bodies))
        batch, lines = await run_job(config, CHAT, content, timeout_s=300)
    assert relay.cuts > 5
    assert batch["extproc"]["totals"]["resumed_tokens"] > 0
    for line, want in zip(lines, direct, strict=True):
        got = line["response"]["body"]
        for name in ("message", "token_ids", "finish_reason", "stop_reason"):
            assert got["choices"][0][name] == want["choices"][0][name], name
        assert got["usage"]["completion_tokens"] == want["usage"]["completion_tokens"]
        assert got["prompt_token_ids"] == want["prompt_token_ids"]
