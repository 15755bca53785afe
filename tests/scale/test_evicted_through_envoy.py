"""5,000 of 10,000 running requests evicted by one decision, through the real Envoy, and the others go on.

Half of them have had no answer yet (they get a 429 that says why), half are in the middle of a stream (it is
reset). `test_at_once.py` has the server's own share of the time, without a proxy and clients on its cores.
"""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections import Counter
from pathlib import Path

import pytest

from extproc.stack.ledger import read_ledger, read_metrics, wait_for_empty_ledger
from extproc.stack.local import LocalStack
from tests.support.h2_client import H2Answer, H2Client
from tests.support.waiting import eventually

pytestmark = [pytest.mark.scale, pytest.mark.timeout(300)]

REQUESTS, WAVE, BLOCK = 10_000, 500, 16
HALF = REQUESTS // 2
SILENT = {"model": "m", "prompt": [7], "max_tokens": BLOCK // 2, "priority": -1}
"""One KV block each, so that they fill the endpoint."""
STREAMED = {**SILENT, "stream": True}
URGENT = {**SILENT, "max_tokens": BLOCK * HALF - BLOCK // 2, "priority": 5}
"""As much as half of them hold: one decision revokes 5,000."""
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
FIRST = b"6\r\ndata: \r\n"
LAST = b"0\r\n\r\n"
WHOLE = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"


class Engine(asyncio.Protocol):
    """Answers streams with their head and first bytes, others with nothing, until they are released."""

    running: dict[asyncio.Transport, bool]
    """Whether it has begun to answer."""
    aborted: int

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._received = b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._received.endswith(b"}"):
            is_stream = b'"stream": true' in self._received
            self._received = b""
            type(self).running[self._transport] = is_stream
            if is_stream:
                self._transport.write(HEAD + FIRST)

    def connection_lost(self, exc: Exception | None) -> None:
        if type(self).running.pop(self._transport, None) is not None:
            type(self).aborted += 1

    @classmethod
    def release(cls) -> None:
        for transport, is_stream in cls.running.items():
            transport.write(LAST if is_stream else WHOLE)
        cls.running.clear()


def cpu_s(stack: LocalStack, name: str) -> float:
    threads = Path(f"/proc/{stack.child(name).pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def confirmed_within(stack: LocalStack) -> dict[str, float]:
    """Revocations by how long their streams took to end, by the server's clock."""
    prefix = "extproc_revocation_confirmation_seconds_bucket"
    with urllib.request.urlopen(f"{stack.admin_url}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    rows = [line.removeprefix(prefix).rsplit(" ", 1) for line in lines if line.startswith(prefix)]
    return {labels.split('"')[1]: float(value) for labels, value in rows}


async def all_confirmed(stack: LocalStack) -> dict[str, float]:
    """`confirmed_within`, once every eviction is: the server hears of the ends after the clients."""
    async with asyncio.timeout(30):
        while (within := await asyncio.to_thread(confirmed_within, stack))["+Inf"] != HALF:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    return within


def envoy_stats(stack: LocalStack, pattern: str) -> dict[str, int]:
    url = f"{stack.envoy_admin_url}/stats?format=json&filter={pattern}"
    with urllib.request.urlopen(url, timeout=10) as answer:
        return {row["name"]: row["value"] for row in json.load(answer)["stats"] if "name" in row}


async def test_half_of_ten_thousand_are_evicted_and_none_is_lost(open_files: None, tmp_path: Path) -> None:
    engine = type("Engine", (Engine,), {"running": {}, "aborted": 0})
    server = await asyncio.get_running_loop().create_server(engine, "127.0.0.1", 0, backlog=4096)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    detector = {"type": "capacity-detector", "max_num_seqs": 2 * REQUESTS, "kv_tokens": BLOCK * REQUESTS}
    config = {
        "flow_control": {"detector": detector, "eviction": {"enabled": True}, "pacing": {"enabled": False}},
        "endpoints": {"scrape": {"enabled": False}},
    }
    stack = LocalStack(config, emulators=(), endpoints=[address], directory=tmp_path)
    try:
        await asyncio.to_thread(stack.start)
        clients = [await H2Client.connect(stack.envoy_port) for _ in range(REQUESTS // WAVE)]
        answers = await run_all(clients, engine)
        before = {name: cpu_s(stack, name) for name in ("extproc", "envoy")}
        urgent = clients[0].send("/v1/completions", URGENT)
        evicted = answers[HALF:]
        await eventually(lambda: all(answer.ended.is_set() for answer in evicted), timeout_s=60, poll_s=0.02)
        spent = {name: round(cpu_s(stack, name) - start, 2) for name, start in before.items()}
        await eventually(lambda: engine.aborted == HALF, timeout_s=60, poll_s=0.02)
        await eventually(lambda: len(engine.running) == HALF + 1, timeout_s=60, poll_s=0.02)
        check_answers(answers, urgent)
        within = await all_confirmed(stack)
        took_s = max(answer.ended_at for answer in evicted) - min(answer.ended_at for answer in evicted)
        print(
            f"{within['1.0']:.0f} of {HALF} streams had ended 1 s after the decision; the clients saw all of "
            f"them end within {took_s:.2f} s; processor time {spent}"
        )
        engine.release()
        for answer in (*answers[:HALF], urgent):
            await answer.wait(60)
            assert (answer.status, answer.was_reset) == (200, False)
        ledger = await asyncio.to_thread(wait_for_empty_ledger, stack.admin_url, timeout_s=30.0)
        assert ledger.is_zero, ledger
        await check_books(stack)
        for client in clients:
            client.close()
    finally:
        await asyncio.to_thread(stack.stop)
        server.close()


async def run_all(clients: list[H2Client], engine: type[Engine]) -> list[H2Answer]:
    """One wave per connection, each running before the next is sent: a listener takes no larger burst."""
    answers: list[H2Answer] = []
    for client in clients:
        answers += [
            client.send("/v1/completions", STREAMED if number % 2 else SILENT) for number in range(WAVE)
        ]
        sent = len(answers)
        await eventually(lambda sent=sent: len(engine.running) == sent, timeout_s=60, poll_s=0.02)
    await eventually(
        lambda: all(answer.started.is_set() for answer in answers[1::2]), timeout_s=60, poll_s=0.02
    )
    return answers


def check_answers(answers: list[H2Answer], urgent: H2Answer) -> None:
    """The newest half was ended, each in its way; nothing else was."""
    assert not any(answer.ended.is_set() for answer in (*answers[:HALF], urgent))
    silent, streamed = answers[HALF::2], answers[HALF + 1 :: 2]
    assert {(answer.status, answer.was_reset) for answer in silent} == {(429, False)}
    assert {answer.headers["x-llm-d-request-dropped-reason"] for answer in silent} == {"evicted"}
    assert {(answer.status, answer.was_reset) for answer in streamed} == {(200, True)}
    assert {answer.body for answer in streamed} == {b"data: "}


async def check_books(stack: LocalStack) -> None:
    """Every request is in exactly one count, and no connection to extproc was lost."""
    series = await asyncio.to_thread(read_metrics, stack.admin_url)
    assert series["extproc_revocations_issued_total"] == HALF
    assert series["extproc_requests_finished_total"] == REQUESTS + 1
    ended = Counter(await asyncio.to_thread(envoy_stats, stack, "http.ingress.downstream_rq_[245]xx"))
    assert ended["http.ingress.downstream_rq_4xx"] == HALF // 2
    assert ended["http.ingress.downstream_rq_5xx"] == 0
    broken = await asyncio.to_thread(
        envoy_stats,
        stack,
        "cluster.extproc.(upstream_cx_destroy_with_active_rq|http2.*flood|upstream_rq_rx_reset)$",
    )
    assert sum(broken.values()) == 0, broken
    assert (await asyncio.to_thread(read_ledger, stack.admin_url)).streams == 0
