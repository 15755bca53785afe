"""What responses say of themselves, in every shape seen in the field."""

from __future__ import annotations

import json

import pytest

from extproc.formats.usage import UsageCounts, read_answer, read_event, read_usage


def _event(**fields: object) -> bytes:
    return json.dumps(fields).encode()


def test_a_role_alone_is_no_output() -> None:
    """Field bug 143."""
    for delta in ({"role": "assistant"}, {"role": "assistant", "content": ""}, {"content": None}, {}):
        assert read_event(_event(choices=[{"delta": delta, "finish_reason": None}])).tokens == 0
    assert read_event(_event(choices=[{"delta": {"content": "a"}}])).tokens == 1
    assert read_event(_event(choices=[{"delta": {"reasoning_content": "a"}}])).tokens == 1
    assert read_event(_event(choices=[{"delta": {"tool_calls": [{"index": 0}]}}])).tokens == 1


def test_field_bug_145_token_ids_count_where_they_are_given() -> None:
    assert read_event(_event(choices=[{"text": "", "token_ids": [1, 2, 3]}])).tokens == 3
    assert read_event(_event(choices=[{"text": "a"}, {"text": "b"}])).tokens == 2


def test_field_bug_061_usage_with_empty_choices() -> None:
    found = read_event(_event(choices=[], usage={"prompt_tokens": 3, "completion_tokens": 5}))
    assert found.usage == UsageCounts(3, 5, None)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ("n/a", None),
        (3, None),
        (None, None),
        ({"completion_tokens": "12"}, UsageCounts(None, 12, None)),
        ({"completion_tokens": "1.5", "prompt_tokens": -1}, UsageCounts()),
        ({"prompt_tokens": {"a": 1}, "completion_tokens": [1]}, UsageCounts()),
        ({"prompt_tokens": 4, "prompt_tokens_details": 3}, UsageCounts(4, None, None)),
        ({"prompt_tokens": 4, "prompt_tokens_details": {"cached_tokens": 2}}, UsageCounts(4, None, 2)),
        ({"input_tokens": 4, "output_tokens": 6, "cache_read_input_tokens": 1}, UsageCounts(4, 6, 1)),
        ({"input_tokens": 4, "input_tokens_details": {"cached_tokens": 3}}, UsageCounts(4, None, 3)),
        ({"completion_tokens": 10**40}, UsageCounts()),
    ],
)
def test_field_bug_062_malformed_usage_is_ignored(usage: object, expected: UsageCounts | None) -> None:
    assert read_usage(json.dumps(usage).encode()) == expected


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[1]", b"\xff", b'{"usage":NaN}', b'{"choices":5}', b"{" * 9999]
)
def test_odd_events_say_nothing(data: bytes) -> None:
    found = read_event(data)
    assert (found.tokens, found.is_last, found.usage) == (0, False, None)


def test_ends() -> None:
    assert read_event(b"[DONE]").is_last
    assert read_event(_event(choices=[{"delta": {}, "finish_reason": "stop"}])).is_last
    assert read_event(_event(type="message_stop")).is_last
    done = read_event(
        _event(type="response.completed", response={"usage": {"input_tokens": 1, "output_tokens": 2}})
    )
    assert done.is_last
    assert done.usage == UsageCounts(1, 2, None)


def test_anthropic_and_responses_deltas() -> None:
    assert (
        read_event(_event(type="content_block_delta", delta={"type": "text_delta", "text": "a"})).tokens == 1
    )
    assert read_event(_event(type="response.output_text.delta", delta="ab")).tokens == 1
    assert read_event(_event(type="response.created", response={})).tokens == 0
    start = read_event(_event(type="message_start", message={"usage": {"input_tokens": 9}}))
    assert start.usage == UsageCounts(9, None, None)


def test_usage_is_found_at_the_end_of_a_cut_answer() -> None:
    whole = json.dumps(
        {"choices": [{"text": "x" * 5000}], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}
    )
    assert read_answer(whole.encode()) == UsageCounts(1, 2, None)
    assert read_answer(whole.encode()[1000:]) == UsageCounts(1, 2, None)
    assert read_answer(b"") is None
