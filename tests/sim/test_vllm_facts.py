"""Facts about vLLM 0.30 that were established by experiment, in its own numbers, against the model."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

from extproc.sim.kv_cache import SymbolicContent
from extproc.sim.sequence import Sequence
from extproc.sim.server_config import EngineConfig, SchedulingPolicy, StepCost
from extproc.sim.server_model import ServerModel
from extproc.sim.step_events import Finished, FirstToken, Preempted
from tests.support.emulated import Emulated, emulated

COST = StepCost(base_s=0.01, prefill_token_s=0.0, sequence_s=0.0, context_token_s=0.0)
CPU: dict[str, Any] = {"block_tokens": 128, "kv_blocks": 24, "max_model_len": 1500, "cost": COST}
"""Blocks of 128 tokens, 24 of them, of which 23 can be used."""


def sequence(number: int, prompt: int, output: int, priority: int = 0) -> Sequence:
    content = SymbolicContent(number)
    return Sequence(number, prompt_tokens=prompt, output_limit=output, content=content, priority=priority)


def drain(model: ServerModel) -> list[object]:
    events: list[object] = []
    while (at := model.wakes_at) is not None:
        events += model.advance(at)
    return events


def test_one_block_less_than_there_are_is_usable_and_usage_is_of_those() -> None:
    model = ServerModel(EngineConfig(**CPU))
    model.submit(sequence(1, prompt=200, output=20), 0.0)
    assert model.kv.usage_fraction == pytest.approx(2 / 23)


def test_three_requests_of_eight_blocks_do_not_fit_into_24() -> None:
    model = ServerModel(EngineConfig(**CPU))
    for number in range(3):
        model.submit(sequence(number, prompt=1000, output=20), 0.0)
    model.finish_stretch()
    model.begin_stretch(0.01)
    assert (model.running, model.waiting) == (2, 1)


def test_priority_starts_the_lowest_value_first_and_preempts_nobody_for_a_slot() -> None:
    model = ServerModel(EngineConfig(**CPU, max_num_seqs=4, scheduling=SchedulingPolicy.PRIORITY))
    for number in range(4):
        model.submit(sequence(number, prompt=50, output=30), 0.0)
    events: list[object] = [*model.advance(0.01), *model.advance(0.02)]
    assert model.running == 4
    for number, priority in enumerate((5, 0, -5, 1, -1), start=10):
        model.submit(sequence(number, prompt=50, output=30, priority=priority), 0.02)
    events += drain(model)
    started = [event.sequence.priority for event in events if isinstance(event, FirstToken)]
    assert started[:4] == [0, 0, 0, 0]
    assert started[4:] == [-5, -1, 0, 1, 5]
    assert model.preemptions == 0


def test_when_blocks_run_out_the_highest_value_goes_and_comes_back_by_itself() -> None:
    model = ServerModel(EngineConfig(**CPU, scheduling=SchedulingPolicy.PRIORITY))
    for number in range(4):
        model.submit(sequence(number, prompt=600, output=300, priority=number), 0.0)
    events = drain(model)
    first = next(event for event in events if isinstance(event, Preempted))
    assert first.sequence.priority == 3
    assert sorted(event.sequence.id for event in events if isinstance(event, Finished)) == [0, 1, 2, 3]


def test_a_gauge_says_nothing_of_cached_blocks_while_nothing_runs() -> None:
    model = ServerModel(EngineConfig(**CPU))
    model.submit(sequence(1, prompt=1000, output=20), 0.0)
    drain(model)
    assert model.kv.usage_fraction == 0
    assert model.kv.match(SymbolicContent(1), 1001).blocks == 7


async def ask(server: Emulated, prompt: object, max_tokens: int) -> list[int]:
    body = {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "return_token_ids": True}
    async with (
        aiohttp.ClientSession() as session,
        session.post(server.url + "/v1/completions", json=body) as response,
    ):
        choice = (await response.json())["choices"][0]
    return [*choice["prompt_token_ids"], *choice["token_ids"]]


async def test_a_resume_on_the_same_server_finds_its_whole_blocks_cached() -> None:
    """100 tokens of prompt and 300 saved: 384 of the 400 are cached, three blocks of 128."""
    async with emulated(block_tokens=128, kv_blocks=64) as server:
        whole = await ask(server, list(range(300, 400)), 300)
        before = server.model.kv.hit_tokens
        await ask(server, whole, 10)
        assert server.model.kv.hit_tokens - before == 384
