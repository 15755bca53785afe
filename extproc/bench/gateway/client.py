"""A closed-loop HTTP/1.1 client that costs little: N connections, each sends its next request at once.

It looks for the end of the chunked answer and at the status, nothing else.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import cast

from extproc.clock import SystemClock

_PROMPT = "Write about the sea, the wind and the ships that are gone. " * 8


@dataclass(slots=True)
class Leg:
    """What one measured stretch gave. `latencies_s` are of whole answers, `failures` of any other status."""

    requests: int = 0
    failures: int = 0
    duration_s: float = 0.0
    latencies_s: list[float] = field(default_factory=list)

    def quantile_s(self, share: float) -> float:
        """By nearest rank; 0 when there is none."""
        ordered = sorted(self.latencies_s)
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0


def build_request(tokens: int) -> bytes:
    """A streamed chat request of about 600 bytes."""
    body = json.dumps(
        {
            "model": "bench",
            "messages": [{"role": "user", "content": _PROMPT}],
            "stream": True,
            "max_tokens": tokens,
        }
    ).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\nuser-agent: extproc-bench\r\naccept: */*\r\n"
        f"content-type: application/json\r\nx-tokens: {tokens}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


class _Connection(asyncio.Protocol):
    """Sends until told to stop; `done` is set when its last answer is in. With `every_s` it keeps a pace."""

    def __init__(
        self, request: bytes, leg: Leg, budget: list[int], stop_at: float, every_s: float = 0.0
    ) -> None:
        self._request = request
        self._leg = leg
        self._budget = budget
        self._stop_at = stop_at
        self._every_s = every_s
        self._now = SystemClock().now  # the loop's own clock counts whole milliseconds
        self._transport: asyncio.Transport | None = None
        self._sent_at = 0.0
        self._head = b""
        self._tail = b""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._send()

    def data_received(self, data: bytes) -> None:
        if not self._head:
            self._head = data[:12]
        self._tail = (self._tail + data)[-7:]
        if self._tail.endswith(b"\r\n0\r\n\r\n") or not self._head.startswith(b"HTTP/1.1 200"):
            self._finish(self._head.startswith(b"HTTP/1.1 200"))

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self._leg.failures += 1
            self.done.set_result(None)

    def _finish(self, is_good: bool) -> None:
        now = self._now()
        if is_good:
            self._leg.requests += 1
            self._leg.latencies_s.append(now - self._sent_at)
            if now < self._stop_at and self._budget[0] > 0:
                pause_s = self._every_s - (now - self._sent_at)
                if pause_s > 0:
                    asyncio.get_running_loop().call_later(pause_s, self._send)
                else:
                    self._send()
                return
        else:
            self._leg.failures += 1
        assert self._transport is not None
        if not self.done.done():
            self.done.set_result(None)
        self._transport.close()

    def _send(self) -> None:
        assert self._transport is not None
        if self._transport.is_closing():
            return
        self._budget[0] -= 1
        self._head = self._tail = b""
        self._sent_at = self._now()
        self._transport.write(self._request)


async def run_leg(
    port: int,
    tokens: int,
    concurrency: int,
    seconds: float,
    *,
    limit: int = 1 << 60,
    rate_per_s: float | None = None,
) -> Leg:
    """Keep `concurrency` requests open for `seconds`, or until `limit` were sent; or send `rate_per_s`."""
    loop = asyncio.get_running_loop()
    request, leg, budget = build_request(tokens), Leg(), [limit]
    every_s = concurrency / rate_per_s if rate_per_s else 0.0
    now = SystemClock().now
    started = now()
    pairs = [
        await loop.create_connection(
            lambda: _Connection(request, leg, budget, started + seconds, every_s), "127.0.0.1", port
        )
        for _ in range(concurrency)
    ]
    await asyncio.gather(*(connection.done for _, connection in pairs))
    leg.duration_s = now() - started
    return leg
