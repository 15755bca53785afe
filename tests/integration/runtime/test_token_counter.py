"""Exact counts by a tokenizer file and by an engine's /tokenize, with their time limit, cache and
fallback.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from aiohttp import web
from tokenizers import Tokenizer, models, pre_tokenizers

from extproc.errors import ConfigError
from extproc.exchange.commands import CountTokens
from extproc.exchange.settings import CountMode, TokenConfig
from extproc.formats.openai import ApiKind
from extproc.runtime.token_counter import build_token_counter


def _command(kind: ApiKind, **fields: object) -> CountTokens:
    return CountTokens(kind, "m", json.dumps({"model": "client-name", **fields}).encode())


@pytest.fixture
def tokenizer_file(tmp_path: Path) -> str:
    """One token per word."""
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "[UNK]": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    return str(path)


async def test_a_tokenizer_file_counts_every_text(tokenizer_file: str) -> None:
    config = TokenConfig(mode=CountMode.TOKENIZER, tokenizer_files={"m": tokenizer_file}, timeout_s=5)
    counter = build_token_counter(config, lambda: None)
    assert counter is not None
    assert await counter(_command(ApiKind.COMPLETIONS, prompt="a b c")) == 3
    assert await counter(_command(ApiKind.COMPLETIONS, prompt=["a b", "a"])) == 3
    assert await counter(_command(ApiKind.EMBEDDINGS, input="a")) == 1
    parts = [{"role": "user", "content": [{"type": "text", "text": "a b"}, {"type": "image_url"}]}]
    assert await counter(_command(ApiKind.CHAT, messages=parts)) == 2 + 2 * 4
    assert await counter(_command(ApiKind.RESPONSES, input="a b")) is None
    assert await counter(CountTokens(ApiKind.COMPLETIONS, "other", b'{"prompt":"a"}')) is None
    await counter.close()


def test_an_unusable_file_is_named(tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    config = TokenConfig(mode=CountMode.TOKENIZER, tokenizer_files={"m": str(broken)})
    with pytest.raises(ConfigError, match=r"broken\.json"):
        build_token_counter(config, lambda: None)


async def test_the_engine_counts_with_its_own_template() -> None:
    asked: list[dict[str, object]] = []
    delay_s = 0.0
    status = 200

    async def tokenize(request: web.Request) -> web.Response:
        asked.append(await request.json())
        await asyncio.sleep(delay_s)
        return web.json_response({"count": 42, "tokens": list(range(42))}, status=status)

    app = web.Application()
    app.router.add_post("/tokenize", tokenize)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    address = f"127.0.0.1:{runner.addresses[0][1]}"
    config = TokenConfig(mode=CountMode.ENGINE, timeout_s=0.3, cache_entries=2)
    counter = build_token_counter(config, lambda: address)
    assert counter is not None
    try:
        chat = _command(
            ApiKind.CHAT, messages=[{"role": "user", "content": "hi"}], temperature=0, stream=True
        )
        assert await counter(chat) == 42
        assert asked == [{"model": "m", "messages": [{"role": "user", "content": "hi"}]}]
        assert await counter(chat) == 42
        assert len(asked) == 1, "the second count came from the cache"
        assert await counter(_command(ApiKind.COMPLETIONS, prompt=["a", "b"])) is None
        for number in range(3):
            await counter(_command(ApiKind.COMPLETIONS, prompt=f"p{number}"))
        assert await counter(chat) == 42
        assert len(asked) == 5, "the cache is bounded"
        delay_s = 5.0
        assert await counter(_command(ApiKind.COMPLETIONS, prompt="slow")) is None
        delay_s, status = 0.0, 500
        assert await counter(_command(ApiKind.COMPLETIONS, prompt="broken")) is None
    finally:
        await counter.close()
        await runner.cleanup()
    gone = build_token_counter(config, lambda: address)
    assert gone is not None
    assert await gone(_command(ApiKind.COMPLETIONS, prompt="nobody")) is None
    await gone.close()
