"""Connections to a model server that the server closes while Envoy takes them: the 503 nobody asked for.

The server here closes exactly when a second request arrives on a connection, which is what the unlucky
moment looks like to Envoy; no timing is involved.
"""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from extproc.stack.envoy import EnvoySettings
from extproc.stack.local import HOST, LocalStack
from tests.support.stack import running_stack

BODY = {"model": "m", "prompt": "hello", "max_tokens": 1}


class _Closing(socketserver.StreamRequestHandler):
    """Answers the first POST of a connection and hangs up on the next one."""

    def handle(self) -> None:
        posts = 0
        while line := self.rfile.readline():
            length = 0
            while header := self.rfile.readline().strip():
                name, _, value = header.partition(b":")
                length = int(value) if name.lower() == b"content-length" else length
            self.rfile.read(length)
            if line.startswith(b"POST"):
                posts += 1
                if posts == 2:
                    return
            body = b'{"object": "list", "data": []}'
            head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            self.wfile.write(head.encode() + body)


@contextmanager
def _closing_server() -> Iterator[str]:
    with socketserver.ThreadingTCPServer((HOST, 0), _Closing) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"{HOST}:{server.server_address[1]}"
        finally:
            server.shutdown()


def _settings(**options: float | str) -> EnvoySettings:
    return EnvoySettings(listen_host=HOST, listen_port=0, admin_port=0, **options)  # type: ignore[arg-type]


def _post(stack: LocalStack) -> httpx.Response:
    return httpx.post(f"{stack.url}/v1/completions", json=BODY, timeout=10)


@pytest.mark.parametrize(
    ("retry_on", "expected"),
    [
        ("", [200, 503, 200, 503]),
        ("connect-failure,reset-before-request", [200, 503, 200, 503]),
        ("connect-failure,reset", [200, 200, 200, 200]),
    ],
)
def test_only_a_retry_of_resets_hides_a_closed_connection(retry_on: str, expected: list[int]) -> None:
    config = {"endpoints": {"scrape": {"enabled": False}}, "flow_control": {}}
    settings = _settings(upstream_retry_on=retry_on)
    with (
        _closing_server() as address,
        LocalStack(config, emulators=(), endpoints=[address], envoy=settings) as stack,
    ):
        answers = [_post(stack) for _ in range(4)]
        assert [answer.status_code for answer in answers] == expected
        refused = [answer for answer in answers if answer.status_code == 503]
        assert {answer.json()["error"]["code"] for answer in refused} <= {"upstream_unavailable"}


def _stat(stack: LocalStack, name: str) -> int:
    answer = httpx.get(f"{stack.envoy_admin_url}/stats", params={"filter": f"^cluster.models.{name}$"})
    return int(answer.text.partition(": ")[2] or 0)


def _wait(stack: LocalStack, name: str) -> None:
    """Return when Envoy has counted one of them."""
    stack.child("envoy").wait_until(lambda: _stat(stack, name) == 1, timeout_s=15)


def test_as_shipped_envoy_closes_unused_connections_before_vllm_does() -> None:
    with running_stack() as stack:
        assert (
            httpx.post(f"{stack.url}/v1/completions", json={**BODY, "model": "emulated"}).status_code == 200
        )
        _wait(stack, "upstream_cx_destroy")
        assert _stat(stack, "upstream_cx_idle_timeout") == 1
        assert _stat(stack, "upstream_cx_destroy_remote") == 0


def test_an_envoy_without_our_idle_timeout_leaves_the_closing_to_the_server() -> None:
    emulators = [["--keep-alive", "0.5"]]
    with running_stack(envoy=_settings(upstream_idle_timeout_s=3600.0), emulators=emulators) as stack:
        assert (
            httpx.post(f"{stack.url}/v1/completions", json={**BODY, "model": "emulated"}).status_code == 200
        )
        _wait(stack, "upstream_cx_destroy")
        assert _stat(stack, "upstream_cx_destroy_remote") == 1
