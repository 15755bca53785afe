"""Runs a discovery source and waits for the lists that it publishes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from extproc.config.endpoints import EndpointEntry
from extproc.runtime.discovery.source import Source


class Published:
    """Every list that was published, and a way to wait for the next that fits."""

    def __init__(self) -> None:
        self.lists: list[Sequence[EndpointEntry]] = []
        self._changed = asyncio.Event()

    def __call__(self, entries: Sequence[EndpointEntry]) -> None:
        self.lists.append(entries)
        self._changed.set()

    @property
    def addresses(self) -> set[str]:
        return {entry.address for entry in self.lists[-1]} if self.lists else set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(15):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def shows(self, *addresses: str) -> None:
        await self.until(lambda: self.addresses == set(addresses) and bool(self.lists))


async def wait_for(condition: Callable[[], bool]) -> None:
    """For what nobody signals: looks every few milliseconds, for a bounded time."""
    async with asyncio.timeout(15):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


@asynccontextmanager
async def running(source: Source) -> AsyncIterator[Published]:
    published = Published()
    task = asyncio.get_running_loop().create_task(source.run(published))
    try:
        yield published
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
