"""What clients may send, through the real Envoy: a clear status each time, and nothing left behind."""

from __future__ import annotations

import asyncio
import gzip
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from extproc.stack.envoy import ProcessingMode
from tests.support.gateway import Gateway, chat, wait_until
from tests.support.h2_client import H2Client

CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}
ONE_SLOT: dict[str, Any] = {
    "flow_control": {
        "detector": {"type": "concurrency-detector", "mode": "requests", "max_concurrency": 1},
        "max_requests": 3,
    }
}
HOLD = {"x-stub-hold": "true"}

BAD_BODIES = {
    "not json": b"{",
    "array": b"[]",
    "null": b"null",
    "string": b'"x"',
    "nan": b'{"model": NaN}',
    "trailing": b'{"model":"m"} x',
    "no model": b"{}",
    "null model": b'{"model":null}',
    "number model": b'{"model":5}',
    "empty model": b'{"model":""}',
    "stream type": b'{"model":"m","stream":"yes"}',
    "priority type": b'{"model":"m","priority":"high"}',
    "priority float": b'{"model":"m","priority":1.5}',
    "priority range": b'{"model":"m","priority":1000000}',
    "utf-8": b'{"model":"m","messages":[{"role":"user","content":"\xff\xfe"}]}',
    "deep": b'{"model":"m","prompt":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
}


async def test_bad_bodies_get_400_in_openai_shape(tmp_path: Path) -> None:
    """Field bugs 32, 46: no body may crash the server; the message names the field."""
    async with Gateway(tmp_path) as gateway, gateway.client() as client:
        for name, body in BAD_BODIES.items():
            answer = await client.post(CHAT, content=body, headers=JSON)
            assert answer.status_code == 400, name
            assert answer.headers["content-type"] == "application/json"
            error = answer.json()["error"]
            assert error["type"] == "invalid_request_error", name
            assert set(error) == {"message", "type", "param", "code"}
            if "model" in name or "priority" in name or "stream" in name:
                assert error["param"] in ("model", "priority", "stream"), name
        assert not gateway.model.seen


async def test_a_body_above_the_limit_gets_413(tmp_path: Path) -> None:
    """Field bugs 7, 8: announced or not, below or above Envoy's own buffer; never a 500."""
    config = {"requests": {"limits": {"max_body_bytes": 100_000}}}
    big, huge = (b'{"model":"m","prompt":"' + b"x" * size + b'"}' for size in (200_000, 3 << 20))

    async def unannounced() -> AsyncIterator[bytes]:
        yield big

    async with Gateway(tmp_path, config, buffer_limit_bytes=1 << 20) as gateway:
        async with gateway.client() as client:
            answer = await client.post(CHAT, content=big, headers=JSON)
            assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")
            assert (await client.post(CHAT, content=unannounced(), headers=JSON)).status_code == 413
            assert (await client.post(CHAT, content=huge, headers=JSON)).status_code == 413
        http2 = await H2Client.connect(gateway.port)
        for body, headers in ((big, JSON), (big, {**JSON, "content-length": str(len(big))}), (huge, JSON)):
            assert (await http2.send(CHAT, body, headers).wait()).status == 413
        http2.close()


async def test_envoys_own_refusal_reaches_the_client_in_duplex_responses(tmp_path: Path) -> None:
    """Its 413 passes through the response phase too; a body that we kept would leave the client waiting."""

    def duplex_responses(bootstrap: dict[str, Any]) -> None:
        manager = bootstrap["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]
        for http_filter in manager["typed_config"]["http_filters"]:
            if http_filter["name"].endswith("ext_proc"):
                http_filter["typed_config"]["processing_mode"]["response_body_mode"] = "FULL_DUPLEX_STREAMED"

    gateway = Gateway(tmp_path, buffer_limit_bytes=1 << 20)
    gateway.edit_bootstrap = duplex_responses
    async with gateway:
        client = await H2Client.connect(gateway.port)
        answer = await client.send(CHAT, b"x" * (3 << 20), JSON).wait(10)
        assert answer.status == 413
        client.close()


async def test_compressed_bodies_are_refused_or_passed(tmp_path: Path) -> None:
    body = gzip.compress(b'{"model":"m","prompt":"a"}')
    headers = {**JSON, "content-encoding": "gzip"}
    async with Gateway(tmp_path) as gateway, gateway.client() as client:
        answer = await client.post("/v1/completions", content=body, headers=headers)
        assert answer.status_code == 400
        assert "content-encoding" in answer.json()["error"]["message"]
    (tmp_path / "pass").mkdir()
    config = {"requests": {"compressed_bodies": "pass"}}
    async with Gateway(tmp_path / "pass", config) as gateway, gateway.client() as client:
        assert (await client.post("/v1/completions", content=body, headers=headers)).status_code == 200
        assert gateway.model.last.headers["content-encoding"] == "gzip"


async def test_a_client_cannot_choose_its_server_or_engine_priority(tmp_path: Path) -> None:
    """Field bug 37, also where Envoy itself strips nothing; two values of the header don't help either."""

    def strip_nothing(bootstrap: dict[str, Any]) -> None:
        manager = bootstrap["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]
        manager["typed_config"]["http_filters"].pop(0)

    with socket.socket() as trap:
        trap.bind(("127.0.0.1", 0))
        trap.listen()
        trap.setblocking(False)
        evil = f"127.0.0.1:{trap.getsockname()[1]}"
        gateway = Gateway(tmp_path)
        gateway.edit_bootstrap = strip_nothing
        async with gateway, gateway.client() as client:
            sent = [("x-gateway-destination-endpoint", evil)] * 2 + [("x-vllm-priority", "-5")]
            for path in (CHAT, "/custom"):
                answer = await client.post(path, json=chat(), headers=sent)
                assert answer.status_code == 200
                assert gateway.model.last.headers["x-gateway-destination-endpoint"] == gateway.model.address
                assert "x-vllm-priority" not in gateway.model.last.headers
            assert (await client.get("/v1/models", headers=sent)).status_code == 200
            assert "x-vllm-priority" not in gateway.model.last.headers
            with pytest.raises(BlockingIOError):
                trap.accept()


async def test_field_bug_047_an_encoded_path_hides_no_body(tmp_path: Path) -> None:
    """The engine decodes the path, so we do: else a client's `priority` would reach the engine unread."""
    async with Gateway(tmp_path) as gateway, aiohttp.ClientSession() as session:
        for path in ("/v1/chat%2Fcompletions", "/v1/%63hat/completion%73?a=%2F", "//v1/chat/completions"):
            url = URL(f"http://127.0.0.1:{gateway.port}{path}", encoded=True)
            async with session.post(url, json=chat(priority=5)) as answer:
                assert answer.status == 200
            assert b"priority" not in gateway.model.last.body


@pytest.mark.parametrize("body", [b"", b'{"model":"m","messages":[]}'])
async def test_too_many_headers_get_431_before_envoys_own_limit(body: bytes, tmp_path: Path) -> None:
    """Envoy answers 500 when what we add exceeds its limit; so the last word before it is ours."""
    async with Gateway(tmp_path) as gateway:
        for count in (60, 80, 90, 95, 100, 150, 180):
            async with aiohttp.ClientSession() as session:
                headers = {**JSON, **{f"x-h{number}": "v" for number in range(count)}}
                async with session.post(
                    f"http://127.0.0.1:{gateway.port}{CHAT}", data=body, headers=headers
                ) as answer:
                    expected = 200 if count <= 80 else 431 if count > 95 else (200, 431)
                    assert answer.status in (expected if isinstance(expected, tuple) else (expected,)), count
                    if answer.status == 431:
                        assert (await answer.json())["error"]["code"] == "too_many_headers"


async def test_http_1_0_is_served(tmp_path: Path) -> None:
    """By Envoy's default it gets 426, and that is lost: Envoy closes before the filter lets it pass."""
    body = b'{"model":"m","messages":[]}'
    async with Gateway(tmp_path) as gateway:
        for host in (b"host: x\r\n", b""):
            reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
            head = b"POST %s HTTP/1.0\r\n%scontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
            writer.write(head % (CHAT.encode(), host, len(body)) + body)
            answer = await asyncio.wait_for(reader.read(), 10)
            assert answer.split(b"\r\n")[0].split()[1] == b"200", answer
            writer.close()


async def test_a_client_that_leaves_is_forgotten(tmp_path: Path) -> None:
    """While queued, before the answer's headers, and in mid-stream (field bugs 70, 89, 116)."""
    async with Gateway(tmp_path, ONE_SLOT) as gateway:
        statistics = gateway.app.driver.statistics
        for http2 in (False, True):
            first = await _start(gateway, http2, {**HOLD, "x-stub-tokens": "3"})
            await wait_until(lambda: gateway.model.active == 1)
            queued = [await _start(gateway, http2, {}) for _ in range(3)]
            await wait_until(lambda: statistics().queued_requests == 3)
            queued[1].cancel()
            await wait_until(lambda: statistics().queued_requests == 2)
            seen, running = len(gateway.model.seen), gateway.model.last
            first.cancel()
            await wait_until(lambda running=running: running.was_aborted)
            for task in (queued[0], queued[2]):
                assert await task == 200
            assert len(gateway.model.seen) == seen + 2, "the one who left was never dispatched"
            waiting = await _start(gateway, http2, HOLD)
            await wait_until(lambda: gateway.model.active == 1)
            waiting.cancel()
            await wait_until(lambda: gateway.model.active == 0)
            await gateway.assert_empty()


async def _start(gateway: Gateway, http2: bool, headers: dict[str, str]) -> asyncio.Task[int]:
    """A request on a connection of its own; cancelling the task closes it."""

    async def run() -> int:
        async with gateway.client(http2=http2) as client:
            return (await client.post(CHAT, json=chat(), headers=headers)).status_code

    return asyncio.create_task(run())


async def test_limits_and_times_give_their_own_answers(tmp_path: Path) -> None:
    """429 saturated, 429 expired, 504 deadline, with Retry-After where it makes sense."""
    async with Gateway(tmp_path, ONE_SLOT) as gateway:
        client = await H2Client.connect(gateway.port)
        running = client.send(CHAT, chat(), HOLD)
        await wait_until(lambda: gateway.model.active == 1)
        waiting = client.send(CHAT, chat(), {"x-request-ttl-ms": "300"})
        deadline_ms = int((gateway.app.clock.wall_time() + 0.2) * 1000)
        late = client.send(CHAT, chat(), {"x-request-deadline-ms": str(deadline_ms)})
        third = client.send(CHAT, chat())
        await wait_until(lambda: gateway.app.driver.statistics().queued_requests == 3)
        refused = await client.send(CHAT, chat()).wait()
        found = [(refused, 429, "rejected-saturated")]
        found.append((await waiting.wait(), 429, "rejected-ttl-expired"))
        found.append((await late.wait(), 504, "rejected-deadline"))
        for answer, status, reason in found:
            assert (answer.status, answer.headers["x-llm-d-request-dropped-reason"]) == (status, reason)
            assert ("retry-after" in answer.headers) == (status != 504)
            assert answer.json()["error"]["code"] == reason.replace("-", "_")
        gateway.model.release()
        assert [(await each.wait()).status for each in (running, third)] == [200, 200]
        client.close()


async def test_no_endpoints_is_503(tmp_path: Path) -> None:
    """Field bug 91; also for a request that needs no queue."""
    config = {"endpoints": {"discovery": []}, "flow_control": {"no_endpoint_ttl_s": 0.2}}
    async with Gateway(tmp_path, config) as gateway, gateway.client() as client:
        for answer in (await client.post(CHAT, json=chat()), await client.get("/v1/models")):
            assert answer.status_code == 503
            assert answer.headers["x-llm-d-request-dropped-reason"] == "rejected-no-endpoints"
            assert answer.headers["retry-after"]


async def test_two_streams_with_one_request_id_are_two_requests(tmp_path: Path) -> None:
    """Field bug 73."""
    async with Gateway(tmp_path) as gateway:
        client = await H2Client.connect(gateway.port)
        same = {"x-request-id": "abc", "x-stub-tokens": "20", "x-stub-gap-ms": "5"}
        first, second = (client.send(CHAT, chat(stream=True), same) for _ in range(2))
        await first.started.wait()
        assert gateway.app.driver.statistics().inflight_requests == 2
        client.reset(first)
        assert (await second.wait()).body.count(b"data: ") == 22
        client.close()


async def test_a_body_that_ends_with_trailers_is_decided_once(tmp_path: Path) -> None:
    """Field bug 10: no body message carries the end flag."""
    async with Gateway(tmp_path) as gateway:
        client = await H2Client.connect(gateway.port)
        answer = await client.send(CHAT, chat(), trailers=[("x-checksum", "1")]).wait()
        assert answer.status == 200
        assert len(gateway.model.seen) == 1
        client.close()


async def test_a_post_with_an_upgrade_header_ends(tmp_path: Path) -> None:
    """Field bug 13: h2c offers of some clients are queued as usual; a WebSocket offer is no way around it."""
    async with Gateway(tmp_path) as gateway, gateway.client() as client:
        h2c = {"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c", "http2-settings": "AAMAAABk"}
        assert (await client.post(CHAT, json=chat(), headers=h2c)).status_code == 200
        assert any(band.outcomes for band in gateway.app.driver.statistics().bands), "it was booked"
        for path in (CHAT, "/tokenize", "/custom"):
            websocket = {"connection": "Upgrade", "upgrade": "websocket"}
            assert (await client.post(path, json=chat(), headers=websocket)).status_code == 400
        assert len(gateway.model.seen) == 1


async def test_field_bug_026_without_the_processor_nothing_passes(tmp_path: Path) -> None:
    """Fail closed: a clear error at once, no request around flow control."""
    async with Gateway(tmp_path) as gateway, gateway.client() as client:
        assert (await client.post(CHAT, json=chat())).status_code == 200
        await gateway.assert_empty()
        await gateway.app.stop()
        for answer in (await client.post(CHAT, json=chat()), await client.get("/v1/models")):
            assert answer.status_code >= 500
        assert len(gateway.model.seen) == 1


@pytest.mark.parametrize("clears", [True, False])
async def test_field_bug_038_the_route_is_chosen_again_when_asked_for(clears: bool, tmp_path: Path) -> None:
    def route_by_our_header(bootstrap: dict[str, Any]) -> None:
        manager = bootstrap["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]
        host = manager["typed_config"]["route_config"]["virtual_hosts"][0]
        chosen = {"name": "x-gateway-destination-endpoint", "present_match": True}
        with_header = {**host["routes"][0], "match": {"prefix": "/", "headers": [chosen]}}
        elsewhere = {"match": {"prefix": "/"}, "route": {"cluster": "extproc"}}
        host["routes"] = [with_header, elsewhere]

    gateway = Gateway(tmp_path, {"requests": {"clear_route_cache": clears}})
    gateway.edit_bootstrap = route_by_our_header
    async with gateway, gateway.client() as client:
        answer = await client.post(CHAT, json=chat())
        assert (answer.status_code == 200) == clears
        assert len(gateway.model.seen) == (1 if clears else 0)


@pytest.mark.parametrize(
    "mode", [mode for mode in ProcessingMode if mode is not ProcessingMode.OBSERVABILITY]
)
async def test_websockets_pass(mode: ProcessingMode, tmp_path: Path) -> None:
    async with (
        Gateway(tmp_path, mode=mode) as gateway,
        aiohttp.ClientSession() as session,
        session.ws_connect(f"{gateway.url}/v1/realtime", timeout=aiohttp.ClientWSTimeout(ws_close=5)) as ws,
    ):
        await ws.send_str("hello")
        assert (await ws.receive_str(timeout=5)) == "echo hello"
        assert gateway.app.driver.statistics().inflight_requests == 0


@pytest.mark.parametrize("has_own_route", [True, False])
async def test_websockets_where_envoy_heeds_no_override(has_own_route: bool, tmp_path: Path) -> None:
    """A buffered request with a full-duplex response: the route must tell Envoy, see docs/requests.md."""

    def mix_modes(bootstrap: dict[str, Any]) -> None:
        manager = bootstrap["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0][
            "typed_config"
        ]
        (processor,) = [each for each in manager["http_filters"] if "ext_proc" in each["name"]]
        mixed = {"request_body_mode": "BUFFERED", "response_body_mode": "FULL_DUPLEX_STREAMED"}
        processor["typed_config"]["processing_mode"].update(mixed, response_trailer_mode="SEND")
        host = manager["route_config"]["virtual_hosts"][0]
        if has_own_route:
            host["routes"].insert(0, _upgrade_route(host["routes"][0], processor["name"]))

    gateway = Gateway(tmp_path)
    gateway.edit_bootstrap = mix_modes
    async with gateway, gateway.client() as client, aiohttp.ClientSession() as session:
        assert (await client.post(CHAT, json=chat())).status_code == 200
        handshake = session.ws_connect(f"{gateway.url}/v1/realtime")
        if not has_own_route:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(handshake, 1)
            return
        async with handshake as ws:
            await ws.send_str("hello")
            assert (await ws.receive_str(timeout=5)) == "echo hello"


def _upgrade_route(usual: dict[str, Any], filter_name: str) -> dict[str, Any]:
    """The usual route for WebSockets alone, with no bodies for the processor."""
    websocket = {"name": "upgrade", "string_match": {"exact": "websocket", "ignore_case": True}}
    modes = {"request_body_mode": "NONE", "response_body_mode": "NONE", "response_trailer_mode": "SKIP"}
    per_route = {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute",
        "overrides": {"processing_mode": modes},
    }
    return {
        **usual,
        "match": {"prefix": "/", "headers": [websocket]},
        "typed_per_filter_config": {filter_name: per_route},
    }
