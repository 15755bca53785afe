"""An admin source whose answers a test sets, and waiting for a condition that others bring about."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

from extproc.clock import SystemClock
from extproc.errors import ConfigError
from extproc.runtime.admin import JsonObject
from extproc.runtime.live import LiveFeed


class FakeAdminSource:
    """An admin source whose answers the test sets."""

    def __init__(self, take: Callable[[], JsonObject] | None = None) -> None:
        self.not_ready: list[str] = []
        self.reload_error: ConfigError | None = None
        self.reloads = 0
        self.feed = LiveFeed(take or (lambda: {"seq": self.reloads}), SystemClock())

    def not_ready_reasons(self) -> list[str]:
        return self.not_ready

    def not_live_reasons(self) -> list[str]:
        return []

    def expose_metrics(self) -> bytes:
        return b"extproc_up 1\n"

    def config_in_force(self) -> JsonObject:
        return {"mode": "enforce"}

    def debug_state(self) -> JsonObject:
        return {"bands": []}

    def explain(self, request: JsonObject) -> JsonObject:
        return {"asked": dict(request)}

    def history(self) -> list[JsonObject]:
        return self.feed.history()

    def snapshots(self) -> AsyncIterator[JsonObject]:
        return self.feed.snapshots()

    async def reload(self) -> JsonObject:
        if self.reload_error is not None:
            raise self.reload_error
        self.reloads += 1
        return {"result": "applied"}


async def until(
    condition: Callable[[], bool], *, each: Callable[[], None] = lambda: None, timeout_s: float = 10.0
) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            each()
            await asyncio.sleep(0.005)
