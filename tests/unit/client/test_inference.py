"""The streaming client against a scripted server on loopback: what success is, and no hidden retries."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from extproc.client.answers import EndKind, Piece, StreamEnd
from extproc.client.inference import InferenceClient
from extproc.clock import SystemClock
from extproc.errors import InvariantError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
TOKEN = b'data: {"choices":[{"index":0,"text":"x","token_ids":[1]}]}\n\n'
LAST = b'data: {"choices":[{"index":0,"text":"y","token_ids":[2],"finish_reason":"stop"}]}\n\n'
ABORT = b'data: {"choices":[{"index":0,"text":"","token_ids":[],"finish_reason":"abort"}]}\n\n'
ERROR = b'data: {"error":{"message":"EngineCore encountered an issue","code":500}}\n\n'
DONE = b"data: [DONE]\n\n"


@asynccontextmanager
async def serve(handler: Handler) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def scripted(*parts: bytes, cut: bool = False, hang: bool = False) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for part in parts:
            await response.write(part)
        if hang:
            await asyncio.sleep(30)
        if cut:
            assert request.transport is not None
            request.transport.abort()
        return response

    return handler


async def fetch(url: str, **limits: float) -> tuple[list[Piece], StreamEnd]:
    async with (
        InferenceClient(url, clock=SystemClock(), concurrency=2) as client,
        client.stream("/v1/completions", {"prompt": "a"}, **limits) as answer,
    ):
        pieces = [piece async for piece in answer]
        return pieces, answer.end


@pytest.mark.parametrize(
    ("parts", "kind", "tokens"),
    [
        ((TOKEN, LAST, DONE), EndKind.FINISHED, 2),
        ((TOKEN, LAST), EndKind.FINISHED, 2),
        ((TOKEN, DONE), EndKind.TRUNCATED, 1),
        ((TOKEN,), EndKind.TRUNCATED, 1),
        ((TOKEN, ABORT, DONE), EndKind.ABORTED, 1),
        ((TOKEN, ERROR, DONE), EndKind.ERROR_EVENT, 1),
        ((TOKEN[:20], TOKEN[20:] + LAST + DONE), EndKind.FINISHED, 2),
    ],
)
async def test_only_a_finish_reason_is_success(parts: tuple[bytes, ...], kind: EndKind, tokens: int) -> None:
    async with serve(scripted(*parts)) as url:
        pieces, end = await fetch(url)
    assert end.kind is kind
    assert sum(len(piece.token_ids) for piece in pieces) == tokens


async def test_one_finished_choice_of_two_is_not_success() -> None:
    other = b'data: {"choices":[{"index":1,"text":"x","token_ids":[1]}]}\n\n'
    async with serve(scripted(other, LAST, DONE)) as url:
        assert (await fetch(url))[1].kind is EndKind.TRUNCATED


async def test_broken_connection_is_a_reset_and_keeps_the_pieces() -> None:
    async with serve(scripted(TOKEN, TOKEN, cut=True)) as url:
        pieces, end = await fetch(url)
    assert end.kind is EndKind.RESET
    assert len(pieces) == 2


async def test_silence_is_a_stall_and_total_time_is_told_apart() -> None:
    async with serve(scripted(TOKEN, hang=True)) as url:
        pieces, end = await fetch(url, stall_timeout_s=0.1)
        assert (end.kind, len(pieces)) == (EndKind.STALLED, 1)
        _, end = await fetch(url, stall_timeout_s=20.0, total_timeout_s=0.1)
        assert end.kind is EndKind.TIMED_OUT


async def test_refusal_keeps_status_reason_and_retry_after() -> None:
    async def refuse(request: web.Request) -> web.StreamResponse:
        return web.json_response(
            {"error": {"message": "full", "code": 429}},
            status=429,
            headers={"Retry-After": "3", "x-llm-d-request-dropped-reason": "rejected-saturated"},
        )

    async with serve(refuse) as url:
        pieces, end = await fetch(url)
    assert pieces == []
    assert (end.kind, end.status, end.message) == (EndKind.REFUSED, 429, "full")
    assert (end.retry_after_s, end.dropped_reason) == (3.0, "rejected-saturated")


async def test_nobody_listening_is_unreachable() -> None:
    async with serve(scripted(DONE)) as url:
        pass
    assert (await fetch(url))[1].kind is EndKind.UNREACHABLE


async def test_field_bug_151_no_hidden_retries() -> None:
    calls = 0

    async def failing(request: web.Request) -> web.StreamResponse:
        nonlocal calls
        calls += 1
        if calls % 2:
            return web.Response(status=503)
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with serve(failing) as url, InferenceClient(url, clock=SystemClock(), concurrency=1) as client:
        for expected in (EndKind.REFUSED, EndKind.UNREACHABLE):
            async with client.stream("/v1/completions", b"{}") as answer:
                assert [piece async for piece in answer] == []
                assert answer.end.kind is expected
    assert calls == 2


async def test_field_bug_149_pool_is_as_large_as_the_concurrency() -> None:
    now = most = 0
    everyone_in = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal now, most
        now += 1
        most = max(most, now)
        if now == 150:
            everyone_in.set()
        await asyncio.wait_for(everyone_in.wait(), 20)
        now -= 1
        return await scripted(LAST, DONE)(request)

    async with serve(handler) as url, InferenceClient(url, clock=SystemClock(), concurrency=150) as client:

        async def one() -> EndKind:
            async with client.stream("/v1/completions", b"{}") as answer:
                async for _ in answer:
                    pass
                return answer.end.kind

        kinds = await asyncio.gather(*[one() for _ in range(150)])
    assert most == 150
    assert set(kinds) == {EndKind.FINISHED}


async def test_leaving_early_closes_the_connection() -> None:
    gone = asyncio.Event()

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            while True:
                await response.write(TOKEN)
                await asyncio.sleep(0.005)
        except ConnectionError:
            gone.set()
            raise
        return response

    async with serve(endless) as url, InferenceClient(url, clock=SystemClock(), concurrency=1) as client:
        async with client.stream("/v1/completions", b"{}") as answer:
            async for _ in answer:
                break
            with pytest.raises(InvariantError):
                _ = answer.end
        await asyncio.wait_for(gone.wait(), 10)


async def test_whole_answers_end_by_their_status() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        if request.path == "/slow":
            await asyncio.sleep(30)
        if request.path == "/bad":
            return web.json_response({"error": {"message": "no such model", "code": 404}}, status=404)
        return web.json_response({"method": request.method, "sent": await request.text()})

    async with serve(handler) as url, InferenceClient(url, clock=SystemClock(), concurrency=1) as client:
        good = await client.call("/v1/models")
        assert (good.kind, good.body) == (EndKind.FINISHED, b'{"method": "GET", "sent": ""}')
        assert b"POST" in (await client.call("/tokenize", {"prompt": "a"})).body
        bad = await client.call("/bad", {})
        assert (bad.kind, bad.status, bad.message) == (EndKind.REFUSED, 404, "no such model")
        assert (await client.call("/slow", {}, timeout_s=0.1)).kind is EndKind.TIMED_OUT
    async with InferenceClient(url, clock=SystemClock(), concurrency=1) as client:
        assert (await client.call("/v1/models")).kind is EndKind.UNREACHABLE
