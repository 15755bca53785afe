"""Prefill pacing: batch prompts one budget at a time, and never ahead of an interactive first token."""

from __future__ import annotations

import pytest

from extproc.core.capacity import CapacityDetectorConfig
from extproc.core.config import FlowControlConfig
from extproc.core.events import OutputObserved
from extproc.core.pacing import PrefillPacingConfig
from tests.support.core import Script, endpoint


def paced(**pacing: object) -> Script:
    """One endpoint that prefills 1,000 tokens a second, with room for everything."""
    pacing = {"budget_tokens": 1000, "prefill_tokens_per_s": 1000.0, **pacing}
    config = FlowControlConfig(
        detector=CapacityDetectorConfig(max_num_seqs=1000, kv_tokens=10_000_000),
        pacing=PrefillPacingConfig(**pacing),  # type: ignore[arg-type]
        default_ttl_s=None,
    )
    script = Script(config, endpoints=0)
    script.add(endpoint("a"))
    return script


def test_batch_prompts_go_one_budget_at_a_time() -> None:
    script = paced()
    batch = [script.arrive(-1, prompt_tokens=400) for _ in range(5)]
    assert script.dispatched() == batch[:2]
    script.advance(0.41)  # the first 400 tokens are done by estimate
    assert script.dispatched() == batch[:3]


def test_a_prompt_beyond_the_budget_goes_alone() -> None:
    script = paced()
    large, small = script.arrive(-1, prompt_tokens=5000), script.arrive(-1, prompt_tokens=10)
    assert script.dispatched() == [large]
    script.advance(5.01)
    assert script.dispatched() == [large, small]


def test_interactive_prompts_are_never_paced() -> None:
    script = paced()
    interactive = [script.arrive(5, prompt_tokens=5000) for _ in range(5)]
    assert script.dispatched() == interactive


def test_batch_waits_for_an_interactive_first_token() -> None:
    script = paced()
    urgent = script.arrive(5, prompt_tokens=900, is_streaming=True)
    batch = script.arrive(-1, prompt_tokens=100)
    script.advance(0.5)
    assert script.dispatched() == [urgent]
    script.send(OutputObserved(urgent, 1))
    assert script.dispatched() == [urgent, batch]


def test_the_hold_is_bounded_so_that_batch_is_not_starved() -> None:
    script = paced(max_hold_s=2.0)
    batch = [script.arrive(-1, prompt_tokens=400) for _ in range(40)]
    for _ in range(400):  # a steady stream: there is always an interactive first token outstanding
        script.arrive(5, prompt_tokens=60)
        script.advance(0.05)
    served = [request for request in script.dispatched() if request in batch]
    # 20 s, a hold of 2 s each: ten times at least one prompt, at most a budget's worth (three prompts).
    assert 8 <= len(served) <= 30


@pytest.mark.parametrize("switch", [{"enabled": False}, {"hold": False}])
def test_switches(switch: dict[str, bool]) -> None:
    script = paced(**switch)
    script.arrive(5, prompt_tokens=900)
    batch = script.arrive(-1, prompt_tokens=400)
    assert batch in script.dispatched()


def test_a_rate_thought_too_high_is_corrected_by_the_engines_counter() -> None:
    """The engine does 100 tokens a second, not 1,000: what is owed is not piled up."""
    script = paced()
    a = endpoint("a")
    batch = [script.arrive(-1, prompt_tokens=500) for _ in range(40)]
    done, finished = 0.0, 0
    for _ in range(1000):
        script.advance(0.1)
        running = [request for request in script.dispatched() if request in batch][finished:]
        done += 10
        while running and done >= 500:
            done -= 500
            finished += 1
            running.pop(0)
        if not running:
            done = 0.0
        script.sample(
            a, running_requests=len(running), waiting_requests=0, prompt_tokens_total=finished * 500
        )
        in_engine = len(script.dispatched()) - finished
        assert in_engine <= 4
    # Nothing is lost either: 100 s at 100 tokens a second are 20 prompts.
    assert 17 <= finished <= 20


def test_an_engine_with_a_queue_takes_no_more_batch() -> None:
    script = paced(waiting_closes_after_s=1.0)
    a = endpoint("a")
    script.arrive(-1, prompt_tokens=1)
    for _ in range(12):
        script.advance(0.1)
        script.sample(a, running_requests=1, waiting_requests=3)
    held = script.arrive(-1, prompt_tokens=1)
    assert held not in script.dispatched()
    urgent = script.arrive(5, prompt_tokens=1)
    assert urgent in script.dispatched()
    script.advance(0.1)
    script.sample(a, running_requests=4, waiting_requests=0)
    assert held in script.dispatched()


def test_requests_that_end_before_their_first_token_free_their_budget() -> None:
    script = paced()
    first, second = (script.arrive(-1, prompt_tokens=1000) for _ in range(2))
    script.cancel(first)
    assert script.dispatched() == [first, second]
