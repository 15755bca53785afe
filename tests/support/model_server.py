"""A scripted model server for tests through Envoy: answers what the request's headers ask for, records all.

x-stub-tokens: N     stream N tokens (default: one JSON answer of 3 tokens)
x-stub-gap-ms: N     pause between them
x-stub-status: N     answer with that status
x-stub-hold: true    send nothing until `release()`; or, when streaming, nothing after the first token
x-stub-empty: true   200 with an empty chunked body
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field

from aiohttp import web


@dataclass
class Seen:
    """One request as it arrived, and what became of it."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes = b""
    is_finished: bool = False
    was_aborted: bool = False


@dataclass
class ModelServer:
    """Start it, send requests to `address`, look at `seen`."""

    seen: list[Seen] = field(default_factory=list)
    active: int = 0
    peak: int = 0
    port: int = 0
    _released: asyncio.Event = field(default_factory=asyncio.Event)
    _runner: web.AppRunner | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def last(self) -> Seen:
        return self.seen[-1]

    async def start(self) -> None:
        """On a free port, or again on the one it had."""
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.2)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, backlog=4096)
        await site.start()
        self.port = int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        self.release()
        if self._runner is not None:
            await self._runner.cleanup()

    def release(self) -> None:
        """Let held answers go."""
        self._released.set()

    def hold(self) -> None:
        """Hold from now on (again)."""
        self._released = asyncio.Event()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        seen = Seen(request.method, request.path_qs, {k.lower(): v for k, v in request.headers.items()})
        self.seen.append(seen)
        self.active += 1
        self.peak = max(self.peak, self.active)
        try:
            if seen.headers.get("upgrade", "").lower() == "websocket":
                return await self._websocket(request)
            seen.body = await request.read()
            response = await self._respond(request, seen)
            seen.is_finished = True
            return response
        except (asyncio.CancelledError, ConnectionError):
            seen.was_aborted = True
            raise
        finally:
            self.active -= 1

    async def _respond(self, request: web.Request, seen: Seen) -> web.StreamResponse:
        headers = seen.headers
        is_held = headers.get("x-stub-hold") == "true"
        if "x-stub-tokens" in headers:
            return await self._stream(request, int(headers["x-stub-tokens"]), is_held)
        if is_held:
            await self._released.wait()
        status = int(headers.get("x-stub-status", "200"))
        if headers.get("x-stub-empty") == "true":
            response = web.StreamResponse(status=status)
            response.enable_chunked_encoding()
            await response.prepare(request)
            await response.write_eof()
            return response
        usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
        model = _model(seen.body)
        return web.json_response(
            {"model": model, "choices": [{"text": "abc"}], "usage": usage}, status=status
        )

    async def _stream(self, request: web.Request, tokens: int, is_held: bool) -> web.StreamResponse:
        gap_s = int(request.headers.get("x-stub-gap-ms", "0")) / 1000
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        model = _model(self.last.body)
        for index in range(tokens):
            choice = {"index": 0, "delta": {"content": "x"}, "finish_reason": None}
            if index == tokens - 1:
                choice["finish_reason"] = "length"
            event = {"model": model, "choices": [choice]}
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            if is_held and index == 0:
                await self._released.wait()
            if gap_s:
                await asyncio.sleep(gap_s)
        usage = {"prompt_tokens": 7, "completion_tokens": tokens}
        await response.write(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def _websocket(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            await socket.send_str(f"echo {message.data}")
        return socket


def _model(body: bytes) -> object:
    try:
        return json.loads(body)["model"]
    except (ValueError, TypeError, KeyError):
        return None
