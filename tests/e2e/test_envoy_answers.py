"""When Envoy itself must answer, clients get OpenAI-shaped JSON with a status that says what to do."""

from __future__ import annotations

import http.client
import json
from typing import Any

import httpx

from extproc.stack.envoy import EnvoySettings
from extproc.stack.local import HOST, LocalStack
from tests.support.stack import running_stack

BODY = {"model": "emulated", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2}


def post(stack: LocalStack, **options: Any) -> httpx.Response:
    options.setdefault("json", BODY)
    return httpx.post(f"{stack.url}/v1/chat/completions", timeout=10, **options)


def error_of(answer: httpx.Response) -> dict[str, Any]:
    assert answer.headers["content-type"] == "application/json"
    error = json.loads(answer.content)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return dict(error)


def test_unreachable_server_unreachable_extproc_and_own_answers() -> None:
    with running_stack() as stack:
        own = post(stack, content=b"{", json=None)
        assert (own.status_code, error_of(own)["code"]) == (400, "bad_request")

        stack.child("emulator-0").stop()
        no_server = post(stack)
        assert (no_server.status_code, error_of(no_server)["code"]) == (503, "upstream_unavailable")
        assert no_server.headers["retry-after"] == "1"

        stack.child("extproc").stop()
        no_extproc = post(stack)
        assert (no_extproc.status_code, error_of(no_extproc)["code"]) == (503, "processor_unavailable")
        assert no_extproc.headers["retry-after"] == "1"

        stack.start_extproc()


def test_a_body_above_envoys_own_limit_gets_json_too() -> None:
    settings = EnvoySettings(listen_host=HOST, listen_port=0, admin_port=0, buffer_limit_bytes=1 << 20)
    with running_stack(envoy=settings) as stack:
        connection = http.client.HTTPConnection(HOST, stack.envoy_port, timeout=10)
        connection.putrequest("POST", "/v1/chat/completions")
        connection.putheader("content-type", "application/json")
        connection.putheader("content-length", str(3 << 20))
        connection.endheaders(b" " * (1_300_000))  # beyond the limit, short of the end
        answer = connection.getresponse()
        assert answer.status == 413
        assert json.loads(answer.read())["error"]["type"] == "gateway_error"
        connection.close()
