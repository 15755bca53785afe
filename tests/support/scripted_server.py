"""An HTTP server whose answers are written out by the test: chunks, pauses, resets and statuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web


@dataclass(frozen=True)
class Script:
    """What to answer: `parts` are bytes to write, or seconds to wait; `resets` breaks the connection
    after.
    """

    parts: Sequence[bytes | float | asyncio.Event] = ()
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    resets: bool = False


def event(**fields: object) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def token(*ids: int, text: str = "x", finish: str | None = None) -> bytes:
    """A completions chunk with token ids."""
    return event(choices=[{"index": 0, "text": text, "token_ids": list(ids), "finish_reason": finish}])


DONE = b"data: [DONE]\n\n"


@dataclass
class ScriptedServer:
    """Answers request number n by `answer(n, body)`; remembers bodies and headers in order of arrival."""

    answer: Callable[[int, dict[str, object]], Script]
    url: str = ""
    bodies: list[dict[str, object]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    open: int = 0
    most_open: int = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        number = len(self.bodies)
        self.bodies.append(body)
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            return await self._play(request, self.answer(number, body))
        finally:
            self.open -= 1

    async def _play(self, request: web.Request, script: Script) -> web.StreamResponse:
        response = web.StreamResponse(status=script.status, headers=script.headers)
        await response.prepare(request)
        for part in script.parts:
            if isinstance(part, bytes):
                await response.write(part)
            elif isinstance(part, asyncio.Event):
                await part.wait()
            else:
                await asyncio.sleep(part)
        if script.resets:
            assert request.transport is not None
            request.transport.abort()
            return response
        await response.write_eof()
        return response


@asynccontextmanager
async def scripted_server(
    answer: Callable[[int, dict[str, object]], Script],
) -> AsyncIterator[ScriptedServer]:
    """The server on a free port of the loopback."""
    server = ScriptedServer(answer)
    app = web.Application()
    app.router.add_post("/v1/completions", server.handle)
    app.router.add_post("/v1/chat/completions", server.handle)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    server.url = f"http://127.0.0.1:{port}"
    try:
        yield server
    finally:
        await runner.cleanup()
