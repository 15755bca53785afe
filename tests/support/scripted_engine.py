"""A completions server whose answers a test decides, request by request."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web

Reply = Callable[[int, web.Request], Awaitable[web.StreamResponse]]


class ScriptedEngine:
    """`reply(n, request)` answers the n-th POST (from 1); `most_at_once` is the largest number in work."""

    def __init__(self, reply: Reply) -> None:
        self._reply = reply
        self.calls = 0
        self.at_once = 0
        self.most_at_once = 0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        app = web.Application()
        app.router.add_post("/{path:.*}", self._handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.calls += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            return await self._reply(self.calls, request)
        finally:
            self.at_once -= 1


async def one_token(request: web.Request) -> web.StreamResponse:
    """A finished answer of one token."""
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    choice = '{"index":0,"text":"x","prompt_token_ids":[1],"token_ids":[2],"finish_reason":"length"}'
    await response.write(b'data: {"choices":[' + choice.encode() + b"]}\n\ndata: [DONE]\n\n")
    return response


def refusal(status: int, reason: str | None = None, retry_after: str | None = None) -> web.Response:
    """An error answer as the gateway gives it."""
    headers = {"x-llm-d-request-dropped-reason": reason, "retry-after": retry_after}
    given = {name: value for name, value in headers.items() if value is not None}
    return web.json_response({"error": {"message": "no", "code": status}}, status=status, headers=given)
