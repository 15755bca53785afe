"""The emulator over real sockets, with a plain HTTP client and with the `openai` client: vLLM's behaviour."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import aiohttp
import openai
import pytest

from extproc.sim import tokenizer
from tests.support.emulated import Emulated, emulated
from tests.support.waiting import eventually

LONG = {"max_tokens": 1500, "ignore_eos": True}


async def post(server: Emulated, path: str, body: object, **headers: str) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(server.url + path, json=body, headers=headers) as response,
    ):
        return response.status, await response.json()


async def events(server: Emulated, path: str, **body: object) -> list[dict[str, Any]]:
    """The JSON of every event of a streamed answer; [DONE] must come last."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(server.url + path, json={**body, "stream": True}) as response,
    ):
        assert response.status == 200
        lines = [line for line in (await response.text()).split("\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def ids_of(chunks: list[dict[str, Any]]) -> list[int]:
    return [
        token for chunk in chunks for choice in chunk["choices"] for token in choice.get("token_ids") or []
    ]


def text_of(chunks: list[dict[str, Any]]) -> str:
    return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])


async def metric(server: Emulated, name: str) -> float:
    async with aiohttp.ClientSession() as session, session.get(server.url + "/metrics") as response:
        for line in (await response.text()).splitlines():
            if line.startswith(name + "{"):
                return float(line.rsplit(" ", 1)[1])
    raise AssertionError(f"no metric {name}")


async def test_stream_chunks_have_the_fields_of_vllm() -> None:
    async with emulated() as server:
        body = {"prompt": [260, 290], "max_tokens": 3, "return_token_ids": True, "ignore_eos": True}
        chunks = await events(server, "/v1/completions", **body, stream_options={"include_usage": True})
        chat = await events(
            server,
            "/v1/chat/completions",
            messages=[{"role": "user", "content": "hi"}],
            max_tokens=2,
            return_token_ids=True,
            ignore_eos=True,
        )
    assert len(chunks) == 4
    assert chunks[0]["id"].startswith("cmpl-")
    assert chunks[0]["choices"][0]["prompt_token_ids"] == [260, 290]
    assert [chunk["choices"][0]["prompt_token_ids"] for chunk in chunks[1:3]] == [None, None]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:3]] == [None, None, "length"]
    assert chunks[3]["choices"] == []
    assert chunks[3]["usage"] == {"prompt_tokens": 2, "total_tokens": 5, "completion_tokens": 3}
    assert chat[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chat[0]["prompt_token_ids"][0] == tokenizer.IM_START_ID
    assert "token_ids" not in chat[0]["choices"][0]
    assert len(ids_of(chat)) == 2


async def test_resumed_from_any_token_the_answer_is_the_same_to_the_token() -> None:
    rng = random.Random(3)
    async with emulated() as server:
        for prompt in ("tell me a story", tokenizer.text_of_tokens(300, seed=9)):
            whole = await events(
                server, "/v1/completions", prompt=prompt, max_tokens=400, return_token_ids=True
            )
            prompt_ids, ids = whole[0]["choices"][0]["prompt_token_ids"], ids_of(whole)
            for cut in rng.sample(range(1, len(ids)), 10):
                rest = await events(
                    server,
                    "/v1/completions",
                    prompt=prompt_ids + ids[:cut],
                    max_tokens=400 - cut,
                    return_token_ids=True,
                )
                assert ids[:cut] + ids_of(rest) == ids
                assert rest[-1]["choices"][0]["finish_reason"] == whole[-1]["choices"][0]["finish_reason"]
                if whole[cut - 1]["choices"][0]["text"]:
                    assert text_of(whole[:cut]) + text_of(rest) == text_of(whole)


@pytest.mark.parametrize("streams", [True, False])
async def test_field_bug_116_a_client_that_leaves_frees_the_engine_at_once(streams: bool) -> None:
    async with emulated(step_s=0.005) as server, aiohttp.ClientSession() as session:
        body = {"prompt": "go on", "stream": streams, **LONG}
        for _ in range(3):
            task = asyncio.create_task(session.post(server.url + "/v1/completions", json=body))
            await eventually(lambda: server.model.running == 1)
            if streams:
                (await task).close()
            else:
                task.cancel()
            await eventually(lambda: server.model.running == 0)
            assert server.model.kv.usage_fraction == 0


async def test_max_num_seqs_bounds_what_runs_and_the_rest_waits_in_order() -> None:
    async with emulated(max_num_seqs=2) as server:
        bodies = [{"prompt": f"number {number}", **LONG, "max_tokens": 200} for number in range(5)]
        tasks = [asyncio.create_task(post(server, "/v1/completions", body)) for body in bodies]
        await eventually(lambda: server.model.waiting == 3)
        assert await metric(server, "vllm:num_requests_running") == 2
        statuses = [status for status, _ in await asyncio.gather(*tasks)]
    assert statuses == [200] * 5


async def test_a_seed_repeats_and_choices_are_the_seeds_that_follow() -> None:
    async with emulated() as server:
        body = {"prompt": "x", "temperature": 0.8, "seed": 7, "max_tokens": 20, "ignore_eos": True}
        _, first = await post(server, "/v1/completions", body)
        _, again = await post(server, "/v1/completions", body)
        _, two = await post(server, "/v1/completions", {**body, "n": 2})
        _, eight = await post(server, "/v1/completions", {**body, "seed": 8})
    texts = [choice["text"] for choice in two["choices"]]
    assert first["choices"][0]["text"] == again["choices"][0]["text"] == texts[0]
    assert eight["choices"][0]["text"] == texts[1]
    assert two["usage"]["completion_tokens"] == 40
    assert two["usage"]["prompt_tokens"] == first["usage"]["prompt_tokens"]


@pytest.mark.parametrize("includes", [False, True])
async def test_stop_strings_end_the_text_where_they_begin_or_end(includes: bool) -> None:
    async with emulated() as server:
        plain = text_of(await events(server, "/v1/completions", prompt="q", max_tokens=60, ignore_eos=True))
        stop = plain[20:25]
        stopped = await events(
            server,
            "/v1/completions",
            prompt="q",
            max_tokens=60,
            ignore_eos=True,
            stop=[stop, "never there"],
            include_stop_str_in_output=includes,
        )
    assert text_of(stopped) == plain[: plain.index(stop)] + (stop if includes else "")
    last = stopped[-1]["choices"][0]
    assert (last["finish_reason"], last["stop_reason"]) == ("stop", stop)


@pytest.mark.parametrize(
    ("path", "body", "status", "kind", "param"),
    [
        ("/v1/completions", {"prompt": "x", "max_tokens": 0}, 400, "BadRequestError", "max_tokens"),
        ("/v1/completions", {"prompt": "x", "max_tokens": -1}, 400, "BadRequestError", "max_tokens"),
        ("/v1/completions", {"prompt": [5] * 2048}, 400, "BadRequestError", "input_tokens"),
        ("/v1/completions", {"prompt": [10**6]}, 400, "BadRequestError", None),
        ("/v1/completions", {"prompt": "x", "max_tokens": "5"}, 400, "Bad Request", "body.max_tokens"),
        ("/v1/completions", {"prompt": "x", "model": "other"}, 404, "NotFoundError", "model"),
        ("/v1/completions", {"prompt": "x", "n": 2}, 400, "BadRequestError", None),
        ("/v1/completions", {"prompt": "x", "n": 10**9, "temperature": 1}, 400, "BadRequestError", "n"),
        ("/v1/completions", {"prompt": "x", "logprobs": 30}, 400, "BadRequestError", "logprobs"),
        ("/v1/completions", {"prompt": "x", "suffix": "y"}, 400, "BadRequestError", None),
        ("/v1/completions", {"prompt": "x", "cache_salt": ""}, 400, "BadRequestError", "cache_salt"),
        ("/v1/completions", {"prompt": "x", "min_tokens": 9, "max_tokens": 5}, 400, "BadRequestError", None),
        ("/v1/completions", {"prompt": "x", "priority": "high"}, 400, "Bad Request", "body.priority"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5000},
            400,
            "BadRequestError",
            "max_tokens",
        ),
    ],
)
async def test_refusals_have_vllms_status_and_error_object(
    path: str, body: dict[str, object], status: int, kind: str, param: str | None
) -> None:
    async with emulated() as server:
        got, answer = await post(server, path, body)
        streamed, _ = await post(server, path, {**body, "stream": True})
    assert got == streamed == status
    error = answer["error"]
    assert (error["type"], error["param"], error["code"]) == (kind, param, status)
    assert error["message"]


async def test_limits_and_defaults_are_vllms() -> None:
    async with emulated() as server:
        _, default = await post(server, "/v1/completions", {"prompt": "x", "ignore_eos": True})
        fits, _ = await post(server, "/v1/completions", {"prompt": [5] * 2047, "max_tokens": 1})
        _, echo = await post(server, "/v1/completions", {"prompt": "hello", "max_tokens": 0, "echo": True})
        async with aiohttp.ClientSession() as session:
            async with session.post(server.url + "/v1/completions", data=b"{}") as response:
                wrong_type = await response.json()
            async with session.get(server.url + "/nowhere") as response:
                assert (response.status, await response.json()) == (404, {"detail": "Not Found"})
            async with session.get(server.url + "/v1/completions") as response:
                assert (response.status, await response.json()) == (405, {"detail": "Method Not Allowed"})
    assert default["usage"]["completion_tokens"] == 16
    assert fits == 200
    assert echo["choices"][0]["text"] == "hello"
    assert "Unsupported Media Type" in wrong_type["error"]["message"]


async def test_the_openai_client_drives_it_unchanged() -> None:
    async with emulated() as server, openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="x") as client:
        models = await client.models.list()
        answer = await client.chat.completions.create(
            model=models.data[0].id,
            messages=[{"role": "user", "content": "hello"}],
            max_completion_tokens=12,
            logprobs=True,
            top_logprobs=2,
            extra_body={"ignore_eos": True},
        )
        stream = await client.completions.create(model="tiny", prompt="hello", max_tokens=9, stream=True)
        pieces = [chunk.choices[0].text async for chunk in stream]
        with pytest.raises(openai.NotFoundError):
            await client.completions.create(model="nobody", prompt="x")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 12
    assert answer.choices[0].logprobs is not None
    content = answer.choices[0].logprobs.content
    assert content is not None
    assert len(content) == 12
    assert len(content[0].top_logprobs) == 2
    assert 1 <= len(pieces) <= 9


async def test_prefix_cache_hits_whole_blocks_and_salts_never_share() -> None:
    async with emulated() as server:
        prompt = list(range(300, 400))

        async def hits(**extra: object) -> float:
            before = await metric(server, "vllm:prefix_cache_hits_total")
            await post(server, "/v1/completions", {"prompt": prompt, "max_tokens": 2, **extra})
            return await metric(server, "vllm:prefix_cache_hits_total") - before

        assert await hits() == 0
        assert await hits() == 96
        assert await hits(cache_salt="a") == 0
        assert await hits(cache_salt="a") == 96
        assert await hits(cache_salt="b") == 0


async def test_tokenize_detokenize_and_render_agree_with_generation() -> None:
    async with emulated() as server:
        messages = [{"role": "user", "content": "naïve €uro"}]
        _, tokens = await post(server, "/tokenize", {"model": "tiny", "messages": messages})
        _, text = await post(server, "/detokenize", {"tokens": tokens["tokens"]})
        _, rendered = await post(server, "/v1/chat/completions/render", {"messages": messages})
        _, many = await post(server, "/v1/completions/render", {"prompt": ["a", "b"], "max_tokens": 9})
        _, answer = await post(
            server, "/v1/chat/completions", {"messages": messages, "max_tokens": 1, "return_token_ids": True}
        )
    assert tokens["tokens"] == rendered["token_ids"] == answer["prompt_token_ids"]
    assert text["prompt"] == "<|im_start|>user\nnaïve €uro<|im_end|>\n<|im_start|>assistant\n"
    assert rendered["sampling_params"]["max_tokens"] == 2048 - tokens["count"]
    assert [each["sampling_params"]["max_tokens"] for each in many] == [9, 9]


async def test_faults_strike_and_go_away() -> None:
    async with emulated() as server, aiohttp.ClientSession() as session:
        short = {"prompt": "x", "max_tokens": 30, "ignore_eos": True, "stream": True}

        async def read() -> tuple[int, bytes]:
            async with session.post(server.url + "/v1/completions", json=short) as response:
                return response.status, await response.read()

        async def switch(text: str) -> None:
            async with session.post(server.url + "/emulator/faults", data=text) as response:
                assert response.status == 200, await response.text()

        await switch("error:status=503")
        assert (await read())[0] == 503
        await session.delete(server.url + "/emulator/faults")
        await switch("reset:after=5")
        with pytest.raises(aiohttp.ClientError):
            await read()
        assert server.model.running == 0
        await session.delete(server.url + "/emulator/faults?kind=reset")
        await switch("garbage:after=3")
        _, body = await read()
        assert body.count(b"data: ") == 30 + 1 + 1
        await session.delete(server.url + "/emulator/faults")
        assert (await read())[0] == 200
        async with session.post(server.url + "/emulator/faults", data="meteor") as response:
            assert response.status == 400
            assert "reset" in await response.text()


async def test_a_dead_engine_ends_streams_with_an_error_and_done_and_turns_unhealthy() -> None:
    async with emulated(step_s=0.002) as server, aiohttp.ClientSession() as session:
        body = {"prompt": "x", "stream": True, **LONG}
        async with session.post(server.url + "/v1/completions", json=body) as response:
            await response.content.readline()
            await session.post(server.url + "/emulator/faults", data="death")
            rest = (await response.read()).decode()
        last, done = [line for line in rest.split("\n") if line][-2:]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == 500
        assert done == "data: [DONE]"
        async with session.get(server.url + "/health") as response:
            assert response.status == 503
        assert (await post(server, "/v1/completions", {"prompt": "x"}))[0] == 500


async def test_a_stalled_engine_makes_no_step_and_goes_on_after() -> None:
    async with emulated("stall:seconds=0.3", step_s=0.001) as server:
        task = asyncio.create_task(post(server, "/v1/completions", {"prompt": "x", "max_tokens": 5}))
        await eventually(lambda: server.model.running == 1)
        assert server.model.output_tokens == 0
        status, _ = await task
    assert status == 200


async def test_stale_metrics_repeat_the_last_page() -> None:
    async with emulated() as server, aiohttp.ClientSession() as session:
        before = await metric(server, "vllm:generation_tokens_total")
        await session.post(server.url + "/emulator/faults", data="stale-metrics")
        await post(server, "/v1/completions", {"prompt": "x", "ignore_eos": True})
        assert await metric(server, "vllm:generation_tokens_total") == before
        await session.delete(server.url + "/emulator/faults")
        assert await metric(server, "vllm:generation_tokens_total") == before + 16


async def test_priority_header_overrides_the_body() -> None:
    async with emulated() as server:
        status, answer = await post(server, "/v1/completions", {"prompt": "x"}, **{"X-Vllm-Priority": "soon"})
    assert status == 400
    assert "X-Vllm-Priority" in answer["error"]["message"]
