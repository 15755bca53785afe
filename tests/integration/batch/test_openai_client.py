"""The `openai` client, unchanged, against the API with a worker and an emulated server."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import openai
import pytest
from openai import AsyncOpenAI

from extproc.batch.app import BatchApp
from tests.support.batch_app import batch_line, direct_reply, emulator, fast_config, running

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with emulator(tmp_path_factory.mktemp("emulator"), "--speed", "5") as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
async def app(server: str, tmp_path: Path) -> AsyncIterator[BatchApp]:
    async with running(fast_config(server, tmp_path)) as started:
        yield started


@pytest.fixture
async def client(app: BatchApp) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(
        base_url=f"http://127.0.0.1:{app.api_port}/v1", api_key="x", max_retries=0
    ) as made:
        yield made


async def submit(
    client: AsyncOpenAI, content: bytes, endpoint: str = COMPLETIONS, window: str = "24h"
) -> str:
    file = await client.files.create(file=("in.jsonl", io.BytesIO(content)), purpose="batch")
    batch = await client.batches.create(
        input_file_id=file.id,
        endpoint=endpoint,  # type: ignore[arg-type]
        completion_window=window,  # type: ignore[arg-type]
        metadata={"team": "blue"},
    )
    assert batch.status == "validating"
    return batch.id


async def wait_for(client: AsyncOpenAI, batch_id: str, *states: str) -> openai.types.Batch:
    async with asyncio.timeout(60):
        while (batch := await client.batches.retrieve(batch_id)).status not in states:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return batch


async def lines_of(client: AsyncOpenAI, file_id: str | None) -> list[dict[str, object]]:
    assert file_id is not None
    return [json.loads(line) for line in (await client.files.content(file_id)).text.splitlines()]


async def test_whole_life_of_a_batch(client: AsyncOpenAI, server: str) -> None:
    bodies: list[dict[str, object]] = [
        {"messages": [{"role": "user", "content": f"count to {n}"}], "temperature": 0, "max_tokens": 30}
        for n in range(10)
    ]
    content = b"".join(batch_line(f"c{n}", CHAT, body) for n, body in enumerate(bodies))
    batch_id = await submit(client, content, CHAT)
    batch = await wait_for(client, batch_id, "completed", "failed")
    assert batch.status == "completed"
    assert batch.request_counts is not None
    assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (
        10,
        10,
        0,
    )
    assert batch.metadata == {"team": "blue"}
    assert batch.error_file_id is None
    results = await lines_of(client, batch.output_file_id)
    assert [line["custom_id"] for line in results] == [f"c{n}" for n in range(10)]
    for line, body in zip(results, bodies, strict=True):
        direct = await direct_reply(server, CHAT, body)
        reply = line["response"]["body"]  # type: ignore[index]
        assert reply["choices"][0]["message"]["content"] == direct["choices"][0]["message"]["content"]  # type: ignore[index]
        assert reply["choices"][0]["finish_reason"] == direct["choices"][0]["finish_reason"]  # type: ignore[index]
        for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert reply["usage"][name] == direct["usage"][name]  # type: ignore[index]


async def test_files_are_listed_read_and_deleted(client: AsyncOpenAI) -> None:
    content = batch_line("a", COMPLETIONS, {"prompt": "x", "max_tokens": 2})
    file = await client.files.create(file=("in.jsonl", content), purpose="batch")
    assert (file.bytes, file.filename, file.purpose) == (len(content), "in.jsonl", "batch")
    assert [one.id async for one in client.files.list()] == [file.id]
    assert (await client.files.content(file.id)).read() == content
    assert (await client.files.delete(file.id)).deleted
    with pytest.raises(openai.NotFoundError):
        await client.files.retrieve(file.id)


async def test_batches_are_listed_page_by_page(client: AsyncOpenAI) -> None:
    line = batch_line("a", COMPLETIONS, {"prompt": "x", "max_tokens": 2})
    ids = [await submit(client, line) for _ in range(5)]
    assert [batch.id async for batch in client.batches.list(limit=2)] == ids[::-1]


async def test_bad_lines_fail_the_whole_batch_with_line_numbers(client: AsyncOpenAI) -> None:
    good = batch_line("a", COMPLETIONS, {"prompt": "x", "max_tokens": 2})
    content = good + b"{broken\n" + good + batch_line("b", CHAT, {"messages": []}) + b"\xff\n"
    batch = await wait_for(client, await submit(client, content), "failed", "completed")
    assert batch.status == "failed"
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert [(error.code, error.line) for error in batch.errors.data] == [
        ("invalid_json_line", 2),
        ("duplicate_custom_id", 3),
        ("invalid_url", 4),
        ("invalid_encoding", 5),
    ]
    assert batch.output_file_id is None


async def test_refused_requests_land_in_the_error_file_once(client: AsyncOpenAI) -> None:
    good = batch_line("good", COMPLETIONS, {"prompt": "x", "max_tokens": 2})
    bad = batch_line("bad", COMPLETIONS, {"prompt": "x", "max_tokens": -1})
    batch = await wait_for(client, await submit(client, bad + good), "completed")
    assert batch.request_counts is not None
    assert (batch.request_counts.completed, batch.request_counts.failed) == (1, 1)
    (error,) = await lines_of(client, batch.error_file_id)
    assert error["custom_id"] == "bad"
    assert error["response"]["status_code"] == 400  # type: ignore[index]
    assert error["extproc"]["attempts"] == 1  # type: ignore[index]
    assert [line["custom_id"] for line in await lines_of(client, batch.output_file_id)] == ["good"]


async def test_cancel_is_prompt_and_keeps_what_is_finished(client: AsyncOpenAI) -> None:
    short = [batch_line(f"s{n}", COMPLETIONS, {"prompt": "x", "max_tokens": 2}) for n in range(3)]
    long = [
        batch_line(f"l{n}", COMPLETIONS, {"prompt": "x", "max_tokens": 30000, "ignore_eos": True})
        for n in range(40)
    ]
    batch_id = await submit(client, b"".join(short + long))
    async with asyncio.timeout(30):
        while True:
            counts = (await client.batches.retrieve(batch_id)).request_counts
            if counts is not None and counts.completed == 3:
                break
            await asyncio.sleep(0.02)
    cancelled = await client.batches.cancel(batch_id)
    assert cancelled.status == "cancelling"
    batch = await wait_for(client, batch_id, "cancelled")
    assert [line["custom_id"] for line in await lines_of(client, batch.output_file_id)] == ["s0", "s1", "s2"]
    errors = await lines_of(client, batch.error_file_id)
    assert len(errors) == 40
    assert {line["error"]["code"] for line in errors} == {"batch_cancelled"}  # type: ignore[index]
    assert (await client.batches.cancel(batch_id)).status == "cancelled"


async def test_a_batch_past_its_window_expires_and_reports_every_line(client: AsyncOpenAI) -> None:
    lines = [
        batch_line(f"l{n}", COMPLETIONS, {"prompt": "x", "max_tokens": 30000, "ignore_eos": True})
        for n in range(30)
    ]
    short = batch_line("s", COMPLETIONS, {"prompt": "x", "max_tokens": 2})
    batch = await wait_for(client, await submit(client, short + b"".join(lines), window="1.5s"), "expired")
    assert [line["custom_id"] for line in await lines_of(client, batch.output_file_id)] == ["s"]
    errors = await lines_of(client, batch.error_file_id)
    assert [line["custom_id"] for line in errors] == [f"l{n}" for n in range(30)]
    assert {line["error"]["code"] for line in errors} == {"batch_expired"}  # type: ignore[index]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"endpoint": "/v1/images"}, "endpoint"),
        ({"completion_window": "-5s"}, "completion_window"),
        ({"completion_window": "soon"}, "completion_window"),
        ({"input_file_id": "file-nobody"}, "input_file_id"),
        ({"metadata": {"k" * 65: "v"}}, "metadata"),
    ],
)
async def test_bad_parameters_are_named(client: AsyncOpenAI, change: dict[str, object], param: str) -> None:
    file = await client.files.create(file=("in.jsonl", b"{}\n"), purpose="batch")
    parameters: dict[str, object] = {
        "input_file_id": file.id,
        "endpoint": COMPLETIONS,
        "completion_window": "24h",
    }
    with pytest.raises(openai.BadRequestError) as caught:
        await client.batches.create(**(parameters | change))  # type: ignore[arg-type]
    assert caught.value.param == param
    assert [batch.id async for batch in client.batches.list()] == []


async def test_uploads_over_the_limit_leave_nothing(server: str, tmp_path: Path) -> None:
    from dataclasses import replace

    config = fast_config(server, tmp_path)
    config = replace(config, api=replace(config.api, max_file_bytes=100_000))
    async with running(config) as app:
        url = f"http://127.0.0.1:{app.api_port}/v1"
        async with AsyncOpenAI(base_url=url, api_key="x", max_retries=0) as client:
            with pytest.raises(openai.APIStatusError) as caught:
                await client.files.create(file=("in.jsonl", b"x" * 3_000_000), purpose="batch")
            assert caught.value.status_code == 413
            assert [one.id async for one in client.files.list()] == []
            with pytest.raises(openai.BadRequestError):
                await client.files.create(file=("in.jsonl", b"x"), purpose="assistants")
    assert list((tmp_path / "files").iterdir()) == []
