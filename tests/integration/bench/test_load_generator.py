"""The load generator against a scripted server on real sockets."""

from __future__ import annotations

import asyncio

import pytest

from extproc.bench.load import LoadGenerator, LoadResult
from extproc.bench.load_options import LoadOptions, PriorityPlace
from extproc.bench.prompts import PromptFactory, PromptStyle
from extproc.bench.summary import summarize
from extproc.clock import SystemClock
from extproc.workload.arrivals import Arrivals, AtTimes, Bursts, ClosedLoop, Uniform
from extproc.workload.lengths import Fixed
from extproc.workload.record import RequestOutcome
from extproc.workload.traffic import AfterEviction, TrafficClass
from tests.support.scripted_server import DONE, Script, ScriptedServer, event, scripted_server, token

ONCE = AtTimes(at_s=(0.0,))


def _class(arrivals: Arrivals = ONCE, **fields: object) -> TrafficClass:
    base: dict[str, object] = {
        "name": "chat",
        "arrivals": arrivals,
        "prompt": Fixed(tokens=8),
        "output": Fixed(tokens=3),
        "priority": 10,
    }
    return TrafficClass(**(base | fields))  # type: ignore[arg-type]


async def _run(
    server: ScriptedServer,
    *classes: TrafficClass,
    style: PromptStyle = PromptStyle.TOKEN_IDS,
    **options: object,
) -> LoadResult:
    prompts = PromptFactory(model="m", style=style, seed=1, run_salt="run")
    chosen = LoadOptions(base_url=server.url, keeps_gaps=True, **options)  # type: ignore[arg-type]
    return await LoadGenerator(chosen, prompts, SystemClock(), classes=classes).run()


def _answer(tokens: int) -> Script:
    parts = [token(index) for index in range(tokens - 1)]
    return Script(parts=[*parts, token(tokens - 1, finish="length"), DONE])


async def test_field_bug_143_a_role_only_chunk_is_no_first_token() -> None:
    """The role at once, then a null content, an empty one and a comment; the first text much later."""
    role = event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}])
    null = event(choices=[{"index": 0, "delta": {"content": None}}])
    empty = event(choices=[{"index": 0, "delta": {"content": ""}}])
    text = event(choices=[{"index": 0, "delta": {"content": "hi"}}])
    last = event(choices=[{"index": 0, "delta": {"content": "!"}, "finish_reason": "stop"}])
    usage = event(choices=[], usage={"prompt_tokens": 8, "completion_tokens": 3})
    script = Script(parts=[b": keep-alive\n\n", role, 0.1, null, empty, 0.2, text, 0.1, last, usage, DONE])
    async with scripted_server(lambda number, body: script) as server:
        result = await _run(server, _class(), style=PromptStyle.CHAT)
    record = result.records[0]
    assert record.outcome is RequestOutcome.COMPLETED
    assert record.ttft_s is not None
    assert record.ttft_s >= 0.3
    # Two chunks with text, one gap; three tokens by the engine's own count.
    assert len(record.chunk_gaps_s) == 1
    assert record.output_tokens == 3


async def test_field_bug_145_chunks_are_not_tokens() -> None:
    """Chunks of one to four tokens, one of them without text: the ids say how many."""
    script = Script(parts=[token(1), token(2, 3, text=""), token(4, 5, 6, 7, finish="length"), DONE])
    async with scripted_server(lambda number, body: script) as server:
        result = await _run(server, _class(output=Fixed(tokens=7)))
    assert result.records[0].output_tokens == 7
    assert len(result.records[0].chunk_gaps_s) == 2


async def test_an_event_cut_at_every_byte_reads_the_same() -> None:
    raw = token(1, text="ä€") + token(2, finish="length") + DONE
    script = Script(parts=[raw[index : index + 1] for index in range(len(raw))])
    async with scripted_server(lambda number, body: script) as server:
        result = await _run(server, _class(output=Fixed(tokens=2)))
    assert result.records[0].outcome is RequestOutcome.COMPLETED
    assert result.records[0].output_tokens == 2


async def test_field_bug_148_a_stalled_server_shows_in_open_loop_latency() -> None:
    """A server that freezes once delays the answers, never the sending: planned and real start agree."""

    def answer(number: int, body: dict[str, object]) -> Script:
        return Script(parts=[0.5, *_answer(3).parts]) if number == 0 else _answer(3)

    async with scripted_server(answer) as server:
        result = await _run(server, _class(Uniform(rate_per_s=50.0, end_s=0.4)))
    slow = [record for record in result.records if record.ttft_s is not None and record.ttft_s >= 0.5]
    assert len(result.records) == 20
    assert len(slow) == 1
    assert result.invalid == ""


async def test_a_generator_that_lags_marks_its_run_invalid() -> None:
    async with scripted_server(lambda number, body: _answer(1)) as server:
        result = await _run(server, _class(Bursts(size=50, every_s=1.0, count=1)), lag_limit_s=0.0)
    assert "lagged" in result.invalid
    assert all(record.ttft_s > record.first_token_s - record.sent_s for record in result.records)  # type: ignore[operator]


async def test_field_bug_149_no_hidden_pool_limit() -> None:
    """No answer before all 300 requests are at the server together."""
    all_there = asyncio.Event()

    def answer(number: int, body: dict[str, object]) -> Script:
        if number == 299:
            all_there.set()
        return Script(parts=[all_there, *_answer(1).parts])

    async with scripted_server(answer) as server:
        result = await _run(server, _class(Bursts(size=300, every_s=1.0, count=1)))
    assert server.most_open == 300
    assert result.most_open == 300


async def test_field_bug_151_nothing_is_retried_in_secret() -> None:
    headers = {"retry-after": "1", "x-llm-d-request-dropped-reason": "rejected-saturated"}
    async with scripted_server(lambda number, body: Script(status=503, headers=headers)) as server:
        result = await _run(server, _class())
    assert len(server.bodies) == 1
    assert result.records[0].outcome is RequestOutcome.REJECTED
    assert result.records[0].status == 503
    assert result.records[0].reason == "rejected-saturated"


async def test_an_evicted_batch_request_resumes_behind_its_tokens() -> None:
    def answer(number: int, body: dict[str, object]) -> Script:
        if number == 0:
            return Script(parts=[token(7), token(8)], resets=True)
        return Script(parts=[token(9, finish="length"), DONE])

    batch = _class(name="batch", priority=-1, after_eviction=AfterEviction.RESUME)
    async with scripted_server(answer) as server:
        result = await _run(server, batch)
    record = result.records[0]
    assert record.outcome is RequestOutcome.COMPLETED
    assert (record.evictions, record.redone_tokens, record.output_tokens) == (1, 0, 3)
    first, second = (body["prompt"] for body in server.bodies)
    assert second == [*first, 7, 8]  # type: ignore[misc]
    assert server.bodies[1]["max_tokens"] == 1


async def test_a_restarting_client_counts_what_it_redoes() -> None:
    def answer(number: int, body: dict[str, object]) -> Script:
        return Script(parts=[token(7), token(8)], resets=True) if number == 0 else _answer(3)

    batch = _class(name="batch", priority=-1, after_eviction=AfterEviction.RESTART)
    async with scripted_server(answer) as server:
        result = await _run(server, batch, restart_backoff_s=0.05)
    record = result.records[0]
    assert (record.evictions, record.redone_tokens, record.output_tokens) == (1, 2, 3)
    assert server.bodies[0]["prompt"] == server.bodies[1]["prompt"]


async def test_a_broken_interactive_stream_is_a_failure_and_a_refused_eviction_is_not() -> None:
    async with scripted_server(lambda number, body: Script(parts=[token(1)], resets=True)) as server:
        broken = await _run(server, _class())
    assert broken.records[0].outcome is RequestOutcome.FAILED
    evicted = Script(status=429, headers={"x-llm-d-request-dropped-reason": "evicted"})
    async with scripted_server(lambda number, body: evicted) as server:
        cut = await _run(server, _class(priority=-1))
    assert cut.records[0].outcome is RequestOutcome.EVICTED


async def test_field_bug_152_no_two_prompts_share_a_beginning() -> None:
    async with scripted_server(lambda number, body: _answer(1)) as server:
        await _run(server, _class(Bursts(size=20, every_s=1.0, count=1), prompt=Fixed(tokens=64)))
    beginnings = {tuple(body["prompt"][:8]) for body in server.bodies}  # type: ignore[index]
    assert len(beginnings) == 20
    assert {len(body["prompt"]) for body in server.bodies} == {64}  # type: ignore[arg-type]


async def test_a_closed_loop_keeps_its_concurrency_and_is_labelled() -> None:
    script = Script(parts=[0.02, *_answer(1).parts])
    async with scripted_server(lambda number, body: script) as server:
        result = await _run(server, _class(ClosedLoop(concurrency=3, requests=9)))
    assert server.most_open == 3
    assert len(result.records) == 9
    assert summarize(result.records, name="chat").is_closed_loop


async def test_speedup_scales_sending_and_recorded_times() -> None:
    script = Script(parts=[0.1, *_answer(1).parts])
    traffic = _class(AtTimes(at_s=(0.0, 2.0)), ttft_target_s=4.0, deadline_s=60.0)
    async with scripted_server(lambda number, body: script) as server:
        result = await _run(server, traffic, speedup=10.0)
    assert [record.intended_s for record in result.records] == [0.0, 2.0]
    assert all(1.0 <= record.ttft_s < 10.0 for record in result.records if record.ttft_s is not None)
    assert server.headers[0]["x-llm-d-slo-ttft-ms"] == "400"
    assert server.headers[0]["x-llm-d-inference-fairness-id"] == "default-flow"


@pytest.mark.parametrize(
    ("place", "priority", "header", "field"),
    [
        (PriorityPlace.NOWHERE, -1, None, None),
        (PriorityPlace.BODY, -1, None, -1),
        (PriorityPlace.HEADER, -1, "-1", None),
        (PriorityPlace.BODY, 0, None, None),
        (PriorityPlace.HEADER, 0, None, None),
    ],
)
async def test_a_class_tells_its_number_where_it_is_asked_to(
    place: PriorityPlace, priority: int, header: str | None, field: int | None
) -> None:
    async with scripted_server(lambda number, body: _answer(3)) as server:
        await _run(server, _class(priority=priority), priority_in=place, objectives={"chat": "nightly"})
    assert server.headers[0].get("x-priority") == header
    assert server.bodies[0].get("priority") == field
    assert server.headers[0]["x-llm-d-inference-objective"] == "nightly"


async def test_the_horizon_cuts_what_is_open() -> None:
    script = Script(parts=[token(1), 30.0, token(2, finish="length"), DONE])
    async with scripted_server(lambda number, body: script) as server:
        result = await _run(server, _class(), horizon_s=0.3)
    assert result.records[0].outcome is RequestOutcome.UNFINISHED
    assert result.records[0].first_token_s is not None


@pytest.mark.parametrize("body", [b'{"usage": {"completion_tokens": 3}}', b"not JSON"])
async def test_an_unstreamed_answer_counts_by_its_usage(body: bytes) -> None:
    async with scripted_server(lambda number, _: Script(parts=[body])) as server:
        result = await _run(server, _class(streams=False))
    assert result.records[0].outcome is RequestOutcome.COMPLETED
    assert result.records[0].output_tokens == (3 if b"usage" in body else 0)
