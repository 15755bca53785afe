"""The emulator beside vLLM 0.30: the same requests get answers of the same shape, status and error object.

What vLLM answered is recorded, as shapes; where one is installed, it is asked again.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.emulated import emulated
from tests.support.real_vllm import MODEL, real_vllm

RECORDED = Path(__file__).with_name("recorded_shapes_0.30.json")

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
USER = [{"role": "user", "content": "batch work waits"}]

ANSWERED: list[tuple[str, dict[str, object]]] = [
    (TEXT, {"prompt": "batch work", "max_tokens": 5, "return_token_ids": True}),
    (TEXT, {"prompt": "batch work", "max_tokens": 5, "logprobs": 2}),
    (TEXT, {"prompt": ["batch", "work"], "max_tokens": 3, "temperature": 0.7, "seed": 3, "n": 2}),
    (TEXT, {"prompt": [5, 6, 7], "max_tokens": 5}),
    (CHAT, {"messages": USER, "max_tokens": 5, "return_token_ids": True}),
    (CHAT, {"messages": USER, "max_tokens": 5, "logprobs": True, "top_logprobs": 2}),
]
STREAMED: list[tuple[str, dict[str, object]]] = [
    (TEXT, {"prompt": "batch work", "max_tokens": 20, "return_token_ids": True}),
    (TEXT, {"prompt": "batch work", "max_tokens": 20, "stream_options": {"include_usage": True}}),
    (CHAT, {"messages": USER, "max_tokens": 20, "return_token_ids": True}),
    (CHAT, {"messages": USER, "max_tokens": 20, "stream_options": {"include_usage": True}}),
]
REFUSED: list[tuple[str, dict[str, object]]] = [
    (TEXT, {"prompt": "x", "max_tokens": 0}),
    (TEXT, {"prompt": "x", "max_tokens": -1}),
    (TEXT, {"prompt": "x", "max_tokens": "many"}),
    (TEXT, {"prompt": [5] * 2048, "max_tokens": 5}),
    (TEXT, {"prompt": [100_000], "max_tokens": 5}),
    (TEXT, {"prompt": "x", "model": "nobody"}),
    (TEXT, {"prompt": "x", "logprobs": 30}),
    (TEXT, {"prompt": "x", "cache_salt": ""}),
    (TEXT, {"prompt": "x", "n": 2, "temperature": 0}),
    (TEXT, {"prompt": "x", "min_tokens": 20, "max_tokens": 10}),
    (TEXT, {"prompt": "x", "priority": "soon"}),
    (CHAT, {"messages": USER, "max_tokens": 5000}),
    (CHAT, {"messages": USER, "model": "nobody"}),
]


def shape(value: Any, key: str = "") -> Any:
    """Keys and kinds of values; lists by their first element. Keys that are token texts say nothing."""
    match value:
        case dict() if key == "top_logprobs" and "token" not in value:
            return "map"
        case dict():
            return {name: shape(item, name) for name, item in value.items()}
        case list() if key == "bytes":
            return "bytes"
        case list():
            return [shape(value[0], key)] if value else []
        case bool() | None:
            return value
        case int() | float():
            return "number"
        case _:
            return type(value).__name__


def known_only(ours: Any, theirs: Any) -> Any:
    """`ours` without what the other side leaves out because it is null."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return {
            key: known_only(item, theirs.get(key))
            for key, item in ours.items()
            if key in theirs or item is not None
        }
    if isinstance(ours, list) and isinstance(theirs, list) and ours and theirs:
        return [known_only(ours[0], theirs[0])]
    return ours


async def ask(url: str, path: str, body: dict[str, object]) -> tuple[int, Any]:
    fixed = {"temperature": 0, "ignore_eos": True, "model": MODEL}
    async with (
        aiohttp.ClientSession() as session,
        session.post(url + path, json={**fixed, **body}) as response,
    ):
        return response.status, await response.json()


async def ask_streamed(url: str, path: str, body: dict[str, object]) -> list[Any]:
    fixed = {"temperature": 0, "ignore_eos": True, "model": MODEL, "stream": True}
    async with (
        aiohttp.ClientSession() as session,
        session.post(url + path, json={**fixed, **body}) as response,
    ):
        lines = [line for line in (await response.text()).splitlines() if line.startswith("data: ")]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def series(page: str) -> dict[str, list[str]]:
    """Metric names of vLLM's with their label names."""
    found: dict[str, list[str]] = {}
    for line in page.splitlines():
        match = re.match(r"(vllm:[a-z_]+)\{(.*)\} ", line)
        if match:
            found[match[1]] = sorted(set(re.findall(r'([a-z_]+)="', match[2])))
    return found


async def observed(url: str) -> dict[str, Any]:
    """Everything that is compared, from one server."""
    answers = [await ask(url, path, body) for path, body in ANSWERED]
    streams = [await ask_streamed(url, path, body) for path, body in STREAMED]
    refusals = [await ask(url, path, body) for path, body in REFUSED]
    async with aiohttp.ClientSession() as session, session.get(url + "/metrics") as response:
        metrics = series(await response.text())
    return {
        "answers": [[status, shape(answer)] for status, answer in answers],
        "streams": [distinct(shape(chunk) for chunk in chunks) for chunks in streams],
        "refusals": [
            [status, *(answer["error"][field] for field in ("type", "param", "code"))]
            for status, answer in refusals
        ],
        "metrics": metrics,
    }


def distinct(shapes: Iterable[Any]) -> list[Any]:
    """Each shape once, in order: a busy vLLM puts several tokens into one chunk."""
    found: list[Any] = []
    for each in shapes:
        if each not in found:
            found.append(each)
    return found


def recorded() -> dict[str, Any]:
    value = json.loads(RECORDED.read_text("utf-8"))
    assert isinstance(value, dict)
    return value


def assert_alike(ours: Any, theirs: Any) -> None:
    """Equal, but for fields that one leaves out where the other says null."""
    assert known_only(ours, theirs) == known_only(theirs, ours)


async def test_answers_chunks_refusals_and_metrics_are_those_of_a_recorded_vllm() -> None:
    theirs = recorded()
    async with emulated(model=MODEL) as server:
        ours = await observed(server.url)
    for mine, real in zip(ours["answers"], theirs["answers"], strict=True):
        assert mine[0] == real[0] == 200
        assert_alike(mine[1], real[1])
    for chunks, real_chunks in zip(ours["streams"], theirs["streams"], strict=True):
        assert len(chunks) == len(real_chunks)
        for mine, real in zip(chunks, real_chunks, strict=True):
            assert_alike(mine, real)
    assert ours["refusals"] == theirs["refusals"]
    assert len(ours["metrics"]) > 15
    for name, labels in ours["metrics"].items():
        assert name in theirs["metrics"], name
        assert set(labels) <= set(theirs["metrics"][name]), name


@pytest.mark.vllm
@pytest.mark.timeout(600)
async def test_the_installed_vllm_answers_as_recorded(tmp_path: Path) -> None:
    """With EXTPROC_RECORD set, writes the recording."""
    with real_vllm(tmp_path, "--max-num-seqs", "8") as port:
        observation = await observed(f"http://127.0.0.1:{port}")
    if os.environ.get("EXTPROC_RECORD"):
        rows = [f'"{name}": {json.dumps(value)}' for name, value in observation.items()]
        RECORDED.write_text("{\n" + ",\n".join(rows) + "\n}\n", "utf-8")
    assert observation == recorded()
