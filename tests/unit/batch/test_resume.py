"""Legs of a request, one feature each; tests/property/test_resume_identity.py compares whole answers."""

from __future__ import annotations

import pytest

from extproc.batch.intake import CHAT, COMPLETIONS
from extproc.batch.progress import Generation
from extproc.batch.resume import Cut, Leg, Part, continue_leg, find_cut, first_leg, parts_of, token_limit

ONLY = Part(0, 0, 0)
BODY: dict[str, object] = {"model": "m", "prompt": "p", "temperature": 0, "max_tokens": 20}


def saved(*pieces: tuple[list[int], str]) -> Generation:
    generation = Generation(prompt_ids=(1, 2))
    for ids, text in pieces:
        generation.append(ids, text)
    return generation


def continued(
    body: dict[str, object], generation: Generation, endpoint: str = COMPLETIONS, part: Part = ONLY
) -> Leg:
    leg = continue_leg(endpoint, body, part, generation, 20)
    assert leg is not None
    return leg


def test_first_leg_is_the_clients_request_streamed_with_ids() -> None:
    leg = first_leg(COMPLETIONS, {**BODY, "echo": True, "stream_interval": 10, "user": None}, ONLY)
    streaming = {"stream": True, "return_token_ids": True, "stream_options": {"include_usage": True}}
    assert leg == Leg(COMPLETIONS, {**BODY, **streaming})


def test_reasoning_is_asked_for_since_without_it_there_are_no_ids() -> None:
    leg = first_leg(CHAT, {"model": "m", "messages": [], "include_reasoning": False}, ONLY)
    assert leg.body["include_reasoning"] is True


def test_parts_are_prompts_times_choices() -> None:
    body = {"model": "m", "prompt": [[1], [2]], "n": 2, "seed": 7, "temperature": 1}
    parts = parts_of(COMPLETIONS, body)
    assert parts == [Part(0, 0, 0), Part(1, 0, 1), Part(2, 1, 0), Part(3, 1, 1)]
    legs = [first_leg(COMPLETIONS, body, part).body for part in parts]
    assert [leg["prompt"] for leg in legs] == [[1], [1], [2], [2]]
    assert [leg["seed"] for leg in legs] == [7, 8, 7, 8]
    assert all("n" not in leg for leg in legs)


def test_a_prompt_of_token_ids_is_one_prompt() -> None:
    assert len(parts_of(COMPLETIONS, {"prompt": [1, 2, 3]})) == 1


def test_continuation_keeps_sampling_and_drops_what_made_the_prompt() -> None:
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "x"}],
        "temperature": 0,
        "top_p": 0.5,
        "cache_salt": "s",
        "logit_bias": {"5": 1},
        "logprobs": False,
        "max_completion_tokens": 20,
        "chat_template_kwargs": {"a": 1},
    }
    leg = continued(body, saved(([9], "x")), CHAT)
    assert leg.path == COMPLETIONS
    assert leg.resumed_tokens == 1
    assert leg.body["prompt"] == [1, 2, 9]
    assert leg.body["max_tokens"] == 19
    kept = {"model", "temperature", "top_p", "cache_salt", "logit_bias"}
    assert set(leg.body) == kept | {"prompt", "max_tokens", "stream", "return_token_ids", "stream_options"}


@pytest.mark.parametrize(("asked", "sent"), [(0, 0), (1, 0), (5, 3)])
def test_min_tokens_shrink_to_what_is_left(asked: int, sent: int) -> None:
    assert continued({**BODY, "min_tokens": asked}, saved(([9], "x"), ([8], "y"))).body["min_tokens"] == sent


def test_frequency_penalty_of_saved_tokens_goes_into_the_bias() -> None:
    body = {**BODY, "frequency_penalty": 0.5, "logit_bias": {"9": 2}}
    leg = continued(body, saved(([9], "x"), ([8], "y"), ([9], "x")))
    assert leg.body["logit_bias"] == {"9": 1.0, "8": -0.5}
    assert leg.body["frequency_penalty"] == 0.5


def test_a_bias_beyond_its_range_means_restart() -> None:
    generation = saved(*[([9], "x")] * 60)
    assert continue_leg(COMPLETIONS, {**BODY, "frequency_penalty": 2.0}, ONLY, generation, 100) is None


def test_nothing_saved_or_no_prompt_ids_means_restart() -> None:
    assert continue_leg(COMPLETIONS, BODY, ONLY, saved(), 20) is None
    unknown = Generation()
    unknown.append([9], "x")
    assert continue_leg(COMPLETIONS, BODY, ONLY, unknown, 20) is None


@pytest.mark.parametrize(
    ("endpoint", "body", "limit"),
    [
        (COMPLETIONS, {"max_tokens": 7}, 7),
        (COMPLETIONS, {"max_tokens": None}, 16),
        (COMPLETIONS, {"max_completion_tokens": 7}, 16),
        (CHAT, {"max_tokens": 7}, 7),
        (CHAT, {"max_tokens": 7, "max_completion_tokens": 5}, 5),
        (CHAT, {}, 90),
    ],
)
def test_token_limits(endpoint: str, body: dict[str, object], limit: int) -> None:
    assert token_limit(endpoint, body, prompt_tokens=10, max_model_len=100) == limit


def test_chat_without_limit_or_known_context_length_has_no_limit() -> None:
    assert token_limit(CHAT, {}, 10, None) is None


def test_a_cut_needs_a_token_that_came_alone_with_text() -> None:
    assert find_cut(saved(([9], "x"), ([8], "")), BODY, 20) == Cut(1, 1)
    assert find_cut(saved(([9], "x"), ([8, 7], "yz")), BODY, 20) == Cut(1, 1)
    assert find_cut(saved(([9, 8], "xy")), BODY, 20) == Cut(0, 0)


def test_a_cut_leaves_one_token_to_bring_the_finish_reason() -> None:
    assert find_cut(saved(*[([9], "x")] * 5), BODY, 5) == Cut(4, 4)


def test_words_and_windows_move_the_cut_back() -> None:
    generation = saved(*[([9], "x")] * 10)
    assert find_cut(generation, {**BODY, "bad_words": ["abc"]}, 20) == Cut(7, 7)
    detection = {"max_pattern_size": 2, "min_count": 3}
    assert find_cut(generation, {**BODY, "repetition_detection": detection}, 20) == Cut(5, 5)
