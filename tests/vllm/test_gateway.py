"""Through the real Envoy to a real vLLM: streaming, eviction, disconnect, metrics and token counts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.support.gateway import Gateway, wait_until
from tests.support.h2_client import H2Client
from tests.vllm.conftest import SLOTS, VllmServer

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]

PROMPT = "a quick brown fox jumps over a lazy dog"


def _config(server: VllmServer, **requests: Any) -> dict[str, Any]:
    static = {"type": "static", "endpoints": [{"name": "vllm", "address": server.address}]}
    return {
        "endpoints": {"discovery": [static]},
        "flow_control": {
            "detector": {"type": "concurrency-detector", "mode": "requests", "max_concurrency": SLOTS},
            "eviction": {"enabled": True},
        },
        "requests": requests,
    }


class Engine:
    """What vLLM itself says, asked directly."""

    def __init__(self, server: VllmServer) -> None:
        self._url = f"http://{server.address}"

    async def gauge(self, name: str) -> float:
        async with httpx.AsyncClient() as client:
            page = (await client.get(f"{self._url}/metrics", timeout=30)).text
        lines = [line for line in page.splitlines() if line.startswith(f"{name}{{")]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    async def wait_idle(self, timeout_s: float = 10.0) -> None:
        """Nothing runs, and no KV block is held."""
        await self._wait(("vllm:num_requests_running", "vllm:kv_cache_usage_perc"), 0, timeout_s)

    async def wait_running(self, count: int, timeout_s: float = 30.0) -> None:
        await self._wait(("vllm:num_requests_running",), count, timeout_s)

    async def _wait(self, names: tuple[str, ...], value: float, timeout_s: float) -> None:
        """Ask until all gauges have the value."""
        async with asyncio.timeout(timeout_s):
            for name in names:
                while await self.gauge(name) != value:  # noqa: ASYNC110  (it can only be asked)
                    await asyncio.sleep(0.02)


@pytest.fixture
async def engine(vllm_server: VllmServer) -> AsyncIterator[Engine]:
    engine = Engine(vllm_server)
    await engine.wait_idle()
    yield engine
    await engine.wait_idle()


def _completion(tokens: int, priority: int = 0, **fields: Any) -> dict[str, Any]:
    return {
        "model": "small",
        "prompt": PROMPT,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "priority": priority,
        **fields,
    }


async def test_the_openai_client_streams_through(
    vllm_server: VllmServer, engine: Engine, tmp_path: Path
) -> None:
    async with Gateway(tmp_path, _config(vllm_server)) as gateway:
        client = openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)
        stream = await client.chat.completions.create(
            model="small",
            messages=[{"role": "user", "content": PROMPT}],
            max_tokens=20,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens <= 20
        models = await client.models.list()
        assert [model.id for model in models.data] == ["small"]
        with pytest.raises(openai.NotFoundError):
            await client.completions.create(model="other", prompt="a")
        await client.close()


@pytest.mark.parametrize("is_streaming", [False, True], ids=["unstreamed", "streamed"])
async def test_an_evicted_request_leaves_the_engine(
    vllm_server: VllmServer, engine: Engine, tmp_path: Path, is_streaming: bool
) -> None:
    async with Gateway(tmp_path, _config(vllm_server)) as gateway:
        client = await H2Client.connect(gateway.port)
        body = _completion(1000, priority=-1, stream=is_streaming)
        batch = [client.send("/v1/completions", body) for _ in range(SLOTS)]
        await engine.wait_running(SLOTS)
        if is_streaming:
            for answer in batch:
                await answer.started.wait()
        urgent = await client.send("/v1/completions", _completion(3, priority=10)).wait(60)
        assert urgent.status == 200
        assert urgent.json()["usage"]["completion_tokens"] == 3
        victim = await batch[-1].wait()
        assert victim.was_reset if is_streaming else victim.status == 429
        await engine.wait_running(SLOTS - 1)
        for answer in batch[:-1]:
            client.reset(answer)
        await engine.wait_idle()
        client.close()


@pytest.mark.parametrize("is_streaming", [False, True], ids=["unstreamed", "streamed"])
async def test_field_bug_116_a_client_that_leaves_stops_the_engine(
    vllm_server: VllmServer, engine: Engine, tmp_path: Path, is_streaming: bool
) -> None:
    async with Gateway(tmp_path, _config(vllm_server)) as gateway:
        for http2 in (False, True):
            async with gateway.client(http2=http2) as client:
                body = _completion(1500, stream=is_streaming)
                task = asyncio.create_task(client.post("/v1/completions", json=body))
                await engine.wait_running(1)
                task.cancel()
            await engine.wait_idle(5.0)


async def test_what_the_engine_reports_reaches_the_core(
    vllm_server: VllmServer, engine: Engine, tmp_path: Path
) -> None:
    config = _config(vllm_server)
    config["endpoints"]["scrape"] = {"busy_interval_s": 0.05}
    async with Gateway(tmp_path, config) as gateway:
        client = await H2Client.connect(gateway.port)
        running = client.send("/v1/completions", _completion(400, stream=True))

        def kv_usage() -> float:
            (status,) = gateway.app.watch.endpoints()
            sample = status.scrape.sample if status.scrape is not None else None
            return (sample.kv_usage_fraction or 0.0) if sample is not None else 0.0

        await wait_until(lambda: kv_usage() > 0, 30.0)
        assert gateway.app.driver.statistics().inflight_requests == 1
        await running.wait(60)
        client.close()


async def test_prompts_are_counted_as_the_engine_counts_them(
    vllm_server: VllmServer, engine: Engine, tmp_path: Path
) -> None:
    """The learnt estimate approaches the engine's own count; its /tokenize gives it exactly."""
    counted: list[int] = []
    for mode in ("engine", "estimate"):
        (tmp_path / mode).mkdir()
        tokens = {"mode": mode, "timeout_s": 5.0}
        async with Gateway(tmp_path / mode, _config(vllm_server, tokens=tokens)) as gateway:
            submit = gateway.app.driver.submit

            def spy(request: Any, sink: Any, submit: Any = submit) -> None:
                counted.append(request.prompt_tokens)
                submit(request, sink)

            gateway.app.driver.submit = spy  # type: ignore[method-assign]
            async with gateway.client() as client:
                body = {
                    "model": "small",
                    "messages": [{"role": "user", "content": PROMPT * 20}],
                    "max_tokens": 1,
                }
                rounds = 1 if mode == "engine" else 60
                for _ in range(rounds):
                    answer = await client.post("/v1/chat/completions", json=body)
                    real = json.loads(answer.content)["usage"]["prompt_tokens"]
            if mode == "engine":
                assert counted == [real]
            else:
                first, last = counted[1], counted[-1]
                assert abs(last - real) < abs(first - real) or first == real
                assert abs(last - real) / real < 0.25
