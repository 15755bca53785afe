"""The gRPC server from its start to its end: health, TLS with reload, keepalive, limits, drain."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from extproc.config.loader import load_text
from extproc.config.schema import Config
from extproc.runtime.app import Application
from extproc.wire import ext_proc_pb2 as pb
from extproc.wire.codec import SERVICE
from tests.support.gateway import wait_until
from tests.support.raw_peer import RawPeers, Stage

METHOD = f"/{SERVICE}/Process"
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@asynccontextmanager
async def running(**sections: Any) -> AsyncIterator[Application]:
    """An application on a free port with one endpoint that nobody connects to."""
    server = {"host": "127.0.0.1", "port": 0, "drain_delay_s": 0.0, **sections.pop("server", {})}
    config = {
        "server": server,
        "admin": {"enabled": False},
        "endpoints": {
            "discovery": [{"type": "static", "endpoints": [{"name": "a", "address": "127.0.0.1:9"}]}],
            "scrape": {"enabled": False},
        },
        **sections,
    }
    app = Application(load_text(json.dumps(config), Config, source="test"))
    await app.start()
    try:
        yield app
    finally:
        await app.stop()


class Call:
    """One ext_proc stream, driven by hand as Envoy would."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._call = channel.stream_stream(
            METHOD,
            request_serializer=pb.ProcessingRequest.SerializeToString,
            response_deserializer=pb.ProcessingResponse.FromString,
        )()

    async def headers(self, path: str = "/v1/completions") -> pb.ProcessingResponse:
        message = pb.ProcessingRequest()
        message.protocol_config.request_body_mode = pb.ProcessingMode.BUFFERED
        for name, value in {":path": path, ":method": "POST"}.items():
            message.request_headers.headers.headers.add(key=name, raw_value=value.encode())
        await self._call.write(message)
        return await self.read()

    async def send_body(self, **fields: Any) -> None:
        body = json.dumps({"model": "m", "prompt": "a", **fields}).encode()
        await self._call.write(pb.ProcessingRequest(request_body=pb.HttpBody(body=body, end_of_stream=True)))

    async def open(self, **fields: Any) -> pb.ProcessingResponse:
        await self.headers()
        await self.send_body(**fields)
        return await self.read()

    async def read(self) -> pb.ProcessingResponse:
        async with asyncio.timeout(10):
            answer = await self._call.read()
        assert isinstance(answer, pb.ProcessingResponse), answer
        return answer

    async def finish(self) -> grpc.StatusCode:
        await self._call.done_writing()
        async with asyncio.timeout(10):
            return await self._call.code()

    def cancel(self) -> None:
        self._call.cancel()


def _channel(app: Application, credentials: grpc.ChannelCredentials | None = None) -> grpc.aio.Channel:
    target = f"localhost:{app.port}"
    if credentials is None:
        return grpc.aio.insecure_channel(target, options=[("grpc.use_local_subchannel_pool", 1)])
    return grpc.aio.secure_channel(target, credentials, options=[("grpc.use_local_subchannel_pool", 1)])


async def test_health_names_and_watch() -> None:
    async with running() as app, _channel(app) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", "liveness", "readiness", SERVICE):
            assert (await health.Check(health_pb2.HealthCheckRequest(service=name))).status == SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health.Check(health_pb2.HealthCheckRequest(service="other"))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        watch = health.Watch(health_pb2.HealthCheckRequest(service="readiness"))
        assert (await watch.read()).status == SERVING
        app.health.set_ready(False)
        assert (await watch.read()).status == NOT_SERVING
        assert (await health.Check(health_pb2.HealthCheckRequest(service="liveness"))).status == SERVING
        watch.cancel()


def _make_certificates(directory: Path, name: str) -> None:
    """A CA with a server and a client certificate, by the openssl command."""

    def run(*argv: str) -> None:
        subprocess.run(["openssl", *argv], cwd=directory, check=True, capture_output=True)

    run("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
        "-keyout", f"{name}-ca.key", "-out", f"{name}-ca.crt", "-subj", f"/CN={name}-ca")  # fmt: skip
    (directory / "san.cnf").write_text("subjectAltName=DNS:localhost")
    for role in ("server", "client"):
        run("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
            "-keyout", f"{name}-{role}.key", "-out", "request.csr", "-subj", f"/CN={role}")  # fmt: skip
        run("x509", "-req", "-in", "request.csr", "-CA", f"{name}-ca.crt", "-CAkey", f"{name}-ca.key",
            "-CAcreateserial", "-days", "2", "-extfile", "san.cnf", "-out", f"{name}-{role}.crt")  # fmt: skip


async def _works(app: Application, ca: bytes, pair: tuple[bytes, bytes] | None = None) -> bool:
    credentials = grpc.ssl_channel_credentials(ca, *(pair or ()))
    async with _channel(app, credentials) as channel:
        call = Call(channel)
        try:
            async with asyncio.timeout(5):
                answer = await call.open()
        except (grpc.aio.AioRpcError, AssertionError, TimeoutError):
            return False
        assert answer.request_body.response.header_mutation.set_headers
        return await call.finish() is grpc.StatusCode.OK


async def test_tls_is_read_again_and_mutual_tls_asks_for_a_client(tmp_path: Path) -> None:
    """Field bug 43 too: h2 must be offered by ALPN, else no gRPC client would connect."""
    for name in ("one", "two"):
        _make_certificates(tmp_path, name)
    cert, key = tmp_path / "tls.crt", tmp_path / "tls.key"

    def use(name: str) -> bytes:
        cert.write_bytes((tmp_path / f"{name}-server.crt").read_bytes())
        key.write_bytes((tmp_path / f"{name}-server.key").read_bytes())
        return (tmp_path / f"{name}-ca.crt").read_bytes()

    tls: dict[str, Any] = {"cert_file": str(cert), "key_file": str(key), "reload_interval_s": 1e-6}
    first = use("one")
    async with running(server={"tls": tls}) as app:
        alpn = await asyncio.to_thread(
            subprocess.run,
            ["openssl", "s_client", "-connect", f"127.0.0.1:{app.port}", "-alpn", "h2"],
            input=b"",
            capture_output=True,
        )
        assert b"ALPN protocol: h2" in alpn.stdout
        assert await _works(app, first)
        second = use("two")
        assert await _works(app, second)
        assert not await _works(app, first)
        cert.unlink()
        assert await _works(app, second), "unreadable files leave the present certificate in use"

    first = use("one")
    client = ((tmp_path / "one-client.key").read_bytes(), (tmp_path / "one-client.crt").read_bytes())
    async with running(server={"tls": {**tls, "client_ca_file": str(tmp_path / "one-ca.crt")}}) as app:
        assert await _works(app, first, client)
        assert not await _works(app, first)


@pytest.mark.slow
async def test_field_bug_125_a_proxy_that_pings_often_is_not_sent_away() -> None:
    options = [
        ("grpc.keepalive_time_ms", 1000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]
    async with running() as app, grpc.aio.insecure_channel(f"127.0.0.1:{app.port}", options) as channel:
        call = Call(channel)
        await call.open()
        await asyncio.sleep(4.2)  # four pings on a quiet connection; gRPC's own server would send GOAWAY
        assert await call.finish() is grpc.StatusCode.OK


async def test_a_proxy_that_answers_no_ping_is_given_up_with_its_requests() -> None:
    """Without a limit of its own each ping has gRPC's 60 s, whatever the keepalive timeout says."""
    keepalive = {"ping_interval_s": 0.5, "ping_timeout_s": 2.0}
    async with running(server={"keepalive": keepalive}) as app:
        peers = await RawPeers.connect(app.port, 2)
        dead, alive = peers.peers
        for peer in (*[dead] * 5, alive):
            peer.open()
        await peers.reach(lambda counts: counts[Stage.RESPONDING] == 6)
        dead.answers_pings = False
        await wait_until(lambda: dead.lost_by)
        assert "ping_timeout" in dead.lost_by
        await wait_until(lambda: len(app.driver) == 1)
        assert not alive.lost_by
        peers.close()


async def test_more_streams_than_allowed_get_429() -> None:
    """Field bug 124: our own count, not `maximum_concurrent_rpcs`; it must come back."""
    async with running(server={"max_streams": 2}) as app, _channel(app) as channel:
        for _ in range(3):
            calls = [Call(channel) for _ in range(2)]
            for call in calls:
                await call.open()
            refused = await Call(channel).headers()
            assert refused.immediate_response.status.code == 429
            for call in calls:
                assert await call.finish() is grpc.StatusCode.OK
            await wait_until(lambda: app.service.open_streams == 0)


FULL = {"flow_control": {"detector": {"type": "concurrency-detector", "max_concurrency": 1}}}


@pytest.mark.parametrize("choice", ["reject", "serve"])
async def test_drain_finishes_what_runs_and_answers_what_waits(choice: str) -> None:
    """Field bugs 88, 122, 130."""
    async with running(server={"queued_at_drain": choice}, **FULL) as app, _channel(app) as channel:
        running_call, waiting = Call(channel), Call(channel)
        await running_call.open()
        await waiting.headers()
        await waiting.send_body()
        await wait_until(lambda: app.driver.statistics().queued_requests == 1)
        draining = asyncio.create_task(app.drain())
        await wait_until(lambda: not app.health.is_ready)
        assert app.health.status("liveness") == 1
        late = await Call(channel).open()
        assert late.immediate_response.status.code == 503
        assert b"shutting_down" in late.immediate_response.body
        if choice == "reject":
            assert (await waiting.read()).immediate_response.status.code == 503
            await waiting.finish()
        assert not draining.done()
        await running_call.finish()
        if choice == "serve":
            assert (await waiting.read()).request_body.response.header_mutation.set_headers
            await waiting.finish()
        async with asyncio.timeout(5):
            await draining
        assert app.service.open_streams == 0


async def test_a_drain_does_not_wait_for_ever() -> None:
    server = {"queued_at_drain": "serve", "drain_timeout_s": 0.2}
    async with running(server=server, **FULL) as app, _channel(app) as channel:
        stuck, waiting = Call(channel), Call(channel)
        await stuck.open()
        await waiting.headers()
        await waiting.send_body()
        await wait_until(lambda: app.driver.statistics().queued_requests == 1)
        draining = asyncio.create_task(app.drain())
        assert (await waiting.read()).immediate_response.status.code == 503, "answered at the end"
        async with asyncio.timeout(5):
            await draining
            await app.stop()
        stuck.cancel()


async def test_field_bug_088_no_request_is_stranded_by_a_shutdown() -> None:
    async with running(**FULL) as app, _channel(app) as channel:
        calls = [Call(channel) for _ in range(60)]
        opened = [asyncio.create_task(call.open()) for call in calls]
        await wait_until(lambda: app.driver.statistics().queued_requests > 5)
        draining = asyncio.create_task(app.drain())
        answers = await asyncio.gather(*opened)
        for call, answer in zip(calls, answers, strict=True):
            if answer.immediate_response.status.code:
                await call.finish()
        codes = [answer.immediate_response.status.code for answer in answers]
        assert codes.count(503) == 59
        assert codes.count(0) == 1, "the one that was dispatched"
        await calls[codes.index(0)].finish()
        async with asyncio.timeout(5):
            await draining


async def test_a_peer_that_breaks_the_protocol_loses_its_stream_only() -> None:
    async with running() as app, _channel(app) as channel:
        good, bad = Call(channel), Call(channel)
        await good.headers()
        await bad.headers()
        with pytest.raises((grpc.aio.AioRpcError, AssertionError)):
            await bad.headers()
        assert await bad.finish() is grpc.StatusCode.INVALID_ARGUMENT
        raw = channel.stream_stream(METHOD)()
        await raw.write(b"\xff\xff\xff not protobuf")
        await raw.done_writing()
        assert await raw.code() is grpc.StatusCode.INVALID_ARGUMENT
        await good.send_body()
        assert (await good.read()).request_body.response.header_mutation.set_headers
        await good.finish()
        await wait_until(lambda: app.service.open_streams == 0)
        assert len(app.driver) == 0


async def test_field_bug_028_a_cancelled_stream_settles_its_account() -> None:
    """Envoy resets finished side streams: no error, one release."""
    async with running() as app, _channel(app) as channel:
        for _ in range(20):
            call = Call(channel)
            await call.open()
            call.cancel()
        await wait_until(lambda: app.service.open_streams == 0)
        assert len(app.driver) == 0
        assert app.driver.statistics().inflight_requests == 0


async def test_a_count_that_goes_wrong_costs_nothing_but_the_count() -> None:
    """Whatever a tokenizer raises about a client's text: the request goes on, the process stays live."""

    async def broken(_command: object) -> int:
        raise ValueError("surrogates not allowed")

    async with running(requests={"tokens": {"mode": "engine"}}) as app, _channel(app) as channel:
        app.service.count_tokens = broken
        call = Call(channel)
        answer = await call.open()
        assert answer.request_body.response.header_mutation.set_headers
        await call.finish()
        assert app.not_live_reasons() == []
