"""The local stack with the real Envoy, before any of our own servers is involved."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from extproc.stack.local import LocalStack
from extproc.stack.process import StackError
from tests.integration.stack.test_process import wait_gone


class Echo(BaseHTTPRequestHandler):
    """Answers with the headers that arrived."""

    def do_GET(self) -> None:
        body = str(self.headers).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def echo() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_envoy_alone_forwards_and_strips_what_clients_must_not_set(echo: str, tmp_path: Path) -> None:
    with LocalStack(None, emulators=[], endpoints=[echo], directory=tmp_path) as stack:
        connection = http.client.HTTPConnection("127.0.0.1", stack.envoy_port, timeout=10)
        headers = {"X-Gateway-Destination-Endpoint": "10.0.0.1:1", "X-Vllm-Priority": "9", "X-Other": "kept"}
        connection.request("GET", "/v1/models", headers=headers)
        response = connection.getresponse()
        seen = response.read().decode().lower()
        connection.close()
        assert response.status == 200
        assert "x-other: kept" in seen
        assert "10.0.0.1" not in seen
        assert "x-vllm-priority" not in seen
        pids = [child.pid for child in stack.children]
    assert all(wait_gone(pid) for pid in pids)


def test_a_broken_configuration_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    stack = LocalStack({"no_such_section": 1}, emulators=[], endpoints=["127.0.0.1:9"], directory=tmp_path)
    with pytest.raises(StackError, match="extproc ended with status"), stack:
        pass
    assert all(wait_gone(child.pid) for child in stack.children)
