"""`extproc explain` and POST /explain against a running processor."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest
from click.testing import CliRunner, Result

from extproc.cli import cli
from extproc.config.schema import Config, parse_config
from extproc.core.events import EndpointHealthChanged, RequestArrived
from extproc.core.types import EndpointId, Request, RequestId
from extproc.runtime.app import Application

CONFIG = """
server: {port: 0}
admin: {port: 0}
endpoints:
  scrape: {enabled: false}
  discovery:
    - type: static
      endpoints:
        - {name: a, address: "127.0.0.1:1", labels: {kind: gpu}}
        - {name: b, address: "127.0.0.1:2"}
        - {name: c, address: "127.0.0.1:3", draining: true}
flow_control:
  detector: {type: concurrency-detector, max_concurrency: 2}
  picker:
    type: profiles
    profiles:
      - {name: urgent, match: {min_priority: 5}, labels: {kind: gpu}}
      - {name: rest}
"""


async def run(*arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, cli, ["explain", *arguments])


@pytest.fixture
async def app() -> Application:
    made = Application(config())
    await made.start()
    yield made  # type: ignore[misc]
    await made.stop()


def config() -> Config:
    return parse_config(CONFIG)


async def test_the_command_shows_filters_scores_ceiling_and_the_verdict(app: Application) -> None:
    url = f"http://127.0.0.1:{app.admin_port}"
    result = await run("--url", url, "--priority", "5", "--prompt-tokens", "800", "--model", "m")
    assert result.exit_code == 0, result.output
    assert "would be dispatched now to 127.0.0.1:1" in result.output
    assert "labels: kind is not gpu" in result.output
    assert "draining: takes no new work" in result.output
    assert "profile urgent" in result.output
    for word in ("in-flight", "queue", "kv-usage", "prefix-cache", "below its ceiling", "800 tokens"):
        assert word in result.output


async def test_a_full_pool_says_what_it_waits_for(app: Application) -> None:
    url = f"http://127.0.0.1:{app.admin_port}"
    for number in range(1, 5):
        app.driver.post(RequestArrived(Request(id=RequestId(number), model="m")))
    answer = json.loads((await run("--url", url, "--json")).output)
    assert (answer["verdict"], answer["best"]) == ("wait", None)
    assert answer["reason"] == (
        "saturation 1 leaves no room below the ceiling 1 (requests), 1 (tokens) of its priority"
    )
    full = [row["removed_by"] for row in answer["endpoints"] if row["address"] != "127.0.0.1:3"]
    assert full == ["detector: full for it (requests 1.00, tokens 0.00)"] * 2
    app.driver.post(RequestArrived(Request(id=RequestId(5), model="m")))
    answer = json.loads((await run("--url", url, "--json", "--priority", "-3")).output)
    assert answer["queued_before"] == {"0": 1}
    assert answer["reason"] == "queued requests go first: 1 of priority 0"


async def test_an_ejected_endpoint_and_an_empty_subset_are_named(app: Application) -> None:
    url = f"http://127.0.0.1:{app.admin_port}"
    (first, *_) = [status.endpoint_id for status in app.watch.endpoints()]
    app.driver.post(EndpointHealthChanged(EndpointId(first), False))
    result = await run("--url", url, "--endpoint", "127.0.0.1:9")
    assert "the filters leave no endpoint for it" in result.output
    assert "health: ejected" in result.output
    assert "subset: not among the addresses that the request allows" in result.output


async def test_the_whole_request_is_read_as_the_gateway_reads_it(app: Application) -> None:
    question = {
        "path": "/v1/completions",
        "headers": {"X-LLM-D-Inference-Fairness-Id": "tenant-a"},
        "body": {"model": "m", "prompt": [1, 2, 3], "priority": 7, "max_tokens": 5},
    }
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{app.admin_port}") as client:
        answer = (await client.post("/explain", json=question)).json()
        assert (answer["priority"], answer["tokens"], answer["profile"]) == (7, 3, "urgent")
        statistics = app.driver.statistics()
        assert statistics.inflight_requests == statistics.queued_requests == 0


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ({"priorty": 1}, "unknown key"),
        ({"priority": "high"}, "must be a whole number"),
        ({"priority": True}, "must be a whole number"),
        ({"priority": 10**18}, "must lie between -1000 and 1000"),
        ({"prompt_tokens": -1}, "must lie between 0 and"),
        ({"path": "/v1/models"}, "not read by flow control"),
        ({"headers": []}, "must be an object"),
        ({"body": {"model": 5}}, "model must be a string"),
        ({"body": []}, "must be a JSON object"),
        ({"endpoint_subset": "x"}, "must be a list"),
    ],
)
async def test_a_question_that_cannot_be_read_is_refused_naming_the_key(
    app: Application, question: dict[str, object], expected: str
) -> None:
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{app.admin_port}") as client:
        answer = await client.post("/explain", json=question)
    assert answer.status_code == 400
    assert expected in answer.text


async def test_the_command_without_a_processor_says_what_to_do() -> None:
    result = await run("--url", "http://127.0.0.1:1")
    assert result.exit_code == 1
    assert "is extproc running there?" in str(result.exception)
    assert (await run("--header", "nonsense")).exit_code == 2
