"""Answers made from token ids by a render server: what is asked, what is made of the answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from extproc.batch.features import Resumability, classify
from extproc.batch.intake import CHAT, COMPLETIONS
from extproc.batch.parsed import can_be_parsed, derender_question, parsed_reply, rendered_prompt
from extproc.batch.progress import Generation
from extproc.batch.reply import ReplyHead

HEAD = ReplyHead(id="chatcmpl-1", model="m", created=7)
TOOLS = [{"type": "function", "function": {"name": "look"}}]
BODY: dict[str, object] = {"messages": [], "tools": TOOLS, "temperature": 0, "return_token_ids": True}


def finished(reason: str, *, stop: int | str | None = None, text: str = "abc") -> Generation:
    generation = Generation(prompt_ids=(1, 2))
    for token, part in zip((5, 6, 256), (*text[:2], text[2:]), strict=True):
        generation.append([token], part)
    generation.finish_reason, generation.stop_reason = reason, stop
    return generation


def asked_ids(generation: Generation) -> list[int]:
    question: Any = derender_question(BODY | {"stream": True}, [generation])
    assert question["prompt_tokens"] == 2
    assert "stream" not in question["chat_request"]
    ids: list[int] = question["generate_response"]["choices"][0]["token_ids"]
    return ids


def test_the_token_that_ended_an_answer_is_not_shown() -> None:
    assert asked_ids(finished("stop")) == [5, 6]
    assert asked_ids(finished("stop", stop=256)) == [5, 6]
    assert asked_ids(finished("stop", stop="abc")) == [5, 6, 256]
    assert asked_ids(finished("length")) == [5, 6, 256]


def made(message: dict[str, object], generation: Generation) -> Any:
    raw = json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode()
    reply = parsed_reply(raw, BODY, [generation], HEAD)
    assert reply is not None
    return json.loads(reply)


def test_a_reply_says_that_tools_were_called_and_what_it_cost() -> None:
    reply = made({"content": None, "tool_calls": [{"id": "x"}]}, finished("stop"))
    assert reply["choices"][0]["finish_reason"] == "tool_calls"
    assert reply["usage"] == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    assert (reply["id"], reply["created"], reply["model"]) == ("chatcmpl-1", 7, "m")
    assert (reply["prompt_token_ids"], reply["choices"][0]["token_ids"]) == ([1, 2], [5, 6, 256])


@pytest.mark.parametrize(
    ("text", "content", "expected"),
    [("abc", "ab\ufffd", "ab"), ("ab\ufffd", "ab\ufffd", "ab\ufffd"), ("abc", "\ufffd", None)],
    ids=["cut in two", "the model's own", "nothing else"],
)
def test_half_a_character_at_the_end_is_not_shown(text: str, content: str, expected: str | None) -> None:
    reply = made({"content": content, "reasoning": None}, finished("length", text=text))
    assert reply["choices"][0]["message"]["content"] == expected


def test_half_a_character_may_be_the_reasonings() -> None:
    reply = made({"content": None, "reasoning": "hm\ufffd"}, finished("length"))
    assert reply["choices"][0]["message"] == {"content": None, "reasoning": "hm"}


@pytest.mark.parametrize("raw", [b"", b"{}", b'{"choices": []}', b'{"choices": [{"index": 0}]}', b"[1]"])
def test_what_is_no_answer_makes_no_reply(raw: bytes) -> None:
    assert parsed_reply(raw, BODY, [finished("stop")], HEAD) is None


@pytest.mark.parametrize(
    ("rendered", "expected"),
    [
        ({"token_ids": [1, 2], "features": None, "sampling_params": {"stop": []}}, (1, 2)),
        ({"token_ids": [1, 2], "features": {"image": ["x"]}}, None),
        ({"token_ids": [1, 2], "sampling_params": {"structured_outputs": {"json": {}}}}, None),
        ({"token_ids": []}, None),
        ({}, None),
    ],
)
def test_a_prompt_is_usable_when_it_is_nothing_but_ids(
    rendered: dict[str, object], expected: tuple[int, ...] | None
) -> None:
    assert rendered_prompt(json.dumps(rendered).encode()) == expected


def test_tools_are_continued_where_a_render_server_is_at_hand() -> None:
    found = classify(CHAT, BODY, has_renderer=True)
    assert (found.verdict, found.is_whole, found.is_parsed) == (Resumability.ADJUSTED, False, True)
    assert classify(CHAT, BODY).is_whole
    assert classify(CHAT, BODY | {"tool_choice": "required"}, has_renderer=True).is_whole
    seeded = classify(CHAT, BODY | {"temperature": 1.0, "seed": 3}, has_renderer=True)
    assert (seeded.verdict, seeded.is_parsed) == (Resumability.RESTART, True)


@pytest.mark.parametrize("fields", [{"stop": ["x"]}, {"logprobs": True}])
def test_what_ids_alone_do_not_tell_is_not_parsed(fields: dict[str, object]) -> None:
    assert not can_be_parsed(CHAT, BODY | fields)
    assert classify(CHAT, BODY | fields, has_renderer=True).is_whole
    assert can_be_parsed(CHAT, BODY)
    assert not can_be_parsed(COMPLETIONS, BODY)
