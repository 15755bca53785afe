"""The resume table: one test per row, and the verdict of combinations."""

import pytest

from extproc.batch.features import TABLE, Classification, Resumability, classify
from extproc.batch.intake import CHAT, COMPLETIONS, EMBEDDINGS
from extproc.batch.traits import rewind_tokens, stop_strings
from extproc.config.batch import ResumeMode

EXACT, ADJUSTED, NEARLY, RESTART = Resumability
GREEDY = {"model": "m", "prompt": "x", "temperature": 0}
CHAT_GREEDY = {"model": "m", "messages": [{"role": "user", "content": "x"}], "temperature": 0}
TOOLS = [{"type": "function", "function": {"name": "f"}}]
IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]

ROWS: list[tuple[str, str, dict[str, object], Resumability, bool]] = [
    ("greedy", COMPLETIONS, {}, EXACT, False),
    ("sampling without seed", COMPLETIONS, {"temperature": 0.7}, EXACT, False),
    ("sampling with seed", COMPLETIONS, {"temperature": 0.7, "seed": 3}, RESTART, False),
    ("several answers", COMPLETIONS, {"temperature": 1.0, "n": 3}, ADJUSTED, False),
    ("several answers", COMPLETIONS, {"prompt": ["a", "b"]}, ADJUSTED, False),
    ("several answers under greedy decoding", COMPLETIONS, {"n": 2}, RESTART, True),
    ("repetition_penalty", COMPLETIONS, {"repetition_penalty": 1.1}, EXACT, False),
    ("frequency_penalty", COMPLETIONS, {"frequency_penalty": 0.5}, NEARLY, False),
    (
        "frequency_penalty with repetition_penalty",
        COMPLETIONS,
        {"frequency_penalty": 0.5, "repetition_penalty": 1.1},
        RESTART,
        False,
    ),
    ("presence_penalty", COMPLETIONS, {"presence_penalty": 0.1}, RESTART, False),
    ("min_tokens", COMPLETIONS, {"min_tokens": 5}, ADJUSTED, False),
    ("stop under greedy decoding", COMPLETIONS, {"stop": "END"}, ADJUSTED, False),
    ("stop under sampling", COMPLETIONS, {"stop": ["END"], "temperature": 1}, NEARLY, False),
    ("bad_words under greedy decoding", COMPLETIONS, {"bad_words": ["no no"]}, ADJUSTED, False),
    ("bad_words under sampling", COMPLETIONS, {"bad_words": ["no no"], "temperature": 1}, NEARLY, False),
    (
        "repetition_detection",
        COMPLETIONS,
        {"repetition_detection": {"max_pattern_size": 4, "min_count": 3}},
        ADJUSTED,
        False,
    ),
    (
        "repetition_detection without known window",
        COMPLETIONS,
        {"repetition_detection": {"max_pattern_size": "4"}},
        RESTART,
        False,
    ),
    ("logprobs of completions", COMPLETIONS, {"logprobs": 0}, ADJUSTED, False),
    ("logprobs of chat", CHAT, {"logprobs": True, "top_logprobs": 2}, RESTART, True),
    ("prompt_logprobs", COMPLETIONS, {"prompt_logprobs": 0}, RESTART, True),
    ("echo", COMPLETIONS, {"echo": True}, ADJUSTED, False),
    ("echo of token ids or log probabilities", COMPLETIONS, {"echo": True, "prompt": [1, 2]}, RESTART, True),
    ("echo of token ids or log probabilities", COMPLETIONS, {"echo": True, "max_tokens": 0}, RESTART, True),
    ("use_beam_search", COMPLETIONS, {"use_beam_search": True}, RESTART, True),
    ("structured outputs", COMPLETIONS, {"structured_outputs": {"choice": ["a"]}}, RESTART, False),
    ("structured outputs", COMPLETIONS, {"guided_json": {}}, RESTART, False),
    ("structured outputs", CHAT, {"response_format": {"type": "json_object"}}, RESTART, False),
    ("tools by force", CHAT, {"tools": TOOLS, "tool_choice": "required"}, RESTART, True),
    ("tools", CHAT, {"tools": TOOLS}, RESTART, True),
    ("multimodal prompt", CHAT, {"messages": IMAGE}, RESTART, True),
    ("prompt_embeds", COMPLETIONS, {"prompt_embeds": "AAAA"}, RESTART, True),
    ("thinking_token_budget", CHAT, {"thinking_token_budget": 9}, RESTART, True),
    ("unknown field", COMPLETIONS, {"vllm_xargs": {"a": 1}}, RESTART, True),
]


@pytest.mark.parametrize(("feature", "endpoint", "fields", "verdict", "is_whole"), ROWS)
def test_row(
    feature: str, endpoint: str, fields: dict[str, object], verdict: Resumability, is_whole: bool
) -> None:
    body = (GREEDY if endpoint == COMPLETIONS else CHAT_GREEDY) | fields
    found = classify(endpoint, body)
    assert found == Classification(verdict, found.features, is_whole)
    assert feature in found.features


def test_every_row_of_the_table_has_a_test() -> None:
    assert {row.feature for row in TABLE} == {feature for feature, *_ in ROWS}


@pytest.mark.parametrize(
    "fields",
    [
        {"ignore_eos": True, "stop_token_ids": [3], "logit_bias": {"5": 1}, "allowed_token_ids": [1, 2]},
        {"top_k": 5, "top_p": 0.5, "min_p": 0.1, "include_stop_str_in_output": True, "best_of": 4},
        {"seed": 3, "n": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "repetition_penalty": 1},
        {"vllm_xargs": None, "response_format": {"type": "text"}, "stop": [], "user": "me", "stream": True},
    ],
)
def test_fields_that_change_nothing_leave_a_greedy_request_exact(fields: dict[str, object]) -> None:
    assert classify(COMPLETIONS, GREEDY | fields).verdict is EXACT


def test_the_worst_row_decides_and_names_itself() -> None:
    found = classify(COMPLETIONS, GREEDY | {"min_tokens": 5, "presence_penalty": 1.0})
    assert (found.verdict, found.features) == (RESTART, ("presence_penalty",))


def test_tools_switched_off_don_t_matter() -> None:
    assert classify(CHAT, CHAT_GREEDY | {"tools": TOOLS, "tool_choice": "none"}).verdict is EXACT


def test_embeddings_are_asked_whole() -> None:
    assert classify(EMBEDDINGS, {"model": "m", "input": "x"}).is_whole


@pytest.mark.parametrize(
    ("verdict", "mode", "resumes"),
    [
        (EXACT, ResumeMode.EXACT, True),
        (ADJUSTED, ResumeMode.EXACT, True),
        (NEARLY, ResumeMode.EXACT, False),
        (NEARLY, ResumeMode.BEST_EFFORT, True),
        (RESTART, ResumeMode.BEST_EFFORT, False),
        (EXACT, ResumeMode.OFF, False),
    ],
)
def test_what_the_operator_allows(verdict: Resumability, mode: ResumeMode, resumes: bool) -> None:
    assert Classification(verdict).can_resume(mode) is resumes


def test_how_far_to_step_back() -> None:
    assert rewind_tokens(GREEDY) == 0
    assert rewind_tokens(GREEDY | {"bad_words": ["ab", "né"]}) == 3
    assert rewind_tokens({"repetition_detection": {"max_pattern_size": 4, "min_count": 3}}) == 11


@pytest.mark.parametrize(
    "garbage", [{"stop": 5}, {"bad_words": 5}, {"messages": "x"}, {"tools": 3, "n": "x"}]
)
def test_wrong_types_are_left_to_the_engine(garbage: dict[str, object]) -> None:
    classify(CHAT, CHAT_GREEDY | garbage)
    assert stop_strings(garbage) == ()
    assert rewind_tokens(garbage) == 0
