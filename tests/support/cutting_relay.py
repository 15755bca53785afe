"""A TCP relay that breaks connections after a random number of bytes: evictions without a gateway."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator

from extproc.tasks import TaskKeeper


class CuttingRelay:
    """Relays to 127.0.0.1:`port`; a connection breaks after `bytes_between_cuts` relayed bytes on average.

    None switches cutting off; `cuts` counts broken connections.
    """

    def __init__(self, port: int, rng: random.Random, bytes_between_cuts: float | None) -> None:
        self._target = port
        self._rng = rng
        self.bytes_between_cuts = bytes_between_cuts
        self.cuts = 0
        self.port = 0
        self._server: asyncio.Server | None = None
        self._tasks = TaskKeeper(lambda name, error: None)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        try:
            yield f"http://127.0.0.1:{self.port}"
        finally:
            self._server.close()
            await self._tasks.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.spawn(self._relay(reader, writer), name="relay")

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream: asyncio.StreamWriter | None = None
        try:
            upstream_reader, upstream = await asyncio.open_connection("127.0.0.1", self._target)
            up = self._tasks.spawn(_copy(reader, upstream), name="up")
            await self._copy_down(upstream_reader, writer)
            up.cancel()
        except OSError:
            pass  # either side has gone
        finally:
            for one in filter(None, (upstream, writer)):
                one.close()
                with contextlib.suppress(OSError):
                    await one.wait_closed()

    async def _copy_down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        mean = self.bytes_between_cuts
        left = None if mean is None else int(self._rng.expovariate(1.0 / mean)) + 1
        while data := await reader.read(65536):
            if left is not None and len(data) >= left:
                # What is written goes out; then the connection ends, for the client in the middle of the
                # body.
                writer.write(data[:left])
                await writer.drain()
                self.cuts += 1
                return
            left = None if left is None else left - len(data)
            writer.write(data)
            await writer.drain()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
