"""What a user does first: a chat completion through Envoy, by curl and the `openai` client; and bad input."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import urllib.request
from collections.abc import Callable
from typing import Any

import openai
import pytest

from extproc.stack.ledger import read_ledger
from extproc.stack.local import LocalStack
from tests.support.waiting import wait_for

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Hello"}]


def chat_body(**more: Any) -> bytes:
    return json.dumps({"model": "emulated", "messages": MESSAGES, "max_tokens": 8, **more}).encode()


def ask(
    stack: LocalStack, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", stack.envoy_port, timeout=30)
    try:
        connection.request(method, path, body, {"content-type": "application/json", **headers})
        response = connection.getresponse()
        names = {name.lower(): value for name, value in response.getheaders()}
        return response.status, names, response.read()
    finally:
        connection.close()


def test_curl_streams_a_chat_completion(stack: LocalStack) -> None:
    body = chat_body(stream=True).decode()
    argv = [
        "curl",
        "-sSN",
        "--max-time",
        "30",
        stack.url + CHAT,
        "-H",
        "content-type: application/json",
        "-d",
        body,
    ]
    output = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout
    events = [line.removeprefix("data: ") for line in output.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    assert sum(bool(chunk["choices"][0]["delta"].get("content")) for chunk in chunks) == 8


def test_the_openai_client_streams_a_chat_completion(stack: LocalStack) -> None:
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0) as client:
        chunks = list(
            client.chat.completions.create(
                model="emulated",
                messages=[{"role": "user", "content": "Hello"}],
                max_tokens=8,
                stream=True,
                extra_headers={"x-llm-d-inference-objective": "interactive"},
            )
        )
    assert chunks[-1].choices[0].finish_reason == "length"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


def test_a_completion_that_is_not_streamed(stack: LocalStack) -> None:
    status, headers, body = ask(stack, "POST", CHAT, chat_body())
    assert status == 200
    assert headers["content-type"].startswith("application/json")
    assert json.loads(body)["usage"]["completion_tokens"] == 8


def test_get_passes_without_queueing(stack: LocalStack) -> None:
    status, _, body = ask(stack, "GET", "/v1/models")
    assert status == 200
    assert json.loads(body)["data"][0]["id"] == "emulated"


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"{", 400, "JSON"),
        (b"\xff\xfe", 400, "JSON"),
        (b"[1, 2]", 400, ""),
        (b"", 400, ""),
        (json.dumps({"messages": MESSAGES}).encode(), 400, "model"),
        (chat_body(model=7), 400, "model"),
        (chat_body(priority="high"), 400, "priority"),
        (chat_body(padding="x" * 20_000_000), 413, "16777216"),
    ],
    ids=["not-json", "not-utf8", "array", "empty", "no-model", "model-type", "priority-type", "20-mb"],
)
def test_bad_input_has_a_clear_answer(stack: LocalStack, body: bytes, status: int, says: str) -> None:
    got, headers, answer = ask(stack, "POST", CHAT, body)
    assert got == status, answer[:300]
    assert headers["content-type"] == "application/json"
    error = json.loads(answer)["error"]
    assert says in error["message"]
    assert error["type"]
    assert "code" in error


@pytest.mark.parametrize(
    ("method", "path", "statuses"),
    [("POST", "/v1/unknown", {404}), ("GET", CHAT, {404, 405}), ("GET", "/", {404}), ("POST", "/", {404})],
)
def test_paths_that_nobody_serves(stack: LocalStack, method: str, path: str, statuses: set[int]) -> None:
    status, _, _ = ask(stack, method, path, b"{}" if method == "POST" else None)
    assert status in statuses


def test_a_client_cannot_choose_its_server(stack: LocalStack) -> None:
    status, _, _ = ask(stack, "POST", CHAT, chat_body(), **{"x-gateway-destination-endpoint": "127.0.0.1:9"})
    assert status == 200


def open_stream(stack: LocalStack, tokens: int, objective: str) -> socket.socket:
    """Send a streaming request and leave the socket open; nothing is read."""
    body = chat_body(stream=True, max_tokens=tokens)
    head = (
        f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"x-llm-d-inference-objective: {objective}\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    connection = socket.create_connection(("127.0.0.1", stack.envoy_port), timeout=30)
    connection.sendall(head.encode() + body)
    return connection


def engine_gauge(stack: LocalStack, name: str) -> float:
    with urllib.request.urlopen(f"http://{stack.endpoints[0]}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


def running(stack: LocalStack) -> Callable[[], int]:
    return lambda: int(engine_gauge(stack, "vllm:num_requests_running"))


def test_a_client_that_goes_away_stops_the_engine(stack: LocalStack) -> None:
    connection = open_stream(stack, 8000, "interactive")
    wait_for(lambda: running(stack)() == 1)
    assert read_ledger(stack.admin_url).in_flight == 1
    connection.close()
    wait_for(lambda: running(stack)() == 0)


def test_a_client_that_goes_away_leaves_the_queue(stack: LocalStack) -> None:
    running_ones = [open_stream(stack, 8000, "interactive") for _ in range(4)]
    wait_for(lambda: read_ledger(stack.admin_url).in_flight == 4)
    queued = open_stream(stack, 8000, "interactive")
    wait_for(lambda: read_ledger(stack.admin_url).queued == 1)
    queued.close()
    wait_for(lambda: read_ledger(stack.admin_url).queued == 0)
    assert read_ledger(stack.admin_url).in_flight == 4
    for connection in running_ones:
        connection.close()


def test_a_full_pool_evicts_batch_for_an_interactive_request(stack: LocalStack) -> None:
    batch = [open_stream(stack, 8000, "batch") for _ in range(4)]
    wait_for(lambda: running(stack)() == 4)
    status, _, _ = ask(stack, "POST", CHAT, chat_body(), **{"x-llm-d-inference-objective": "interactive"})
    assert status == 200
    wait_for(lambda: read_ledger(stack.admin_url).in_flight == 3)
    for connection in batch:
        connection.close()
