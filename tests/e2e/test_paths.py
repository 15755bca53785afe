"""The APIs beside chat, model rewrites, and what watched responses teach, through the real Envoy."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from extproc.core.types import Request
from extproc.stack.envoy import ProcessingMode
from tests.support.gateway import Gateway, chat, wait_until

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 640, 480) + b"\0" * 60_000)
IMAGE = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG.decode()}"}}

# path, body, tokens expected at the gateway (None: not queued)
CALLS: list[tuple[str, dict[str, Any], int | None]] = [
    ("/v1/completions", {"model": "m", "prompt": "x" * 400}, 100),
    ("/v1/completions", {"model": "m", "prompt": ["x" * 40, "y" * 40]}, 20),
    ("/v1/completions", {"model": "m", "prompt": [1, 2, 3]}, 3),
    ("/v1/completions", {"model": "m", "prompt": [[1, 2], [3, 4, 5]]}, 5),
    ("/v1/chat/completions?api-version=1", chat("x" * 396), 100),
    ("/v1/chat/completions", chat([{"type": "text", "text": "x" * 396}, IMAGE]), 100 + 300),  # type: ignore[arg-type]
    ("/v1/responses", {"model": "m", "input": "x" * 400}, 100),
    ("/v1/embeddings", {"model": "m", "input": ["x" * 200, "y" * 200]}, 100),
    ("/v1/messages?beta=true", {"model": "m", "messages": [{"role": "user", "content": "x" * 396}]}, 100),
    ("/inference/v1/generate", {"model": "m", "token_ids": [5] * 77, "sampling_params": {}}, 77),
    ("/v1/messages/count_tokens", {"model": "m", "messages": []}, None),
    ("/tokenize", {"model": "m", "prompt": "x"}, None),
    ("/v1/chat/completions/render", chat(), None),
]


def _watch(gateway: Gateway) -> list[Request]:
    """The requests that reach flow control from now on."""
    seen: list[Request] = []
    submit = gateway.app.driver.submit

    def spy(request: Request, sink: Any) -> None:
        seen.append(request)
        submit(request, sink)

    gateway.app.driver.submit = spy  # type: ignore[method-assign]
    return seen


@pytest.mark.parametrize("mode", [ProcessingMode.LEAN, ProcessingMode.FULL_DUPLEX])
async def test_every_api_is_counted_and_served(mode: ProcessingMode, tmp_path: Path) -> None:
    """Field bugs 44, 47, 49, 50, 53."""
    config = {"requests": {"tokens": {"learn_ratio": False}}}
    async with Gateway(tmp_path, config, mode=mode) as gateway, gateway.client() as client:
        seen = _watch(gateway)
        for path, body, tokens in CALLS:
            before = len(seen)
            answer = await client.post(path, json=body)
            assert answer.status_code == 200, path
            assert json.loads(gateway.model.last.body) == body
            counted = [request.prompt_tokens for request in seen[before:]]
            assert counted == ([] if tokens is None else [tokens]), path
        files = {"file": ("a.wav", b"\xff" * 300_000, "audio/wav")}
        audio = await client.post("/v1/audio/transcriptions", files=files, data={"model": "whisper"})
        assert audio.status_code == 200
        assert seen[-1].prompt_tokens == 8192, "by size, with a ceiling"
        for method in ("GET", "HEAD", "OPTIONS", "DELETE"):
            assert (await client.request(method, "/v1/models")).status_code == 200
        assert len(seen) == len([None for call in CALLS if call[2] is not None]) + 1


REWRITES = {
    "requests": {
        "model_rewrites": [
            {"model": "alias", "targets": [{"model": "real-model"}]},
            {"model": "mixed", "targets": [{"model": "one", "weight": 3}, {"model": "two", "weight": 1}]},
        ]
    }
}


@pytest.mark.parametrize("mode", list(ProcessingMode))
async def test_a_model_is_rewritten_where_the_mode_lets_us(mode: ProcessingMode, tmp_path: Path) -> None:
    """Field bug 1: the length goes with the body, in bytes."""
    if mode is ProcessingMode.OBSERVABILITY:
        pytest.skip("nothing can be changed there")
    blind = mode in (ProcessingMode.STREAMED, ProcessingMode.HEADERS_ONLY)
    streamed_back = mode in (ProcessingMode.LEAN_OBSERVED, ProcessingMode.FULL_DUPLEX)
    async with Gateway(tmp_path, REWRITES, mode=mode) as gateway:
        for http2 in (False, True):
            async with gateway.client(http2=http2) as client:
                for content in ("plain", "日本語" * 20_000):
                    body = chat(content, stream=True) | {"model": "alias"}
                    data = json.dumps(body, ensure_ascii=False).encode()
                    headers = {"content-type": "application/json", "x-stub-tokens": "5"}
                    answer = await client.post("/v1/chat/completions", content=data, headers=headers)
                    assert answer.status_code == 200
                    sent = gateway.model.last
                    expected = data if blind else data.replace(b'"alias"', b'"real-model"')
                    assert sent.body == expected
                    if "content-length" in sent.headers:
                        assert int(sent.headers["content-length"]) == len(expected)
                    shown = "alias" if blind or streamed_back else "real-model"
                    assert f'"model": "{shown}"' in answer.text


async def test_weights_share_a_model_out(tmp_path: Path) -> None:
    async with Gateway(tmp_path, REWRITES) as gateway, gateway.client() as client:
        for _ in range(60):
            await client.post("/v1/chat/completions", json=chat() | {"model": "mixed"})
        models = [json.loads(seen.body)["model"] for seen in gateway.model.seen]
        assert set(models) == {"one", "two"}
        assert models.count("one") > models.count("two")


async def test_a_priority_is_taken_out_of_the_body_and_nothing_else(tmp_path: Path) -> None:
    """Field bug 4; vLLM's own convention is the opposite of ours."""
    body = b'{"model":"m",  "priority": 7, "x":1e3,"x":12345678901234567890, "prompt":"\\u00e9"}'
    for engine, expected in (
        ("remove", body.replace(b'  "priority": 7,', b"").replace(b'"m",', b'"m",')),
        ("negate", body.replace(b" 7", b" -7")),
        ("keep", body),
    ):
        (tmp_path / engine).mkdir()
        config = {"requests": {"priority": {"engine": engine}}}
        async with Gateway(tmp_path / engine, config) as gateway, gateway.client() as client:
            seen = _watch(gateway)
            headers = {"content-type": "application/json"}
            await client.post("/v1/completions", content=body, headers=headers)
            assert gateway.model.last.body == expected
            assert seen[0].priority == 7


async def test_sampled_responses_teach_and_are_untouched(tmp_path: Path) -> None:
    """With `mode_override` a lean stream's body comes by; usage, times and the ratio are learnt from it."""
    config = {"requests": {"observation": {"fraction": 1.0, "max_chunks_per_s": 100_000}}}
    async with Gateway(tmp_path, config) as gateway:
        for http2 in (False, True):
            async with gateway.client(http2=http2) as client:
                headers = {"x-stub-tokens": "6", "x-stub-gap-ms": "5"}
                answer = await client.post("/v1/chat/completions", json=chat("x" * 1000), headers=headers)
                assert answer.text.count("data: ") == 8
                plain = await client.post("/v1/chat/completions", json=chat("x" * 1000))
                assert plain.json()["usage"]["completion_tokens"] == 3
        await wait_until(lambda: gateway.app.service.open_streams == 0)
        page = gateway.app.meters.expose().decode()
        for name, count in (
            ("ttft_seconds", 2),
            ("tpot_seconds", 2),
            ("itl_seconds", 10),
            ("output_tokens", 4),
        ):
            assert f'extproc_{name}_count{{priority="0"}} {count}.0' in page, name
        estimator = gateway.app._surroundings.estimator
        assert estimator.ratio("m") > 4.0, "1,000 bytes were 7 tokens, says the engine"
