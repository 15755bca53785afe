"""10,000 requests held, dispatched, half of them cut at once: nobody else notices, nothing is kept."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest

from extproc.stack.ledger import read_ledger, read_metrics, wait_for_empty_ledger
from extproc.stack.local import LocalStack
from tests.support.h2_client import H2Answer, H2Client
from tests.support.waiting import eventually

pytestmark = [pytest.mark.scale, pytest.mark.timeout(300)]

REQUESTS = 10_000
PER_CONNECTION = 500
MODELS = 10
"""So many, since a listener takes no burst of 10,000 connections."""
MAX_KIB_PER_REQUEST = 32
BODY = json.dumps({"model": "m", "prompt": "held"}).encode()
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


class _HeldModel(asyncio.Protocol):
    """Answers nothing until all are released."""

    waiting: set[asyncio.Transport]
    aborted: int

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._received = b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        if BODY in self._received:
            self._received = b""
            type(self).waiting.add(self._transport)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport in type(self).waiting:
            type(self).waiting.discard(self._transport)
            type(self).aborted += 1


def _rss_kib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024


async def test_ten_thousand_held_requests(open_files: None, tmp_path: Path) -> None:
    model = type("Model", (_HeldModel,), {"waiting": set(), "aborted": 0})
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(model, "127.0.0.1", 0, backlog=4096) for _ in range(MODELS)]
    addresses = [f"127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in servers]
    pool = tmp_path / "endpoints.json"
    pool.write_text('{"endpoints": []}')
    config = {
        "flow_control": {
            "detector": {"type": "concurrency-detector", "max_concurrency": 2 * REQUESTS},
            "default_band": {"max_requests": 2 * REQUESTS},
            "no_endpoint_ttl_s": 600,
        },
        "endpoints": {
            "discovery": [{"type": "file", "path": str(pool), "poll_interval_s": 0.1}],
            "scrape": {"enabled": False},
        },
    }
    stack = LocalStack(config, emulators=(), endpoints=addresses, directory=tmp_path)
    try:
        await asyncio.to_thread(stack.start)
        pid = stack.child("extproc").pid
        clients = [await H2Client.connect(stack.envoy_port) for _ in range(REQUESTS // PER_CONNECTION)]
        base_kib = _rss_kib(pid)
        for wave in range(2):
            answers = await _hold(stack, clients)
            held_kib = (_rss_kib(pid) - base_kib) / REQUESTS
            print(f"wave {wave}: {held_kib:.1f} KiB per held request")
            assert held_kib <= MAX_KIB_PER_REQUEST, f"{held_kib:.1f} KiB per held request"

            entries = [{"name": f"m-{address}-{wave}", "address": address} for address in addresses]
            pool.write_text(json.dumps({"endpoints": entries}))
            await eventually(lambda: len(model.waiting) == REQUESTS, timeout_s=90, poll_s=0.05)
            failed = [answer.status for answer in answers if answer.ended.is_set()]
            assert not failed, f"{len(failed)} ended early: {sorted(set(failed))}"

            half = REQUESTS // 2
            for client, start in zip(clients, range(0, REQUESTS, PER_CONNECTION), strict=True):
                for answer in answers[start : start + PER_CONNECTION // 2]:
                    client.reset(answer)
            await eventually(
                lambda expected=(wave + 1) * half: model.aborted == expected, timeout_s=90, poll_s=0.05
            )
            assert len(model.waiting) == half, "the others go on"
            for transport in list(model.waiting):
                model.waiting.discard(transport)
                transport.write(ANSWER)
            for start in range(0, REQUESTS, PER_CONNECTION):
                for answer in answers[start + PER_CONNECTION // 2 : start + PER_CONNECTION]:
                    await answer.wait(60)
                    assert (answer.status, answer.was_reset) == (200, False)
            ledger = await asyncio.to_thread(wait_for_empty_ledger, stack.admin_url, timeout_s=30.0)
            assert ledger.is_zero
            pool.write_text('{"endpoints": []}')
            while (await asyncio.to_thread(read_metrics, stack.admin_url))["extproc_endpoints"]:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
            if wave == 0:
                base_kib = max(base_kib, _rss_kib(pid) - MAX_KIB_PER_REQUEST * REQUESTS)
                after_first_kib = _rss_kib(pid)
        growth_kib = _rss_kib(pid) - after_first_kib
        assert growth_kib < 0.1 * MAX_KIB_PER_REQUEST * REQUESTS, (
            "the second wave used what the first gave back"
        )
        for client in clients:
            client.close()
    finally:
        await asyncio.to_thread(stack.stop)
        for server in servers:
            server.close()


async def _hold(stack: LocalStack, clients: list[H2Client]) -> list[H2Answer]:
    """Send all requests and wait until each is queued."""
    answers = []
    for client in clients:
        headers = {"content-type": "application/json"}
        answers += [client.send("/v1/completions", BODY, headers) for _ in range(PER_CONNECTION)]
        await asyncio.sleep(0)
    for _ in range(600):
        ledger = await asyncio.to_thread(read_ledger, stack.admin_url)
        if ledger.queued == REQUESTS:
            break
        await asyncio.sleep(0.1)
    assert ledger.queued == REQUESTS
    return answers
