"""A large prompt costs about one look at its bytes, so that a burst of them doesn't hold others up."""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from extproc.stack.process import ChildProcess, accepts_connections, free_ports
from tests.integration.runtime.test_memory import ONE, served
from tests.support.ext_proc_peer import PeerStream, connect, request_body, run_many

PROMPTS, PROMPT_BYTES = 100, 220_000
LARGE = request_body(prompt="lorem ipsum " * (PROMPT_BYTES // 12), stream=True)
SMALL = request_body(prompt="lorem ipsum", stream=True)


def _cpu_s(pid: int) -> float:
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def _decoding_s(body: bytes) -> float:
    """Processor time of the standard library's decoder for one such body: the least of some tries."""
    text = body[body.index(b"{") : body.rindex(b"}") + 1]
    times = []
    for _ in range(10):
        started = time.process_time()
        json.loads(text)
        times.append(time.process_time() - started)
    return min(times)


async def _extra_s(child: ChildProcess, channels: list[grpc.aio.Channel]) -> float:
    """Processor time that a large prompt costs the server beyond a small one."""

    async def cost_s(body: bytes) -> float:
        async def play(channel: grpc.aio.Channel) -> None:
            stream = PeerStream(channel)
            await stream.ask(body=body)
            assert await stream.answer() == "request_body"
            await stream.respond()
            await stream.finish()

        before = _cpu_s(child.pid)
        await run_many(play, PROMPTS, channels=channels, concurrency=PROMPTS)
        return (_cpu_s(child.pid) - before) / PROMPTS

    small_s = await cost_s(SMALL)
    return await cost_s(LARGE) - small_s


@contextmanager
def _noop_server(directory: Path) -> Iterator[tuple[ChildProcess, int]]:
    (port,) = free_ports(1)
    argv = [sys.executable, "-m", "extproc.bench.gateway.noop", str(port), "127.0.0.1:9"]
    child = ChildProcess("noop", argv, directory / "noop.log")
    child.start()
    try:
        child.wait_until(lambda: accepts_connections("127.0.0.1", port), timeout_s=30)
        yield child, port
    finally:
        child.stop()


@pytest.mark.slow
async def test_field_bug_056_a_hundred_prompts_of_220_kb_at_once(tmp_path: Path) -> None:
    async with served(tmp_path, ONE) as ours:
        with _noop_server(tmp_path) as noop:
            pairs = [(child, connect(port, connections=4)) for child, port in (ours, noop)]
            rounds = [[await _extra_s(*pair) for pair in pairs] for _ in range(6)]
            for _, channels in pairs:
                for channel in channels:
                    await channel.close()
    ours_s, noop_s = (statistics.median(costs) for costs in zip(*rounds[1:], strict=True))
    decoding_s = await asyncio.to_thread(_decoding_s, LARGE)
    us = [round(1e6 * seconds) for seconds in (ours_s, noop_s, decoding_s)]
    print("more than a small prompt: {} us, a server that does nothing: {} us, json.loads: {} us".format(*us))
    assert ours_s < noop_s + 6 * decoding_s, "read more than once, or turned into objects"
