"""Streaming client for OpenAI-style servers: one request in, pieces and one definite end out.

It never retries (a retry that nobody counts falsifies every figure), never queues in a hidden pool (the pool
is as large as the caller's concurrency), and calls an answer finished only when a finish reason says so. All
stamps come from the injected clock. It knows nothing of priorities, jobs or load.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import TracebackType

import aiohttp
import msgspec

from extproc.client.answer_stream import ERROR_BODY_BYTES, AnswerStream, TimeLimits, describe, lowered
from extproc.client.answers import (
    NO_HEADERS,
    EndKind,
    StreamEnd,
    decode_error,
)
from extproc.clock import Clock
from extproc.errors import InvariantError

_KEEPALIVE_S = 3.0
"""Below uvicorn's 5 s, so that no request is sent down a connection which the server is just closing."""


class InferenceClient:
    """One server (or gateway) at `base_url`, at most `concurrency` requests at a time.

    Use it as an async context manager. Requests beyond `concurrency` would wait for a connection: the caller
    keeps to its own limit, so they never do.
    """

    def __init__(
        self, base_url: str, *, clock: Clock, concurrency: int, connect_timeout_s: float = 5.0
    ) -> None:
        self._base_url = base_url.rstrip("/")
        self._clock = clock
        self._concurrency = concurrency
        self._connect_timeout_s = connect_timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> InferenceClient:
        connector = aiohttp.TCPConnector(
            limit=self._concurrency, limit_per_host=0, keepalive_timeout=_KEEPALIVE_S, ttl_dns_cache=10
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_timeout_s),
            read_bufsize=2**18,
            trust_env=False,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def stream(
        self,
        path: str,
        body: bytes | Mapping[str, object],
        *,
        headers: Mapping[str, str] = NO_HEADERS,
        headers_timeout_s: float | None = None,
        stall_timeout_s: float | None = None,
        total_timeout_s: float | None = None,
    ) -> AnswerStream:
        """POST `body` to `path`, to be used as `async with ... as answer: async for piece in answer`.

        `headers_timeout_s` bounds the wait for response headers (a queue at the gateway; the stall timeout
        when left out), `stall_timeout_s` each wait for bytes after them;
        `total_timeout_s` bounds the whole exchange. Leaving the block early closes the connection, which
        tells the server to stop.
        """
        limits = TimeLimits(headers_timeout_s or stall_timeout_s, stall_timeout_s, total_timeout_s)
        url = self._base_url + path
        return AnswerStream(self._open_session(), self._clock, url, _encoded(body), headers, limits)

    async def call(
        self,
        path: str,
        body: bytes | Mapping[str, object] | None = None,
        *,
        headers: Mapping[str, str] = NO_HEADERS,
        timeout_s: float = 30.0,
    ) -> StreamEnd:
        """POST `body` (GET without one) and read the whole answer; never raises for a network failure."""
        session = self._open_session()
        method, data = ("GET", None) if body is None else ("POST", _encoded(body))
        sent = {"content-type": "application/json", **headers} if data is not None else headers
        status, received = 0, NO_HEADERS
        try:
            async with asyncio.timeout(timeout_s):
                async with session.request(
                    method, self._base_url + path, data=data, headers=sent
                ) as response:
                    status, received = response.status, lowered(response.headers)
                    answer = await response.read()
        except TimeoutError:
            return self._failed_call(EndKind.TIMED_OUT, f"no answer within {timeout_s:g} s", status, received)
        except (aiohttp.ClientError, OSError) as error:
            kind = EndKind.RESET if status else EndKind.UNREACHABLE
            return self._failed_call(kind, describe(error), status, received)
        is_good = 200 <= status < 300
        message, code = ("", None) if is_good else decode_error(answer[:ERROR_BODY_BYTES]) or ("", None)
        return StreamEnd(
            kind=EndKind.FINISHED if is_good else EndKind.REFUSED,
            at=self._clock.now(),
            status=status,
            headers=received,
            message=message,
            error_code=code,
            body=answer,
        )

    def _failed_call(self, kind: EndKind, message: str, status: int, headers: Mapping[str, str]) -> StreamEnd:
        return StreamEnd(kind=kind, at=self._clock.now(), status=status, headers=headers, message=message)

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise InvariantError("the inference client is used outside its `async with` block")
        return self._session


def _encoded(body: bytes | Mapping[str, object]) -> bytes:
    return body if isinstance(body, bytes) else msgspec.json.encode(body)
