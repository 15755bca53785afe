"""512 streams of 50 tokens a second from one emulator: the processor time of a token must allow it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import wait_for

STREAMS, TOKENS, RATE_PER_S = 512, 150, 50.0
HARDWARE = """
description: one step every 20 ms, whatever runs
gpu: none
model: none
engine:
  max_num_seqs: 512
  max_num_batched_tokens: 8192
  max_model_len: 4096
  kv_blocks: 200001
  cost: {base_s: 0.02, prefill_token_s: 0.0, sequence_s: 0.0, context_token_s: 0.0}
provenance: {base_s: chosen, prefill_token_s: chosen, sequence_s: chosen, context_token_s: chosen}
"""
BODY = json.dumps(
    {"prompt": "hello", "max_tokens": TOKENS, "ignore_eos": True, "stream": True, "return_token_ids": True}
).encode()
REQUEST = (
    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
    b"content-length: %d\r\n\r\n%b" % (len(BODY), BODY)
)


class Stream(asyncio.Protocol):
    """Sends the request and counts events until the connection ends."""

    def __init__(self, ended: asyncio.Future[int]) -> None:
        self._ended = ended
        self._events = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(REQUEST)

    def data_received(self, data: bytes) -> None:
        self._events += data.count(b"data: ")

    def connection_lost(self, error: Exception | None) -> None:
        self._ended.set_result(self._events)


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def load(port: int) -> int:
    loop = asyncio.get_running_loop()
    streams: list[asyncio.Future[int]] = []
    for _ in range(STREAMS):
        ended: asyncio.Future[int] = loop.create_future()
        streams.append(ended)
        await loop.create_connection(lambda ended=ended: Stream(ended), "127.0.0.1", port)  # type: ignore[misc]
    return sum(await asyncio.gather(*streams))


@pytest.mark.scale
def test_a_core_is_enough_for_512_streams_of_50_tokens_a_second(tmp_path: Path) -> None:
    hardware = tmp_path / "hardware.yaml"
    hardware.write_text(HARDWARE)
    log = tmp_path / "log"
    command = [sys.executable, "-m", "extproc", "emulate", "--port", "0", "--hardware", str(hardware)]
    with (
        log.open("w") as output,
        subprocess.Popen(command, stdout=output, cwd=Path(__file__).parents[2]) as server,
    ):
        try:
            wait_for(lambda: "listening" in log.read_text())
            port = int(log.read_text().rsplit(":", 1)[1])
            began_at = processor_seconds(server.pid)
            events = asyncio.run(load(port))
            spent_s = processor_seconds(server.pid) - began_at
        finally:
            server.terminate()
    assert events == STREAMS * (TOKENS + 1)
    share = spent_s / (events / RATE_PER_S / STREAMS)
    assert share < 1.0, f"{share:.2f} of a core"
