"""The emulator's HTTP server: vLLM's routes over one engine loop."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from extproc.clock import Clock
from extproc.sim.emulator import request as bodies
from extproc.sim.emulator.answer import Answer, TokenContent
from extproc.sim.emulator.chunks import DONE, StreamShape, usage_chunk, whole_body
from extproc.sim.emulator.loop import EngineLoop
from extproc.sim.emulator.metrics import EmulatorMetrics
from extproc.sim.emulator.request import ApiError, Generation, ServedModel
from extproc.sim.emulator.sink import AnswerSink, Connection
from extproc.sim.sequence import Sequence

_ENGINE_DIED = "EngineCore encountered an issue. See stack trace (above) for the root cause."
_MAX_BODY_BYTES = 64 << 20
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class EmulatorApp:
    """Builds the aiohttp application; `rng` feeds response ids and unseeded sampling."""

    def __init__(self, loop: EngineLoop, served: ServedModel, clock: Clock, rng: random.Random) -> None:
        self._loop = loop
        self._served = served
        self._clock = clock
        self._rng = rng
        self._sequence_ids = itertools.count(1)
        self.metrics = EmulatorMetrics(served.name, loop)

    def build(self) -> web.Application:
        app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[_errors])
        app.add_routes(
            [
                web.post("/v1/completions", self._completions),
                web.post("/v1/chat/completions", self._chat),
                web.get("/v1/models", self._models),
                web.get("/health", self._health),
                web.get("/ping", self._health),
                web.get("/metrics", self._metrics_page),
            ]
        )
        return app

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        body = bodies.parse_json(await _json_bytes(request), bodies.CompletionBody)
        return await self._generate(request, bodies.completion(body, self._served))

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = bodies.parse_json(await _json_bytes(request), bodies.ChatBody)
        return await self._generate(request, bodies.chat(body, self._served))

    async def _models(self, request: web.Request) -> web.Response:
        card = {
            "id": self._served.name,
            "object": "model",
            "created": int(self._clock.wall_time()),
            "owned_by": "vllm",
            "root": self._served.name,
            "parent": None,
            "max_model_len": self._served.max_model_len,
            "permission": [],
        }
        return _json_response({"object": "list", "data": [card]})

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=503 if self._loop.is_dead else 200)

    async def _metrics_page(self, request: web.Request) -> web.Response:
        return web.Response(text=self.metrics.exposition(), content_type="text/plain")

    async def _generate(self, http: web.Request, generation: Generation) -> web.StreamResponse:
        if self._loop.is_dead:
            raise ApiError(500, _ENGINE_DIED, kind="InternalServerError")
        run = _Run(self, http, generation)
        if generation.is_streaming:
            return await run.stream()
        return await run.collect()

    def start(
        self,
        http: web.Request,
        generation: Generation,
        shape_of: Callable[[Answer], StreamShape] | None,
        connection: Connection | None,
        on_complete: Callable[[], None],
    ) -> list[tuple[Sequence, AnswerSink]]:
        """Hand every choice to the engine; the choices of one request start together."""
        priority = _header_priority(http, generation.priority)
        started = []
        for prompt_index, prompt in enumerate(generation.prompts):
            for choice in range(generation.n):
                index = prompt_index * generation.n + choice
                limit = generation.max_tokens[prompt_index]
                answer = Answer(generation, prompt, limit, index, self._salt(generation, choice))
                sink = AnswerSink(
                    answer,
                    shape=shape_of(answer) if shape_of else None,
                    connection=connection,
                    metrics=self.metrics,
                    clock=self._clock,
                    on_complete=on_complete,
                )
                sequence = Sequence(
                    next(self._sequence_ids),
                    prompt_tokens=len(prompt),
                    output_limit=limit,
                    content=TokenContent(answer.all_ids, generation.cache_salt),
                    priority=priority,
                )
                self.metrics.prompt_tokens += len(prompt)
                self._loop.submit(sequence, sink)
                started.append((sequence, sink))
        return started

    def abort(self, started: list[tuple[Sequence, AnswerSink]]) -> None:
        for sequence, sink in started:
            self.metrics.cached_tokens += sequence.cached_tokens
            if sink.ending is None:
                self._loop.abort(sequence)

    def new_id(self, http: web.Request, generation: Generation) -> str:
        given = http.headers.get("X-Request-Id")
        prefix = "chatcmpl-" if generation.kind == "chat" else "cmpl-"
        return prefix + (given or f"{self._rng.getrandbits(128):032x}")

    def created(self) -> int:
        return int(self._clock.wall_time())

    def _salt(self, generation: Generation, choice: int) -> int:
        if generation.temperature == 0:
            return 0
        if generation.seed is not None:
            return generation.seed + choice + 1
        return self._rng.getrandbits(62)


class _Run:
    """One request from its first byte to its last."""

    def __init__(self, app: EmulatorApp, http: web.Request, generation: Generation) -> None:
        self._app = app
        self._http = http
        self._generation = generation
        self._id = app.new_id(http, generation)
        self._created = app.created()
        self._open = len(generation.prompts) * generation.n
        self._complete = asyncio.Event()

    def _on_complete(self) -> None:
        self._open -= 1
        if self._open == 0:
            self._complete.set()

    async def collect(self) -> web.Response:
        started = self._app.start(self._http, self._generation, None, None, self._on_complete)
        try:
            await self._complete.wait()
        finally:
            self._app.abort(started)
        sinks = [sink for _, sink in started]
        failure = next((sink.failure for sink in sinks if sink.failure), None)
        if failure:
            raise ApiError(500, failure, kind="InternalServerError")
        answers = [sink.answer for sink in sinks]
        endings = [sink.ending for sink in sinks if sink.ending is not None]
        body = whole_body(self._generation, answers, endings, [None] * len(sinks), self._id, self._created)
        return web.Response(body=body, content_type="application/json")

    async def stream(self) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        is_chunked = self._http.version >= (1, 1)
        if is_chunked:
            response.enable_chunked_encoding()
        await response.prepare(self._http)
        transport = self._http.transport
        if transport is None:  # the client has left already
            return response
        connection = Connection(transport, is_chunked=is_chunked)
        started = self._app.start(self._http, self._generation, self._shape_of, connection, self._on_complete)
        try:
            await self._complete.wait()
        finally:
            self._app.abort(started)
        if not any(sink.failure for _, sink in started):
            if self._generation.includes_usage:
                answers = [sink.answer for _, sink in started]
                connection.write(usage_chunk(self._generation, answers, self._id, self._created))
            connection.write(DONE)
        await response.write_eof()
        return response

    def _shape_of(self, answer: Answer) -> StreamShape:
        return StreamShape(self._generation, answer, self._id, self._created)


@web.middleware
async def _errors(request: web.Request, handler: _Handler) -> web.StreamResponse:
    """Refusals in vLLM's error object; unknown routes in its other shape."""
    try:
        return await handler(request)
    except ApiError as error:
        return web.Response(status=error.status, body=error.body(), content_type="application/json")
    except web.HTTPNotFound:
        return _json_response({"detail": "Not Found"}, status=404)
    except web.HTTPMethodNotAllowed:
        return _json_response({"detail": "Method Not Allowed"}, status=405)


async def _json_bytes(request: web.Request) -> bytes:
    if request.content_type != "application/json":
        raise ApiError(
            400, "Unsupported Media Type: Only 'application/json' is allowed", kind="Bad Request", param=None
        )
    return await request.read()


def _header_priority(request: web.Request, default: int) -> int:
    given = request.headers.get("X-Vllm-Priority")
    if given is None:
        return default
    try:
        return int(given)
    except ValueError as error:
        raise ApiError(400, f"X-Vllm-Priority must be an integer, got {given!r}") from error


def _json_response(value: object, status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(value), content_type="application/json")
