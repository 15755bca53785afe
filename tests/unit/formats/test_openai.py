"""Request bodies: what is read, what is refused, and that nothing raises."""

from __future__ import annotations

import json
from typing import Any

import pytest

from extproc.formats.openai import MAX_COUNT, ApiKind, BodyProblem, ParsedBody, api_kind, parse_body


def _parse(kind: ApiKind = ApiKind.COMPLETIONS, /, **fields: Any) -> ParsedBody:
    found = parse_body(kind, json.dumps({"model": "m", **fields}).encode())
    assert isinstance(found, ParsedBody)
    return found


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/v1/chat/completions", ApiKind.CHAT),
        ("/v1/chat/completions?api-version=1", ApiKind.CHAT),
        ("/v1/chat/completions/", ApiKind.CHAT),
        ("/openai/v1/completions", ApiKind.COMPLETIONS),
        ("/v1/messages?beta=true", ApiKind.MESSAGES),
        ("/v1/messages/count_tokens", ApiKind.UNQUEUED),
        ("/v1/embeddings", ApiKind.EMBEDDINGS),
        ("/v1/responses", ApiKind.RESPONSES),
        ("/inference/v1/generate", ApiKind.GENERATE),
        ("/tokenize", ApiKind.UNQUEUED),
        ("/v1/chat%2Fcompletions", ApiKind.CHAT),
        ("/v1/chat/%63ompletions", ApiKind.CHAT),
        ("/v1/chat/completions%3Fx=/tokenize", ApiKind.UNQUEUED),
        ("/v1/chat/%ff", ApiKind.OPAQUE),
        ("/v1/xcompletions", ApiKind.OPAQUE),
        ("/v1/audio/transcriptions", ApiKind.OPAQUE),
        ("", ApiKind.OPAQUE),
        ("?", ApiKind.OPAQUE),
    ],
)
def test_field_bug_047_paths_are_matched_without_their_query(path: str, kind: ApiKind) -> None:
    assert api_kind(path) is kind


@pytest.mark.parametrize(
    ("prompt", "text_bytes", "token_ids"),
    [
        ("hi", 2, 0),
        (["a", "b"], 2, 0),
        ([1, 2, 3], 0, 3),
        ([[1, 2], [3, 4, 5]], 0, 5),
        ([[1, 2], [], [3]], 0, 3),
        ([], 0, 0),
        ([[]], 0, 0),
        (["a", 1], 2, 0),
        (None, 0, 0),
        ("ab\n", 3, 0),
        ("日本", 6, 0),
    ],
)
def test_field_bug_044_every_form_of_prompt_is_counted(
    prompt: object, text_bytes: int, token_ids: int
) -> None:
    found = _parse(prompt=prompt).prompt
    assert (found.text_bytes, found.token_ids) == (text_bytes, token_ids)


def test_text_length_is_the_same_escaped_or_not() -> None:
    text = "日本語のテキスト " * 10
    escaped = json.dumps({"model": "m", "prompt": text}).encode()
    plain = json.dumps({"model": "m", "prompt": text}, ensure_ascii=False).encode()
    first, second = (parse_body(ApiKind.COMPLETIONS, body) for body in (escaped, plain))
    assert isinstance(first, ParsedBody)
    assert isinstance(second, ParsedBody)
    assert first.prompt.text_bytes == second.prompt.text_bytes == len(text.encode())


@pytest.mark.parametrize(
    ("kind", "fields", "limit"),
    [
        (ApiKind.CHAT, {"max_completion_tokens": "abc", "max_tokens": 16}, 16),
        (ApiKind.CHAT, {"max_completion_tokens": 5, "max_tokens": 16}, 5),
        (ApiKind.CHAT, {"max_tokens": 0}, 0),
        (ApiKind.CHAT, {"max_tokens": -1}, None),
        (ApiKind.CHAT, {"max_tokens": 1.5}, None),
        (ApiKind.CHAT, {"max_tokens": True}, None),
        (ApiKind.CHAT, {"max_tokens": 10**30}, MAX_COUNT),
        (ApiKind.CHAT, {}, None),
        (ApiKind.COMPLETIONS, {}, 16),
        (ApiKind.COMPLETIONS, {"max_tokens": None}, 16),
        (ApiKind.COMPLETIONS, {"max_completion_tokens": 99}, 16),
        (ApiKind.RESPONSES, {"max_output_tokens": 7}, 7),
        (ApiKind.MESSAGES, {"max_tokens": 9}, 9),
        (ApiKind.EMBEDDINGS, {}, 0),
        (ApiKind.GENERATE, {"sampling_params": {"max_tokens": 11}}, 11),
        (ApiKind.GENERATE, {"sampling_params": "x"}, None),
    ],
)
def test_field_bug_052_output_limits(kind: ApiKind, fields: dict[str, object], limit: int | None) -> None:
    assert _parse(kind, **fields).max_output_tokens == limit


@pytest.mark.parametrize(("n", "choices"), [(3, 3), (0, 1), (-2, 1), ("x", 1), (10**6, 128), (None, 1)])
def test_choices(n: object, choices: int) -> None:
    assert _parse(n=n).choices == choices


def test_chat_parts_are_told_apart() -> None:
    content = [
        {"type": "text", "text": "abcd"},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA" * 1000, "format": "wav"}},
        "odd",
        {"type": "tool_result", "content": [{"type": "text", "text": "xy"}]},
    ]
    messages = [{"role": "user", "content": content}, {"role": "assistant", "content": None}]
    found = _parse(ApiKind.CHAT, messages=messages).prompt
    assert [media.kind.value for media in found.media] == ["image", "audio"]
    assert found.text_bytes < 40


def test_the_last_of_a_repeated_key_counts_as_in_the_engine() -> None:
    found = parse_body(ApiKind.CHAT, b'{"model":"a","model":"b","priority":1,"priority":2}')
    assert isinstance(found, ParsedBody)
    assert (found.model, found.priority) == ("b", 2)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"", ""),
        (b"[]", ""),
        (b"null", ""),
        (b'{"a":NaN}', ""),
        (b'{"a":"\xff"}', ""),
        (b'{"a":' + b"[" * 100_000, ""),
        (b'{"model":[]}', "model"),
        (b'{"stream":"true"}', "stream"),
        (b'{"priority":"1"}', "priority"),
        (b'{"priority":1e2}', "priority"),
    ],
)
def test_bad_bodies_are_problems_not_exceptions(body: bytes, field: str) -> None:
    found = parse_body(ApiKind.CHAT, body)
    assert isinstance(found, BodyProblem)
    assert found.field == field
