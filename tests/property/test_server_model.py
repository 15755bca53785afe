"""The engine model under random loads, aborts and cache sharing: its books balance, whatever happens when."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.sim.kv_cache import SymbolicContent
from extproc.sim.sequence import Sequence
from extproc.sim.server_config import EngineConfig, SchedulingPolicy, StepCost
from extproc.sim.server_model import ServerModel
from extproc.sim.step_events import Aborted, Finished

COST = StepCost(base_s=0.01, prefill_token_s=1e-5, sequence_s=1e-3, context_token_s=1e-7)


@dataclass(frozen=True)
class Plan:
    """One request: when it arrives, how long it is, and when its client leaves (None: never)."""

    at_s: float
    prompt: int
    output: int
    group: int
    priority: int
    leaves_after_s: float | None


plans = st.lists(
    st.builds(
        Plan,
        at_s=st.integers(0, 300).map(lambda tenths: tenths / 100),
        prompt=st.integers(1, 300),
        output=st.integers(1, 200),
        group=st.integers(0, 2),
        priority=st.integers(-2, 2),
        leaves_after_s=st.none() | st.integers(0, 300).map(lambda tenths: tenths / 100),
    ),
    min_size=1,
    max_size=25,
)
engines = st.builds(
    EngineConfig,
    max_num_seqs=st.integers(1, 8),
    max_num_batched_tokens=st.integers(8, 400),
    max_model_len=st.just(500),
    kv_blocks=st.integers(34, 80),
    block_tokens=st.just(16),
    scheduling=st.sampled_from(SchedulingPolicy),
    has_prefix_cache=st.booleans(),
    cost=st.just(COST),
)


def run(
    config: EngineConfig, load: list[Plan], max_stretch_steps: int
) -> tuple[ServerModel, list[tuple[float, str, int, int]]]:
    """All events as (time, kind, request, tokens), and the engine at the end."""
    model = ServerModel(config, max_stretch_steps=max_stretch_steps)
    sequences: dict[int, Sequence] = {}
    actions: list[tuple[float, int, str]] = []
    for number, plan in enumerate(load):
        actions.append((plan.at_s, number, "arrives"))
        if plan.leaves_after_s is not None:
            actions.append((plan.at_s + plan.leaves_after_s, number, "leaves"))
    events: list[tuple[float, str, int, int]] = []

    def advance(until: float) -> None:
        while (at := model.wakes_at) is not None and at <= until:
            for event in model.advance(at):
                sequence = event.sequence
                events.append((round(at, 6), type(event).__name__, sequence.id, sequence.generated))
            assert model.running <= config.max_num_seqs
            assert 0 <= model.kv.free_blocks <= config.usable_kv_blocks

    for at, number, action in sorted(actions):
        advance(at)
        plan = load[number]
        if action == "arrives":
            sequences[number] = Sequence(
                number,
                prompt_tokens=plan.prompt,
                output_limit=plan.output,
                content=SymbolicContent(100 + number, prefix_key=plan.group, prefix_tokens=80 * plan.group),
                priority=plan.priority,
            )
            model.submit(sequences[number], at)
        else:
            model.abort(sequences[number], at)
    advance(float("inf"))
    return model, events


@settings(max_examples=60, deadline=None)
@given(engines, plans)
def test_all_blocks_come_back_and_every_request_ends_once(config: EngineConfig, load: list[Plan]) -> None:
    model, events = run(config, load, 1 << 60)
    assert (model.running, model.waiting, model.wakes_at) == (0, 0, None)
    assert model.kv.free_blocks == config.usable_kv_blocks
    finished = [number for _, kind, number, _ in events if kind == Finished.__name__]
    aborted = [number for _, kind, number, _ in events if kind == Aborted.__name__]
    assert len(set(finished)) == len(finished)
    assert not set(finished) & set(aborted)
    for number, plan in enumerate(load):
        if plan.leaves_after_s is None:
            assert number in finished
    for _, kind, number, generated in events:
        assert generated <= load[number].output
        if kind == Finished.__name__:
            assert generated == load[number].output


@settings(max_examples=60, deadline=None)
@given(engines, plans)
def test_stretches_and_single_steps_tell_the_same_story(config: EngineConfig, load: list[Plan]) -> None:
    stretched, events = run(config, load, 1 << 60)
    stepwise, single = run(config, load, 1)
    assert [event[1:] for event in events] == [event[1:] for event in single]
    for ours, theirs in zip(events, single, strict=True):
        assert abs(ours[0] - theirs[0]) < 1e-4
    assert stretched.output_tokens == stepwise.output_tokens
    assert stretched.steps == stepwise.steps
