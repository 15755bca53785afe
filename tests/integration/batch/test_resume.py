"""Cut connections, real worker and store, emulated server: results equal the uninterrupted ones."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from openai import AsyncOpenAI

from extproc.batch.intake import CHAT, COMPLETIONS
from extproc.config.batch import ResumeMode
from tests.support.batch_app import batch_line, direct_replies, emulator, fast_config, run_job, running
from tests.support.cutting_relay import CuttingRelay

WORDS = ["alpha", "beta", "gamma", "delta", "café", "😀", "zeta", "你好"]


@pytest.fixture(scope="module")
def server_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with emulator(tmp_path_factory.mktemp("emulator"), "--speed", "8") as port:
        yield port


@pytest.fixture
async def relay(server_port: int) -> AsyncIterator[CuttingRelay]:
    relay = CuttingRelay(server_port, random.Random(11), None)
    async with relay.running():
        yield relay


def bodies_of(endpoint: str, count: int, seed: int, **fields: object) -> list[dict[str, object]]:
    rng = random.Random(seed)
    bodies: list[dict[str, object]] = []
    for number in range(count):
        text = " ".join(rng.choice(WORDS) for _ in range(rng.randint(2, 30))) + f" {number}"
        prompt: dict[str, object] = {"prompt": text}
        if endpoint == CHAT:
            prompt = {"messages": [{"role": "user", "content": text}]}
        bodies.append({**prompt, "temperature": 0, "max_tokens": 120, "return_token_ids": True, **fields})
    return bodies


CASES: list[tuple[str, str, dict[str, object]]] = [
    ("completions", COMPLETIONS, {}),
    ("chat", CHAT, {}),
    ("ignore_eos", COMPLETIONS, {"ignore_eos": True}),
    ("min_tokens", COMPLETIONS, {"min_tokens": 60}),
    ("stop", COMPLETIONS, {"stop": ["e", "th"], "min_tokens": 40}),
    ("logprobs", COMPLETIONS, {"logprobs": 2}),
    ("stop included", COMPLETIONS, {"stop": ["a t", "zz"], "include_stop_str_in_output": True}),
]


@pytest.mark.parametrize(
    ("endpoint", "fields"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
async def test_cut_again_and_again_every_answer_is_the_uninterrupted_one(
    relay: CuttingRelay, server_port: int, tmp_path: Path, endpoint: str, fields: dict[str, object]
) -> None:
    bodies = bodies_of(endpoint, 24, seed=5, **fields)
    direct = await direct_replies(f"http://127.0.0.1:{server_port}", endpoint, bodies)
    relay.bytes_between_cuts = 3_000
    content = b"".join(batch_line(str(number), endpoint, body) for number, body in enumerate(bodies))
    batch, results = await run_job(fast_config(f"http://127.0.0.1:{relay.port}", tmp_path), endpoint, content)
    assert batch["status"] == "completed"
    assert relay.cuts > 100
    assert [line["custom_id"] for line in results] == [str(number) for number in range(24)]
    for line, reply in zip(results, direct, strict=True):
        got, want = line["response"]["body"]["choices"][0], reply["choices"][0]
        assert got["token_ids"] == want["token_ids"]
        assert got.get("text") == want.get("text")
        assert got.get("message", {}).get("content") == want.get("message", {}).get("content")
        assert got["logprobs"] == want["logprobs"]
        assert got["finish_reason"] == want["finish_reason"]
        assert got["stop_reason"] == want["stop_reason"]
        assert line["response"]["body"]["usage"]["completion_tokens"] == reply["usage"]["completion_tokens"]
        assert line["response"]["body"]["usage"]["prompt_tokens"] == reply["usage"]["prompt_tokens"]
    totals = batch["extproc"]["totals"]
    tokens = sum(line["response"]["body"]["usage"]["completion_tokens"] for line in results)
    assert totals["resumed_tokens"] > 0
    assert totals["output_tokens"] == tokens + totals["redone_tokens"]
    assert totals["redone_tokens"] == sum(line["extproc"]["redone_tokens"] for line in results)


async def test_what_can_not_be_resumed_restarts_and_is_counted(
    relay: CuttingRelay, server_port: int, tmp_path: Path
) -> None:
    bodies = bodies_of(COMPLETIONS, 5, seed=6, presence_penalty=0.5)
    direct = await direct_replies(f"http://127.0.0.1:{server_port}", COMPLETIONS, bodies)
    relay.bytes_between_cuts = 20_000
    content = b"".join(batch_line(str(number), COMPLETIONS, body) for number, body in enumerate(bodies))
    batch, results = await run_job(
        fast_config(f"http://127.0.0.1:{relay.port}", tmp_path), COMPLETIONS, content
    )
    totals = batch["extproc"]["totals"]
    assert totals["restarts"] > 0
    assert totals["redone_tokens"] > 0
    assert totals["resumed_tokens"] == 0
    assert {line["extproc"]["resume"] for line in results} == {"restart"}
    texts = [line["response"]["body"]["choices"][0]["text"] for line in results]
    assert texts == [reply["choices"][0]["text"] for reply in direct]


async def test_resume_off_restarts_everything_after_a_backoff(
    relay: CuttingRelay, server_port: int, tmp_path: Path
) -> None:
    bodies = bodies_of(COMPLETIONS, 5, seed=7)
    relay.bytes_between_cuts = 20_000
    content = b"".join(batch_line(str(number), COMPLETIONS, body) for number, body in enumerate(bodies))
    config = fast_config(f"http://127.0.0.1:{relay.port}", tmp_path, resume=ResumeMode.OFF)
    batch, results = await run_job(config, COMPLETIONS, content)
    totals = batch["extproc"]["totals"]
    assert len(results) == 5
    assert totals["resumed_tokens"] == 0
    assert totals["redone_tokens"] > 0


async def test_several_answers_are_split_and_put_together(
    relay: CuttingRelay, server_port: int, tmp_path: Path
) -> None:
    body: dict[str, object] = {
        "prompt": ["one", "two"],
        "temperature": 0,
        "max_tokens": 60,
        "return_token_ids": True,
    }
    (direct,) = await direct_replies(f"http://127.0.0.1:{server_port}", COMPLETIONS, [body])
    relay.bytes_between_cuts = 9_000
    config = fast_config(f"http://127.0.0.1:{relay.port}", tmp_path)
    _, (line,) = await run_job(config, COMPLETIONS, batch_line("a", COMPLETIONS, body))
    got, want = line["response"]["body"], direct
    assert [choice["text"] for choice in got["choices"]] == [choice["text"] for choice in want["choices"]]
    assert [choice["index"] for choice in got["choices"]] == [0, 1]
    assert got["usage"]["completion_tokens"] == want["usage"]["completion_tokens"]
    assert got["usage"]["prompt_tokens"] == want["usage"]["prompt_tokens"]


async def test_field_bug_133_graceful_stops_lose_and_repeat_nothing(
    relay: CuttingRelay, server_port: int, tmp_path: Path
) -> None:
    bodies = bodies_of(COMPLETIONS, 40, seed=8, ignore_eos=True)
    direct = await direct_replies(f"http://127.0.0.1:{server_port}", COMPLETIONS, bodies)
    content = b"".join(batch_line(str(number), COMPLETIONS, body) for number, body in enumerate(bodies))
    config = fast_config(f"http://127.0.0.1:{relay.port}", tmp_path)
    rng = random.Random(3)
    batch_id = ""
    for _ in range(8):
        async with running(config) as app:
            url = f"http://127.0.0.1:{app.api_port}/v1"
            async with AsyncOpenAI(base_url=url, api_key="x", max_retries=0) as client:
                if not batch_id:
                    file = await client.files.create(file=("in.jsonl", content), purpose="batch")
                    batch = await client.batches.create(
                        input_file_id=file.id, endpoint=COMPLETIONS, completion_window="24h"
                    )
                    batch_id = batch.id
                await asyncio.sleep(rng.uniform(0.05, 0.3))
    batch_object, results = await run_job(config, COMPLETIONS, None, batch_id)
    assert [line["custom_id"] for line in results] == [str(number) for number in range(40)]
    got = [line["response"]["body"]["choices"][0]["token_ids"] for line in results]
    assert got == [reply["choices"][0]["token_ids"] for reply in direct]
    totals = batch_object["extproc"]["totals"]
    assert totals["resumed_tokens"] > 0
    assert totals["output_tokens"] == sum(map(len, got)) + totals["redone_tokens"]


async def test_results_carry_what_the_request_went_through(relay: CuttingRelay, tmp_path: Path) -> None:
    body: dict[str, object] = {"prompt": "x", "temperature": 0, "max_tokens": 5}
    config = fast_config(f"http://127.0.0.1:{relay.port}", tmp_path)
    _, (line,) = await run_job(config, COMPLETIONS, batch_line("a", COMPLETIONS, body))
    assert json.dumps(line["extproc"]["attempts"]) == "1"
    assert set(line["extproc"]) == {
        "attempts",
        "evictions",
        "restarts",
        "resumed_tokens",
        "redone_tokens",
        "queue_s",
        "resume",
    }
