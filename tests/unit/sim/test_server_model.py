"""The engine model against facts of vLLM's scheduler, in literal numbers."""

import pytest

from extproc.errors import ConfigError
from extproc.sim.kv_cache import SymbolicContent
from extproc.sim.sequence import Sequence
from extproc.sim.server_config import EngineConfig, SchedulingPolicy, StepCost
from extproc.sim.server_model import ServerModel
from extproc.sim.step_events import Aborted, Finished, FirstToken, StepEvent

COST = StepCost(base_s=0.010, prefill_token_s=1e-5, sequence_s=1e-3, context_token_s=1e-7)


CRAMPED: dict[str, object] = {"max_model_len": 640, "kv_blocks": 41, "max_num_seqs": 4}
"""Room for one long request."""


def engine(**changes: object) -> ServerModel:
    settings: dict[str, object] = {"max_model_len": 1000, "kv_blocks": 1001, "cost": COST, **changes}
    return ServerModel(EngineConfig(**settings))  # type: ignore[arg-type]


def sequence(number: int, prompt: int = 100, output: int = 10, priority: int = 0) -> Sequence:
    return Sequence(
        number, prompt_tokens=prompt, output_limit=output, content=SymbolicContent(number), priority=priority
    )


def run(model: ServerModel, until: float = float("inf")) -> list[tuple[float, StepEvent]]:
    events: list[tuple[float, StepEvent]] = []
    while (at := model.wakes_at) is not None and at <= until:
        events += [(at, event) for event in model.advance(at)]
    return events


def test_one_request_takes_a_prefill_step_and_decode_steps() -> None:
    model = engine()
    model.submit(sequence(1, prompt=100, output=3), 0.0)
    first, last = run(model)
    assert isinstance(first[1], FirstToken)
    assert first[0] == pytest.approx(0.010 + 100e-5 + 1e-3)
    assert isinstance(last[1], Finished)
    decode = 2 * (0.010 + 1e-3) + (100 + 101) * 1e-7
    assert last[0] == pytest.approx(first[0] + decode)
    assert model.kv.free_blocks == 1000


def test_max_num_seqs_is_never_exceeded_and_order_is_first_come_first_served() -> None:
    model = engine(max_num_seqs=2)
    for number in range(5):
        model.submit(sequence(number), 0.0)
    assert (model.running, model.waiting) == (1, 4)  # the first submission started a step at once
    first_tokens = [event.sequence.id for _, event in run(model) if isinstance(event, FirstToken)]
    assert first_tokens == [0, 1, 2, 3, 4]


def test_priority_scheduling_starts_the_lowest_value_first() -> None:
    model = engine(max_num_seqs=1, scheduling=SchedulingPolicy.PRIORITY)
    model.submit(sequence(0), 0.0)
    for number, priority in ((1, 5), (2, 0), (3, -5), (4, 1), (5, -1)):
        model.submit(sequence(number, priority=priority), 0.001)
    order = [event.sequence.priority for _, event in run(model) if isinstance(event, FirstToken)]
    assert order == [0, -5, -1, 0, 1, 5]


def test_abort_of_a_running_request_frees_its_blocks_at_the_end_of_the_step() -> None:
    model = engine()
    victim = sequence(1, output=500)
    model.submit(victim, 0.0)
    run(model, until=0.1)
    assert not model.abort(victim, 0.1)
    ((at, event),) = run(model, until=1.0)
    assert isinstance(event, Aborted)
    assert 0.1 <= at < 0.1 + 0.012
    assert (model.running, model.kv.free_blocks) == (0, 1000)
    assert event.sequence.generated == 1 + int((at - 0.012) / 0.01101)


def test_impossible_limits_are_all_named() -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig(max_num_seqs=0, kv_blocks=1)
    assert {problem.path for problem in caught.value.problems} == {"engine.max_num_seqs", "engine.kv_blocks"}


def test_stretches_change_nothing_but_the_cost() -> None:
    """The same load step by step and in stretches: the same events at the same times."""

    def events(limit: int) -> list[tuple[float, str, int]]:
        config = EngineConfig(max_num_seqs=8, max_model_len=1000, kv_blocks=70, cost=COST)
        model = ServerModel(config, max_stretch_steps=limit)
        seen = []
        for number in range(40):
            arrival = number * 0.05
            seen += run(model, until=arrival)
            model.submit(
                sequence(number, prompt=50 + 37 * number % 400, output=20 + 53 * number % 300), arrival
            )
        seen += run(model)
        return [(round(at, 9), type(event).__name__, event.sequence.id) for at, event in seen]

    stepwise, stretched = events(1), events(1 << 60)
    assert stretched == stepwise
    assert any(name == "Preempted" for _, name, _ in stepwise)


@pytest.mark.parametrize("prompt", range(1, 16))
def test_a_victim_gives_back_the_block_that_was_taken_for_its_next_step(prompt: int) -> None:
    """In one of these phases it crosses into a new block in the very step that preempts it."""
    model = engine(
        **CRAMPED, max_num_batched_tokens=43, scheduling=SchedulingPolicy.PRIORITY, has_prefix_cache=False
    )
    model.submit(sequence(1, prompt=prompt, output=60, priority=2), 0.0)
    model.submit(sequence(2, prompt=624, output=2, priority=0), 0.005)
    finished = [event.sequence.id for _, event in run(model) if isinstance(event, Finished)]
    assert finished == [2, 1]
    assert model.preemptions > 0
    assert model.kv.free_blocks == 40


def test_when_the_first_in_the_queue_leaves_the_next_may_start_at_once() -> None:
    model = engine(**CRAMPED, has_prefix_cache=False)
    model.submit(sequence(1, prompt=480, output=150), 0.0)
    run(model, until=0.1)
    large = sequence(2, prompt=200)
    model.submit(large, 0.1)
    model.submit(sequence(3, prompt=16), 0.1)
    run(model, until=0.5)
    assert model.waiting == 2  # thirteen blocks are not free, and nobody overtakes
    assert model.abort(large, 0.5)
    first = next(at for at, event in run(model) if isinstance(event, FirstToken))
    assert 0.5 < first < 0.54  # after the step that was running, not after the first request
