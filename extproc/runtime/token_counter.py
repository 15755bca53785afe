"""Exact prompt counts: by a local tokenizer file, or by asking an engine. Bounded in time, cached, never
fatal.

Whatever goes wrong (no file for the model, an engine that doesn't answer, a prompt of an odd shape) gives
None, and the estimate stands. Prompts are never logged.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol

import aiohttp
import msgspec

from extproc.errors import ConfigError, Problem
from extproc.exchange.commands import CountTokens
from extproc.exchange.settings import CountMode, TokenConfig
from extproc.formats.countable import prompt_texts, tokenize_body

logger = logging.getLogger(__name__)

TEMPLATE_TOKENS_PER_TEXT = 4
"""What a chat template adds to each message, roughly: a local tokenizer file doesn't hold the template."""

_MAX_ANSWER_BYTES = 64 * 1024 * 1024


class _Answer(msgspec.Struct):
    count: int


_decode_answer = msgspec.json.Decoder(_Answer).decode


class Backend(Protocol):
    """One way to count."""

    async def count(self, command: CountTokens) -> int | None:
        """Tokens of the prompt; None where this kind of prompt can't be counted. May raise OSError."""
        ...

    async def close(self) -> None: ...


class TokenCounter:
    """Counts by `backend` within `config.timeout_s`; the newest counts are remembered by the body's hash."""

    def __init__(self, config: TokenConfig, backend: Backend) -> None:
        self._config = config
        self._backend = backend
        self._cache: OrderedDict[bytes, int] = OrderedDict()

    async def __call__(self, command: CountTokens) -> int | None:
        """Tokens, or None when the estimate has to do."""
        digest = hashlib.blake2b(command.model.encode("utf-8", "replace"), digest_size=16)
        digest.update(command.kind.value.encode() + b"\0" + command.body)
        key = digest.digest()
        if key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key]
        try:
            async with asyncio.timeout(self._config.timeout_s):
                tokens = await self._backend.count(command)
        except (TimeoutError, OSError, aiohttp.ClientError, msgspec.MsgspecError) as error:
            logger.debug("a prompt could not be counted: %s", type(error).__name__)
            return None
        if tokens is not None:
            self._cache[key] = tokens
            if len(self._cache) > self._config.cache_entries:
                self._cache.popitem(last=False)
        return tokens

    async def close(self) -> None:
        await self._backend.close()


class TokenizerFiles:
    """`tokenizers` files by model name. Raises ConfigError when one can't be read or the package is
    missing.
    """

    def __init__(self, config: TokenConfig) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            message = "mode `tokenizer` needs the tokenizers package: pip install 'extproc[tokenizers]'"
            raise ConfigError([Problem("requests.tokens.mode", message)]) from error
        self._tokenizers: dict[str, Any] = {}
        problems = []
        for model, file in config.tokenizer_files.items():
            try:
                self._tokenizers[model] = Tokenizer.from_file(file)
            except Exception as error:  # the package raises plain Exception
                problems.append(Problem(f"requests.tokens.tokenizer_files.{model}", f"{file}: {error}"))
        if problems:
            raise ConfigError(problems)

    async def count(self, command: CountTokens) -> int | None:
        """Counts on a thread: the package lets go of the interpreter meanwhile."""
        tokenizer = self._tokenizers.get(command.model)
        texts = prompt_texts(command.kind, command.body)
        if tokenizer is None or texts is None:
            return None
        encodings = await asyncio.to_thread(tokenizer.encode_batch, texts)
        overhead = TEMPLATE_TOKENS_PER_TEXT * len(texts) if command.kind.value in ("chat", "messages") else 0
        return sum(len(encoding.ids) for encoding in encodings) + overhead

    async def close(self) -> None:
        """Nothing to give back."""


class EngineTokenizer:
    """Asks /tokenize of the engine that `pick_address` names, which also applies its chat template."""

    def __init__(self, pick_address: Callable[[], str | None]) -> None:
        self._pick_address = pick_address
        self._session: aiohttp.ClientSession | None = None

    async def count(self, command: CountTokens) -> int | None:
        """One request to one engine, without retry."""
        body = tokenize_body(command.kind, command.body, command.model)
        address = self._pick_address()
        if body is None or address is None:
            return None
        if self._session is None:
            self._session = aiohttp.ClientSession()
        headers = {"content-type": "application/json"}
        url = f"http://{address}/tokenize"
        async with self._session.post(url, data=body, headers=headers) as answer:
            if answer.status != 200:
                return None
            content = await answer.content.read(_MAX_ANSWER_BYTES)
        return max(_decode_answer(content).count, 0)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


def build_token_counter(config: TokenConfig, pick_address: Callable[[], str | None]) -> TokenCounter | None:
    """What the mode asks for; None: estimates only. Raises ConfigError for unusable tokenizer files."""
    match config.mode:
        case CountMode.ESTIMATE:
            return None
        case CountMode.TOKENIZER:
            return TokenCounter(config, TokenizerFiles(config))
        case CountMode.ENGINE:
            return TokenCounter(config, EngineTokenizer(pick_address))
