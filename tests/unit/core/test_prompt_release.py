"""Tokens that leave the load at the first output: the count is then of prompts in prefill."""

from __future__ import annotations

import pytest

from extproc.core.concurrency import ConcurrencyDetectorConfig
from extproc.core.config import FlowControlConfig
from extproc.core.events import OutputObserved
from extproc.core.eviction import DeficitSizingConfig, EvictionConfig
from extproc.core.footprint import FootprintConfig
from extproc.errors import ConfigError
from tests.support.core import Script


def by_prompts(*, releases: bool, evicts: bool = False) -> Script:
    """One endpoint for 1,000 prompt tokens."""
    return Script(
        FlowControlConfig(
            detector=ConcurrencyDetectorConfig(mode="tokens", max_token_concurrency=1000),
            footprint=FootprintConfig(release_at_first_output=releases),
            eviction=EvictionConfig(enabled=evicts, sizing=DeficitSizingConfig()),
        )
    )


def tokens_in_flight(script: Script) -> int:
    return sum(endpoint.inflight_tokens for endpoint in script.controller.statistics().endpoints)


def test_a_first_output_makes_room_for_the_next_prompt() -> None:
    script = by_prompts(releases=True)
    first, second, third = (script.arrive(prompt_tokens=600) for _ in range(3))
    assert script.dispatched() == [first, second]
    script.send(OutputObserved(first, 1))
    assert script.dispatched() == [first, second, third]
    script.send(OutputObserved(first, 2))
    assert tokens_in_flight(script) == 1200


def test_without_it_a_prompt_weighs_until_the_end() -> None:
    script = by_prompts(releases=False)
    first, second, third = (script.arrive(prompt_tokens=600) for _ in range(3))
    script.send(OutputObserved(first, 1))
    assert script.dispatched() == [first, second]
    script.finish(first)
    assert script.dispatched() == [first, second, third]


def test_the_books_are_empty_when_all_have_ended() -> None:
    script = by_prompts(releases=True)
    requests = [script.arrive(prompt_tokens=600) for _ in range(2)]
    script.send(OutputObserved(requests[0], 1))
    for request in requests:
        script.finish(request)
    assert tokens_in_flight(script) == 0


def test_a_victim_whose_output_shows_while_it_is_revoked_is_counted_once() -> None:
    script = by_prompts(releases=True, evicts=True)
    victim = script.arrive(-1, prompt_tokens=1000)
    urgent = script.arrive(10, prompt_tokens=500)
    script.send(OutputObserved(victim, 1))
    assert script.dispatched() == [victim, urgent]
    script.finish(victim)
    script.finish(urgent)
    assert tokens_in_flight(script) == 0
    again = script.arrive(10, prompt_tokens=500)
    assert script.dispatched()[-1] == again


def test_counted_output_cannot_be_released_early() -> None:
    with pytest.raises(ConfigError, match="release_at_first_output"):
        FootprintConfig(add_estimated_output_tokens=True, release_at_first_output=True)
