"""The emulator's HTTP server: vLLM's routes over one engine loop, and the admin route for faults."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from extproc.clock import Clock
from extproc.errors import ConfigError
from extproc.sim.emulator import request as bodies
from extproc.sim.emulator.faults import FaultPlan, parse_fault
from extproc.sim.emulator.generation import ENGINE_DIED, GenerationRun, Host
from extproc.sim.emulator.loop import EngineLoop
from extproc.sim.emulator.metrics import EmulatorMetrics
from extproc.sim.emulator.request import ApiError, Generation, ServedModel
from extproc.sim.emulator.token_routes import (
    DerenderBody,
    DetokenizeBody,
    TokenizeBody,
    derendered,
    detokenize,
    rendered,
    tokenize,
)

_MAX_BODY_BYTES = 64 << 20
_VERSION = "0.30.0"
"""The vLLM whose behaviour is emulated."""
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class EmulatorApp:
    """Builds the aiohttp application; `rng` feeds response ids, unseeded sampling and fault draws.

    `front_end_s` (real seconds) passes before the engine sees a request: a real API server's parsing,
    template and tokenizer, which made-up tokens do not need.
    """

    def __init__(
        self,
        loop: EngineLoop,
        served: ServedModel,
        clock: Clock,
        rng: random.Random,
        faults: FaultPlan,
        front_end_s: float = 0.0,
    ) -> None:
        self._front_end_s = front_end_s
        self._loop = loop
        self._served = served
        self._clock = clock
        self._faults = faults
        self._started_at = clock.now()
        self._page = ""
        self.metrics = EmulatorMetrics(served.name, loop, clock.wall_time())
        self._host = Host(loop, clock, rng, self.metrics, faults)
        faults.begin(clock.now())
        self._apply_faults()

    def build(self) -> web.Application:
        app = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=[_errors])
        app.add_routes(
            [
                web.post("/v1/completions", self._completions),
                web.post("/v1/chat/completions", self._chat),
                web.post("/v1/completions/render", self._render_completion),
                web.post("/v1/chat/completions/render", self._render_chat),
                web.post("/v1/chat/completions/derender", self._derender_chat),
                web.post("/tokenize", self._tokenize),
                web.post("/detokenize", self._detokenize),
                web.get("/v1/models", self._models),
                web.get("/version", self._version),
                web.get("/load", self._load),
                web.get("/health", self._health),
                web.get("/ping", self._health),
                web.get("/metrics", self._metrics_page),
                web.get("/emulator/faults", self._list_faults),
                web.post("/emulator/faults", self._add_faults),
                web.delete("/emulator/faults", self._remove_faults),
            ]
        )
        return app

    # -- generation ---------------------------------------------------------------------------------------

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, await self._completion_of(request))

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generate(request, await self._chat_of(request))

    async def _completion_of(self, request: web.Request) -> Generation:
        body = bodies.parse_json(await _json_bytes(request), bodies.CompletionBody)
        return bodies.completion(body, self._served)

    async def _chat_of(self, request: web.Request) -> Generation:
        body = bodies.parse_json(await _json_bytes(request), bodies.ChatBody)
        return bodies.chat(body, self._served)

    async def _generate(self, http: web.Request, generation: Generation) -> web.StreamResponse:
        now = self._clock.now()
        if self._loop.is_dead:
            raise ApiError(500, ENGINE_DIED, kind="InternalServerError")
        if self._is_starting(now):
            raise ApiError(503, "the server is starting", kind="ServiceUnavailable")
        error = self._faults.draw("error", now, self._host.rng)
        if error is not None:
            raise ApiError(int(error["status"]), "injected by a fault", kind="InternalServerError")
        late = self._faults.get("slow-headers", now)
        begins_at = now + self._front_end_s + (0.0 if late is None else late["seconds"])
        if begins_at > now:
            await self._clock.sleep_until(begins_at)
        priority = _header_priority(http)
        if priority is not None:
            generation = dataclasses.replace(generation, priority=priority)
        run = GenerationRun(self._host, http, generation)
        if generation.is_streaming:
            return await run.stream()
        return await run.collect()

    # -- tokens -------------------------------------------------------------------------------------------

    async def _render_completion(self, request: web.Request) -> web.Response:
        generation = await self._completion_of(request)
        return _json_response(rendered(generation, self._host.new_id(request, generation)))

    async def _render_chat(self, request: web.Request) -> web.Response:
        generation = await self._chat_of(request)
        return _json_response(rendered(generation, self._host.new_id(request, generation))[0])

    async def _derender_chat(self, request: web.Request) -> web.Response:
        body = bodies.parse_json(await _json_bytes(request), DerenderBody)
        return _json_response(derendered(body, self._served, int(self._clock.wall_time())))

    async def _tokenize(self, request: web.Request) -> web.Response:
        body = bodies.parse_json(await _json_bytes(request), TokenizeBody)
        return _json_response(tokenize(body, self._served))

    async def _detokenize(self, request: web.Request) -> web.Response:
        body = bodies.parse_json(await _json_bytes(request), DetokenizeBody)
        return _json_response(detokenize(body, self._served))

    # -- state --------------------------------------------------------------------------------------------

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

    async def _version(self, request: web.Request) -> web.Response:
        return _json_response({"version": _VERSION})

    async def _load(self, request: web.Request) -> web.Response:
        return _json_response({"server_load": self._loop.model.running + self._loop.model.waiting})

    async def _health(self, request: web.Request) -> web.Response:
        is_up = not self._loop.is_dead and not self._is_starting(self._clock.now())
        return web.Response(status=200 if is_up else 503)

    async def _metrics_page(self, request: web.Request) -> web.Response:
        now = self._clock.now()
        if self._faults.get("no-metrics", now) is not None:
            return web.Response(status=500)
        if not self._page or self._faults.get("stale-metrics", now) is None:
            self._page = self.metrics.exposition()
        return web.Response(text=self._page, content_type="text/plain")

    # -- faults -------------------------------------------------------------------------------------------

    async def _list_faults(self, request: web.Request) -> web.Response:
        active = self._faults.active(self._clock.now())
        return _json_response([dataclasses.asdict(fault) for fault in active])

    async def _add_faults(self, request: web.Request) -> web.Response:
        """Body: one fault as the command line takes it, such as `reset:after=5,for=10`."""
        text = (await request.text()).strip().strip('"')
        try:
            self._faults.add(parse_fault(text), self._clock.now())
        except ConfigError as error:
            raise ApiError(400, str(error)) from error
        self._apply_faults()
        return await self._list_faults(request)

    async def _remove_faults(self, request: web.Request) -> web.Response:
        """Query `kind`: only that one."""
        self._faults.remove(request.query.get("kind"))
        self._apply_faults()
        return await self._list_faults(request)

    def _apply_faults(self) -> None:
        """Tell the engine loop of the faults that concern it."""
        now = self._clock.now()
        if self._faults.get("death", now) is not None:
            self._loop.kill(ENGINE_DIED)
        stall = self._faults.get("stall", now)
        if stall is not None:
            self._loop.stall(stall["seconds"])
            self._faults.remove("stall")
        self._loop.slowdown = self._slowdown

    def _slowdown(self) -> float:
        slow = self._faults.get("slow", self._clock.now())
        return 1.0 if slow is None else slow["factor"]

    def _is_starting(self, now: float) -> bool:
        slow = self._faults.get("slow-start", now)
        return slow is not None and now < self._started_at + slow["seconds"]


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
        message = "Unsupported Media Type: Only 'application/json' is allowed"
        raise ApiError(400, message, kind="Bad Request")
    return await request.read()


def _header_priority(request: web.Request) -> int | None:
    """The header that overrides the body's priority."""
    given = request.headers.get("X-Vllm-Priority")
    if given is None:
        return None
    try:
        return int(given)
    except ValueError as error:
        raise ApiError(400, f"X-Vllm-Priority must be an integer, got {given!r}") from error


def _json_response(value: object, status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(value), content_type="application/json")
