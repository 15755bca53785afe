"""The way to the servers: several gateway addresses in turn, each behind a circuit, and the engine's
tokenizer.

It sends what it is given and reports what came; what is sent when is the worker's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack
from random import Random

import msgspec

from extproc.batch.intake import CHAT
from extproc.batch.planner import Circuit, RetryPolicy, is_nobody_there
from extproc.client.answer_stream import AnswerStream
from extproc.client.answers import EndKind, StreamEnd
from extproc.client.inference import InferenceClient
from extproc.clock import Clock
from extproc.config.batch import GatewayConfig

_TOKENIZED_FIELDS = [
    "model",
    "prompt",
    "messages",
    "add_special_tokens",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
    "chat_template_kwargs",
    "tools",
]


class Route:
    """One gateway address: its client and its circuit."""

    def __init__(self, client: InferenceClient, circuit: Circuit) -> None:
        self.client = client
        self.circuit = circuit


class Gateway:
    """An async context manager over one client per address."""

    def __init__(
        self, config: GatewayConfig, clock: Clock, policy: RetryPolicy, rng: Random, *, concurrency: int
    ) -> None:
        self._config = config
        self._clock = clock
        self._stack = AsyncExitStack()
        self._routes = [Route(self._client(url, concurrency), Circuit(policy, rng)) for url in config.urls]
        self._renderer = self._client(config.render_url, concurrency) if config.render_url else None
        self._turn = 0
        self._context_lengths: dict[str, int] = {}

    def _client(self, url: str, concurrency: int) -> InferenceClient:
        connect_s = self._config.connect_timeout_s
        # One connection more than requests: the tokenizer must not wait for a stream to end.
        return InferenceClient(
            url, clock=self._clock, concurrency=concurrency + 1, connect_timeout_s=connect_s
        )

    async def __aenter__(self) -> Gateway:
        for route in self._routes:
            await self._stack.enter_async_context(route.client)
        if self._renderer is not None:
            await self._stack.enter_async_context(self._renderer)
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self._stack.aclose()

    @property
    def open_circuits(self) -> int:
        """Addresses that are left alone for now."""
        return sum(not route.circuit.is_closed for route in self._routes)

    def room(self, now: float) -> int | None:
        """How many requests may be sent: None without limit, 1 as a probe of a silent address, 0 none."""
        if any(route.circuit.is_closed for route in self._routes):
            return None
        return int(any(route.circuit.can_probe(now) for route in self._routes))

    def pick_route(self, now: float) -> Route | None:
        """The next address in turn whose circuit admits a request."""
        for step in range(len(self._routes)):
            route = self._routes[(self._turn + step) % len(self._routes)]
            if route.circuit.admits(now):
                self._turn += step + 1
                return route
        return None

    def stream(
        self,
        route: Route,
        path: str,
        body: Mapping[str, object],
        headers: Mapping[str, str],
        timeout_s: float,
    ) -> AnswerStream:
        """Open one streamed request."""
        return route.client.stream(
            path,
            body,
            headers={**self._config.headers, **headers},
            headers_timeout_s=self._config.queue_timeout_s,
            stall_timeout_s=self._config.stall_timeout_s,
            total_timeout_s=timeout_s,
        )

    async def call(
        self, route: Route, path: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> StreamEnd:
        """Send one unstreamed request."""
        sent = {**self._config.headers, **headers}
        return await route.client.call(path, body, headers=sent, timeout_s=timeout_s)

    def note_end(self, route: Route, end: StreamEnd) -> None:
        """Tell the address's circuit whether anybody was there."""
        if is_nobody_there(end):
            route.circuit.on_unreachable(self._clock.now())
        else:
            route.circuit.on_answer()

    async def max_model_len(self, route: Route, model: str) -> int | None:
        """The context length of `model` as configured or as the server lists it; None when it doesn't say."""
        if self._config.max_model_len is not None:
            return self._config.max_model_len
        if model not in self._context_lengths:
            end = await route.client.call("/v1/models", headers=self._config.headers)
            if end.kind is EndKind.FINISHED:
                self._context_lengths |= _context_lengths(end.body)
        return self._context_lengths.get(model)

    @property
    def has_renderer(self) -> bool:
        """A render server is configured."""
        return self._renderer is not None

    async def render(self, endpoint: str, body: Mapping[str, object]) -> StreamEnd:
        """The render server's token ids for `body`; only where there is one."""
        assert self._renderer is not None
        asked = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
        return await self._renderer.call(f"{endpoint}/render", asked)

    async def derender(self, endpoint: str, question: Mapping[str, object]) -> StreamEnd:
        """The message that the render server makes of token ids; only where there is one."""
        assert self._renderer is not None
        return await self._renderer.call(f"{endpoint}/derender", question)

    async def fetch_prompt_ids(
        self, route: Route, endpoint: str, body: Mapping[str, object]
    ) -> tuple[int, ...] | None:
        """The prompt's token ids where the stream had none: from the render server, else `/tokenize`."""
        if self._renderer is not None:
            end = await self.render(endpoint, body)
            if end.kind is EndKind.FINISHED and (ids := _ids_of(end.body, "token_ids")):
                return ids
        question = {name: body[name] for name in _TOKENIZED_FIELDS if name in body}
        if endpoint == CHAT:
            question.setdefault("add_generation_prompt", True)
        end = await route.client.call("/tokenize", question, headers=self._config.headers)
        return _ids_of(end.body, "tokens") if end.kind is EndKind.FINISHED else None


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


def _context_lengths(raw: bytes) -> dict[str, int]:
    try:
        listed = msgspec.json.decode(raw, type=_Models)
    except msgspec.DecodeError:
        return {}
    return {model.id: model.max_model_len for model in listed.data if model.max_model_len is not None}


def _ids_of(raw: bytes, field: str) -> tuple[int, ...] | None:
    try:
        answer = msgspec.json.decode(raw)
        first = answer[0] if isinstance(answer, list) else answer
        return msgspec.convert(first[field], tuple[int, ...]) or None
    except (msgspec.ValidationError, msgspec.DecodeError, KeyError, IndexError, TypeError):
        return None
