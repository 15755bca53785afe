"""Every processing mode through the real Envoy: what the engine gets is what the client sent, and
all is booked.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from extproc.stack.envoy import ProcessingMode
from tests.support.gateway import Gateway, wait_until

CONTROLLED = [mode for mode in ProcessingMode if mode is not ProcessingMode.OBSERVABILITY]
HEADERS_FIRST = (ProcessingMode.STREAMED, ProcessingMode.HEADERS_ONLY)
"""Modes in which the route is chosen before a byte of the body is seen."""

LARGE_BODIES = {"requests": {"limits": {"max_body_bytes": 32 << 20}}}
JSON = {"content-type": "application/json"}


def _body(padding: int) -> bytes:
    """A chat request around `padding` bytes of prompt; spaces, escapes and number forms must survive."""
    head = b'{"model":"m",  "temperature": 1e0, "messages":[{"role":"user","content":"\\u00e9 '
    return head + b"x" * padding + b'"}], "seed": 12345678901234567890}'


async def _exchange(gateway: Gateway, client: httpx.AsyncClient, padding: int, tokens: int | None) -> None:
    body = _body(padding)
    headers = JSON if tokens is None else {**JSON, "x-stub-tokens": str(tokens)}
    answer = await client.post("/v1/chat/completions", content=body, headers=headers)
    assert answer.status_code == 200, (padding, answer.text[:200])
    assert gateway.model.last.body == body
    if tokens is None:
        assert json.loads(answer.content)["usage"]["completion_tokens"] == 3
    else:
        assert answer.text.count("data: ") == tokens + 2


@pytest.mark.parametrize("mode", CONTROLLED)
async def test_bodies_of_all_sizes_arrive_unchanged(mode: ProcessingMode, tmp_path: Path) -> None:
    """Also field bugs 4 (bytes nobody asked to change), 7 and 8 (buffer and message limits), 14 and 16."""
    async with Gateway(tmp_path, LARGE_BODIES, mode=mode, buffer_limit_bytes=64 << 20) as gateway:
        for http2 in (False, True):
            async with gateway.client(http2=http2) as client:
                for padding in (0, 64 << 10, 1 << 20):
                    await _exchange(gateway, client, padding, tokens=None)
                    await _exchange(gateway, client, padding, tokens=5)
                await _exchange(gateway, client, 20 << 20, tokens=5)
                assert (await client.get("/v1/models")).status_code == 200
        stats = await gateway.stats("ext_proc")
        assert not [name for name, value in stats.items() if "spurious" in name and value], stats
        assert not [name for name, value in stats.items() if "failed" in name and value], stats


@pytest.mark.parametrize("mode", CONTROLLED)
async def test_tiny_and_empty_bodies_get_a_clear_answer(mode: ProcessingMode, tmp_path: Path) -> None:
    """0 bytes need no queue; 1 byte is no JSON, unless the path isn't one that we read."""
    async with Gateway(tmp_path, mode=mode) as gateway:
        for http2 in (False, True):
            async with gateway.client(http2=http2) as client:
                assert (await client.post("/v1/chat/completions", content=b"")).status_code == 200
                refused = await client.post("/v1/chat/completions", content=b"{", headers=JSON)
                if mode in HEADERS_FIRST:
                    assert refused.status_code == 200  # the engine's to refuse: we never see it
                else:
                    assert refused.status_code == 400
                    assert refused.json()["error"]["code"] == "bad_request"
                assert (await client.post("/custom", content=b"{")).status_code == 200
                assert gateway.model.last.body == b"{"


@pytest.mark.parametrize("mode", CONTROLLED)
async def test_an_empty_chunked_answer_ends(mode: ProcessingMode, tmp_path: Path) -> None:
    """Field bug 5: the end of an empty body may reach Envoy before a mode override is applied."""
    config = {"requests": {"observation": {"fraction": 1.0}}}
    async with Gateway(tmp_path, config, mode=mode) as gateway:
        for http2 in (False, True):
            async with gateway.client(http2=http2) as client:
                answer = await client.post(
                    "/v1/completions", json={"model": "m", "prompt": "a"}, headers={"x-stub-empty": "true"}
                )
                assert (answer.status_code, answer.content) == (200, b"")


async def test_observability_mode_changes_nothing(tmp_path: Path) -> None:
    """Envoy only sends copies: requests go where Envoy wants, nothing is answered and nothing booked."""
    mode = ProcessingMode.OBSERVABILITY
    async with Gateway(tmp_path, mode=mode, static_pool=True) as gateway:
        for http2 in (False, True):
            async with gateway.client(http2=http2) as client:
                await _exchange(gateway, client, 64 << 10, tokens=5)
                assert (await client.post("/v1/chat/completions", content=b"{")).status_code == 200
        await wait_until(lambda: gateway.app.service.open_streams == 0)
        assert not any(band.outcomes for band in gateway.app.driver.statistics().bands)


@pytest.mark.parametrize(
    "response_mode", ["STREAMED", "BUFFERED", "BUFFERED_PARTIAL", "FULL_DUPLEX_STREAMED"]
)
async def test_each_response_mode_passes_answers_and_gives_names_back(
    response_mode: str, tmp_path: Path
) -> None:
    """Also field bug 74: a body is handled once. Names come back but where the body may be cut off."""

    def use_mode(bootstrap: dict[str, Any]) -> None:
        manager = bootstrap["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]
        for http_filter in manager["typed_config"]["http_filters"]:
            if http_filter["name"].endswith("ext_proc"):
                http_filter["typed_config"]["processing_mode"]["response_body_mode"] = response_mode

    rewrite = {"model": "m", "targets": [{"model": "a-much-longer-name"}]}
    gateway = Gateway(tmp_path, {"requests": {"model_rewrites": [rewrite]}})
    gateway.edit_bootstrap = use_mode
    shown = "a-much-longer-name" if response_mode == "BUFFERED_PARTIAL" else "m"
    async with gateway:
        for http2 in (False, True):
            async with gateway.client(http2=http2) as client:
                body = {"model": "m", "prompt": "hello"}
                plain = await client.post("/v1/completions", json=body)
                assert (plain.status_code, plain.json()["model"]) == (200, shown)
                headers = {"x-stub-tokens": "5", "x-stub-gap-ms": "2"}
                streamed = await client.post("/v1/completions", json=body, headers=headers)
                assert streamed.text.count(f'"model": "{shown}"') == 5
                assert streamed.text.endswith("data: [DONE]\n\n")
        finished = gateway.app.meters.expose().decode()
        assert 'extproc_output_tokens_count{priority="0"} 4.0' in finished
