"""Evictions as clients and model servers see them, through the real Envoy, over both HTTP versions."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx

from tests.support.gateway import Gateway, chat, wait_until
from tests.support.h2_client import H2Answer, H2Client

SLOTS = 4
CONFIG: dict[str, Any] = {
    "flow_control": {
        "detector": {"type": "concurrency-detector", "mode": "requests", "max_concurrency": SLOTS},
        "eviction": {"enabled": True},
    },
    "requests": {"observation": {"fraction": 0.0, "all_below_per_s": 0}},
}
CHAT = "/v1/chat/completions"
HOLD = {"x-stub-hold": "true"}


async def _fill(gateway: Gateway, client: H2Client, **headers: str) -> list[H2Answer]:
    """Occupy every slot with batch work that stays until `model.release()`."""
    answers = [client.send(CHAT, chat(priority=-1), {**HOLD, **headers}) for _ in range(SLOTS)]
    await wait_until(lambda: gateway.model.active == SLOTS)
    return answers


def _check_refusal(status: int, headers: Any, error: Any) -> None:
    assert status == 429
    assert headers["x-llm-d-request-dropped-reason"] == "evicted"
    assert 1 <= int(headers["retry-after"]) <= 60
    assert headers["content-type"] == "application/json"
    assert error["error"]["code"] == "evicted"


async def test_before_response_headers_an_http2_client_gets_a_429(tmp_path: Path) -> None:
    async with Gateway(tmp_path, CONFIG) as gateway:
        client = await H2Client.connect(gateway.port)
        batch = await _fill(gateway, client)
        answer = await client.send(CHAT, chat(priority=10)).wait()
        assert answer.status == 200
        victim = await batch[-1].wait()
        _check_refusal(victim.status, victim.headers, victim.json())
        await wait_until(lambda: gateway.model.seen[SLOTS - 1].was_aborted)
        assert not any(seen.was_aborted for seen in gateway.model.seen[: SLOTS - 1]), "the newest alone"
        gateway.model.release()
        assert [(await each.wait()).status for each in batch] == [200] * (SLOTS - 1) + [429]
        client.close()


async def test_before_response_headers_an_http1_client_gets_a_429(tmp_path: Path) -> None:
    async with Gateway(tmp_path, CONFIG) as gateway, gateway.client() as client:
        batch = [
            asyncio.create_task(client.post(CHAT, json=chat(priority=-1), headers=HOLD)) for _ in range(SLOTS)
        ]
        await wait_until(lambda: gateway.model.active == SLOTS)
        assert (await client.post(CHAT, json=chat(priority=10))).status_code == 200
        done, _ = await asyncio.wait(batch, return_when=asyncio.FIRST_COMPLETED)
        victim = done.pop().result()
        _check_refusal(victim.status_code, victim.headers, victim.json())
        await wait_until(lambda: sum(seen.was_aborted for seen in gateway.model.seen) == 1)
        gateway.model.release()
        answers = await asyncio.gather(*batch)
        assert sorted(answer.status_code for answer in answers) == [200] * (SLOTS - 1) + [429]


async def test_after_response_headers_an_http2_client_sees_a_reset_at_once(tmp_path: Path) -> None:
    async with Gateway(tmp_path, CONFIG) as gateway:
        client = await H2Client.connect(gateway.port)
        batch = await _fill(gateway, client, **{"x-stub-tokens": "3"})
        for answer in batch:
            await answer.started.wait()
        sent_at = time.monotonic()
        assert (await client.send(CHAT, chat(priority=10)).wait()).status == 200
        victim = await batch[-1].wait()
        assert victim.was_reset
        assert victim.status == 200
        assert victim.ended_at - sent_at < 0.1, "the promised 100 ms"
        await wait_until(lambda: gateway.model.seen[SLOTS - 1].was_aborted)
        gateway.model.release()
        assert [(await each.wait()).was_reset for each in batch] == [False] * (SLOTS - 1) + [True]
        client.close()


async def test_after_response_headers_an_http1_client_sees_a_reset_at_once(tmp_path: Path) -> None:
    """Envoy's default `delayed_close_timeout` alone would make it a second."""
    async with Gateway(tmp_path, CONFIG) as gateway, gateway.client() as client:
        broken_at: list[float] = []
        headers = {**HOLD, "x-stub-tokens": "3"}

        async def stream() -> None:
            try:
                async with client.stream("POST", CHAT, json=chat(priority=-1), headers=headers) as answer:
                    assert answer.status_code == 200
                    async for _ in answer.aiter_bytes():
                        pass
            except httpx.RemoteProtocolError:
                broken_at.append(time.monotonic())

        streams = [asyncio.create_task(stream()) for _ in range(SLOTS)]
        await wait_until(lambda: gateway.model.active == SLOTS)
        sent_at = time.monotonic()
        assert (await client.post(CHAT, json=chat(priority=10))).status_code == 200
        await wait_until(lambda: broken_at)
        assert broken_at[0] - sent_at < 0.1, "the promised 100 ms"
        await wait_until(lambda: sum(seen.was_aborted for seen in gateway.model.seen) == 1)
        gateway.model.release()
        await asyncio.gather(*streams)
        assert len(broken_at) == 1


async def test_the_freed_slot_goes_to_the_request_it_was_freed_for(tmp_path: Path) -> None:
    """Batch requests wait in the queue; the place of the victim is the interactive request's."""
    async with Gateway(tmp_path, CONFIG) as gateway:
        client = await H2Client.connect(gateway.port)
        batch = await _fill(gateway, client)
        batch += [client.send(CHAT, chat("waiting", priority=-1), HOLD) for _ in range(2 * SLOTS)]
        await wait_until(lambda: gateway.app.driver.statistics().queued_requests == 2 * SLOTS)
        assert (await client.send(CHAT, chat("interactive", priority=10)).wait()).status == 200
        assert b"interactive" in gateway.model.seen[SLOTS].body, "the first to come after the eviction"
        gateway.model.release()
        statuses = [(await answer.wait()).status for answer in batch]
        assert sorted(statuses) == [200] * (3 * SLOTS - 1) + [429]
        client.close()


async def test_two_hundred_evictions_leave_nothing_behind(tmp_path: Path) -> None:
    """Each round the pool is full of batch, and interactive requests take all of it (field bugs 70, 112)."""
    async with Gateway(tmp_path, CONFIG) as gateway:
        client = await H2Client.connect(gateway.port)
        lasting_tasks = len(gateway.app.keeper)
        evictions = rounds = 0
        while evictions < 200:
            rounds += 1
            gateway.model.hold()
            batch = await _fill(gateway, client)
            urgent = [client.send(CHAT, chat(priority=10)) for _ in range(SLOTS)]
            assert [(await answer.wait()).status for answer in urgent] == [200] * SLOTS
            gateway.model.release()
            evictions += [(await answer.wait()).status for answer in batch].count(429)
            await gateway.assert_empty()
            assert rounds < 400, "hardly anything is evicted"
        statistics = gateway.app.driver.statistics()
        assert (statistics.revocations_timed_out, statistics.revocations_confirmed) == (0, evictions)
        await wait_until(lambda: gateway.model.active == 0)
        await wait_until(lambda: len(gateway.app.keeper) == lasting_tasks)
        client.close()


async def test_a_request_that_has_ended_is_never_evicted(tmp_path: Path) -> None:
    """Batch requests end while interactive ones arrive: an answer is whole, reset or refused, never
    cut short.
    """
    async with Gateway(tmp_path, CONFIG) as gateway:
        client = await H2Client.connect(gateway.port)
        headers = {"x-stub-tokens": "2", "x-stub-gap-ms": "1"}
        for _ in range(20):
            answers = [
                client.send(CHAT, chat(priority=-1 if index % 3 else 10, stream=True), headers)
                for index in range(12)
            ]
            for answer in answers:
                await answer.wait()
                if answer.status == 200 and not answer.was_reset:
                    assert answer.body.endswith(b"data: [DONE]\n\n")
                else:
                    assert answer.was_reset or answer.status == 429
        client.close()
