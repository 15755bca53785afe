"""Changing the configuration of a running stack, and observe-only mode: real Envoy, real requests."""

from __future__ import annotations

import http.client
import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from extproc.stack.ledger import read_ledger, read_metrics
from extproc.stack.local import LocalStack
from tests.support.stack import CONFIG, running_stack
from tests.support.waiting import wait_for

SLOW = ["--max-num-seqs", "8", "--speed", "0.2"]
Answer = tuple[int, bytes]


def config(slots: int, **flow_control: Any) -> dict[str, Any]:
    detector = {"type": "concurrency-detector", "max_concurrency": slots}
    return {**CONFIG, "flow_control": {"detector": detector, **flow_control}}


def chat(stack: LocalStack, objective: str = "interactive", tokens: int = 40) -> Answer:
    body = {"model": "emulated", "max_tokens": tokens, "messages": [{"role": "user", "content": "Hello"}]}
    connection = http.client.HTTPConnection("127.0.0.1", stack.envoy_port, timeout=60)
    headers = {"content-type": "application/json", "x-llm-d-inference-objective": objective}
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


@contextmanager
def load(stack: LocalStack, requests: int, tokens: int = 40) -> Iterator[list[Future[Answer]]]:
    with ThreadPoolExecutor(requests) as pool:
        yield [pool.submit(chat, stack, tokens=tokens) for _ in range(requests)]


def config_file(stack: LocalStack) -> Path:
    return stack.directory / "extproc.json"


def rewrite(stack: LocalStack, change: Callable[[dict[str, Any]], None]) -> None:
    """Swap a symbolic link to a new file, as a ConfigMap does."""
    file = config_file(stack)
    data = yaml.safe_load(file.read_text())
    change(data)
    version = file.with_name(f"version-{len(list(file.parent.iterdir()))}.yaml")
    version.write_text(yaml.safe_dump(data))
    link = file.with_name("new-link")
    link.symlink_to(version)
    link.replace(file)


def set_slots(count: int) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        data["flow_control"]["detector"]["max_concurrency"] = count

    return change


def post_reload(stack: LocalStack) -> tuple[int, Any]:
    request = urllib.request.Request(
        f"{stack.admin_url}/reload", b"{}", {"content-type": "application/json"}, method="POST"
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def in_force(stack: LocalStack) -> Any:
    with urllib.request.urlopen(f"{stack.admin_url}/config", timeout=10) as answer:
        return json.load(answer)


def count(stack: LocalStack, name: str) -> float:
    return read_metrics(stack.admin_url).get(name, 0.0)


@pytest.fixture(scope="module")
def running() -> Iterator[LocalStack]:
    with running_stack(config(1), emulators=[SLOW]) as stack:
        yield stack


@pytest.fixture
def stack(running: LocalStack) -> Iterator[LocalStack]:
    """The running stack; afterwards it gets back the configuration that it started with."""
    first = yaml.safe_load(config_file(running).read_text())
    yield running
    rewrite(running, lambda data: data.update(first))
    assert post_reload(running)[0] == 200


def applied(stack: LocalStack) -> float:
    return count(stack, "extproc_config_generation")


def test_a_changed_file_lets_waiting_requests_in_without_dropping_any(stack: LocalStack) -> None:
    before = applied(stack)
    with load(stack, 5, tokens=100) as answers:
        wait_for(lambda: read_ledger(stack.admin_url).queued == 4)
        rewrite(stack, set_slots(5))
        wait_for(lambda: read_ledger(stack.admin_url).queued == 0)
        assert read_ledger(stack.admin_url).in_flight >= 4
        assert applied(stack) == before + 1
    assert [answer.result()[0] for answer in answers] == [200] * 5
    assert in_force(stack)["flow_control"]["detector"]["max_concurrency"] == 5


def test_a_bad_file_is_refused_with_every_problem_and_the_old_one_stays(stack: LocalStack) -> None:
    before, good = applied(stack), config_file(stack).read_text()
    config_file(stack).write_text(
        "flow_control:\n"
        "  default_ttl_s: -1\n"
        "  detector: {type: concurrency-detector, max_concurency: 3}\n"
        "requests:\n"
        "  priority: {default: 5000}\n"
    )
    status, answer = post_reload(stack)
    config_file(stack).write_text(good)
    assert status == 400
    lines = {problem["path"]: problem["line"] for problem in answer["problems"]}
    assert lines["flow_control.detector.max_concurency"] == 3
    assert {2, 3, 5} <= set(lines.values())
    assert in_force(stack)["flow_control"]["detector"]["max_concurrency"] == 1
    assert applied(stack) == before
    assert chat(stack)[0] == 200
    log = stack.child("extproc").tail()
    assert "the old one stays in force" in log
    assert "max_concurency" in log


def test_sighup_applies_objectives_and_names_what_needs_a_restart(stack: LocalStack) -> None:
    assert chat(stack, "urgent")[0] == 200
    priorities, before = priorities_seen(stack), applied(stack)

    def change(data: dict[str, Any]) -> None:
        data["requests"]["priority"]["objectives"]["urgent"] = 77
        data["server"]["max_streams"] = 123

    rewrite(stack, change)
    os.kill(stack.child("extproc").pid, signal.SIGHUP)
    wait_for(lambda: applied(stack) == before + 1)
    assert chat(stack, "urgent")[0] == 200
    assert priorities_seen(stack) - priorities == {"77"}
    assert in_force(stack)["server"]["max_streams"] != 123
    assert "only read at the start: server" in stack.child("extproc").tail()
    status, answer = post_reload(stack)
    assert (status, answer["result"], answer["needs_restart"]) == (200, "unchanged", ["server"])


def state(stack: LocalStack) -> dict[str, Any]:
    with urllib.request.urlopen(f"{stack.admin_url}/debug/state", timeout=10) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def priorities_seen(stack: LocalStack) -> set[str]:
    return {str(band["priority"]) for band in state(stack)["bands"] if band["dispatched"]}


def test_observing_holds_nothing_refuses_nothing_and_counts_what_would_have_waited(
    stack: LocalStack,
) -> None:
    def observe(data: dict[str, Any]) -> None:
        data["flow_control"] |= {"mode": "observe", "default_ttl_s": 0.2}
        data["flow_control"]["bands"] = [{"priority": 10, "max_requests": 1}]

    enforced = json.loads(chat(stack)[1])
    rewrite(stack, observe)
    assert post_reload(stack)[0] == 200
    assert count(stack, "extproc_observe_only_total") == 0
    with load(stack, 6) as answers:
        wait_for(lambda: read_ledger(stack.admin_url).in_flight == 6)
        assert read_ledger(stack.admin_url).queued == 0
    results = [answer.result() for answer in answers]
    assert [status for status, _ in results] == [200] * 6
    for _, body in results:
        assert json.loads(body)["choices"] == enforced["choices"]
    (counts,) = (row for row in state(stack)["would_have"] if row["priority"] == 10)
    would = {name: counts[name] for name in ("passed", "held", "rejected", "expired", "evicted")}
    assert would == {"passed": 1, "held": 1, "rejected": 4, "expired": 1, "evicted": 0}
    assert count(stack, "extproc_observe_only_total") == 6 + 1  # every arrival once, one of them again
    assert count(stack, "extproc_revocations_issued_total") == 0
    rewrite(stack, lambda data: data["flow_control"].update(mode="enforce", default_ttl_s=60))
    assert post_reload(stack)[0] == 200
    with load(stack, 2) as answers:
        wait_for(lambda: read_ledger(stack.admin_url).queued == 1)
    assert [answer.result()[0] for answer in answers] == [200, 200]


def test_envoys_own_stats_that_the_alerts_read_exist(stack: LocalStack) -> None:
    with urllib.request.urlopen(f"{stack.envoy_admin_url}/stats/prometheus", timeout=10) as answer:
        stats = answer.read().decode()
    for name in ("failure_mode_allowed", "message_timeouts"):
        assert f'envoy_http_ext_proc_{name}{{envoy_http_conn_manager_prefix="ingress"}}' in stats
