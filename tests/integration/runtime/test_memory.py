"""No memory stays behind with a stream, however it ends."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from extproc.stack.process import ChildProcess, accepts_connections, free_ports
from tests.support import heap_probe
from tests.support.ext_proc_peer import PeerStream, connect, run_many
from tests.support.heap_probe import read_settled_heap

MAX_BYTES_PER_STREAM = 48
"""Below the smallest thing that could be lost with each stream, above what a server's warming up adds."""

_BLOCK_BYTES = 64
"""About what one of Python's small objects takes."""

pytestmark = pytest.mark.skipif(not heap_probe.is_available(), reason="needs mallinfo2 of glibc 2.33")


@asynccontextmanager
async def served(directory: Path, endpoints: list[dict[str, str]]) -> AsyncIterator[tuple[ChildProcess, int]]:
    """A server in a process of its own, under the probe, and its port."""
    (port,) = free_ports(1)
    config = {
        "server": {"host": "127.0.0.1", "port": port},
        "admin": {"enabled": False},
        "flow_control": {"no_endpoint_ttl_s": 600},
        "endpoints": {
            "discovery": [{"type": "static", "endpoints": endpoints}],
            "scrape": {"enabled": False},
        },
    }
    path = directory / "extproc.json"
    path.write_text(json.dumps(config))
    argv = heap_probe.probed(directory / "heap", "extproc", "serve", "--config", str(path))
    child = ChildProcess("extproc", argv, directory / "extproc.log")
    child.start()
    try:
        child.wait_until(lambda: accepts_connections("127.0.0.1", port), timeout_s=30)
        yield child, port
    finally:
        child.stop()


async def _whole(channel: grpc.aio.Channel) -> None:
    stream = PeerStream(channel)
    await stream.ask()
    assert await stream.answer() == "request_body"
    await stream.respond()
    await stream.finish()


async def _reset_while_answered(channel: grpc.aio.Channel) -> None:
    """As Envoy ends every stream: half-closed, and reset before our status can come."""
    stream = PeerStream(channel)
    await stream.ask()
    assert await stream.answer() == "request_body"
    await stream.respond()
    stream.reset()


async def _reset_before_an_answer(channel: grpc.aio.Channel) -> None:
    stream = PeerStream(channel)
    await stream.ask()
    stream.reset()


async def _lost(play: Any, directory: Path, endpoints: list[dict[str, str]], count: int) -> float:
    """Bytes that each stream left behind: of three stretches of `count` the least, as a loss is in each."""
    report, growths = directory / "heap", []
    async with served(directory, endpoints) as (child, port):
        channels = connect(port)
        await run_many(play, 1500, channels=channels)
        before = await asyncio.to_thread(read_settled_heap, child, report)
        for _ in range(3):
            await run_many(play, count, channels=channels)
            after = await asyncio.to_thread(read_settled_heap, child, report)
            blocks = after.python_blocks - before.python_blocks
            growths.append((after.malloc_bytes - before.malloc_bytes + _BLOCK_BYTES * blocks) / count)
            before = after
        for channel in channels:
            await channel.close()
    print("bytes per stream:", [round(growth, 2) for growth in growths])
    return min(growths)


ONE = [{"name": "a", "address": "127.0.0.1:9"}]


@pytest.mark.parametrize(
    ("play", "endpoints"),
    [
        pytest.param(_reset_while_answered, ONE, id="reset-while-answered"),
        pytest.param(_whole, ONE, id="whole", marks=pytest.mark.slow),
        pytest.param(_reset_before_an_answer, [], id="reset-in-queue", marks=pytest.mark.slow),
    ],
)
async def test_field_bug_121_a_stream_leaves_nothing_behind(
    play: Any, endpoints: list[dict[str, str]], tmp_path: Path
) -> None:
    assert await _lost(play, tmp_path, endpoints, 600) < MAX_BYTES_PER_STREAM


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_field_bug_121_200_000_reset_streams(tmp_path: Path) -> None:
    assert await _lost(_reset_while_answered, tmp_path, ONE, 66_667) < 2
