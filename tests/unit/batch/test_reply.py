"""Replies rebuilt from generations: shapes, usage, log probabilities, several answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from extproc.batch.intake import CHAT, COMPLETIONS
from extproc.batch.progress import Generation, Stats
from extproc.batch.reply import ReplyHead, build_reply, failure_line, result_line, split_logprobs

HEAD = ReplyHead(id="cmpl-1", model="m", created=5)


def generation(
    ids: list[int], text: str, finish: str = "stop", prompt: tuple[int, ...] = (1, 2, 3)
) -> Generation:
    made = Generation(prompt_ids=prompt, finish_reason=finish)
    for token in ids[:-1]:
        made.append((token,), "")
    made.append((ids[-1],), text)
    return made


def reply(endpoint: str, body: dict[str, Any], *generations: Generation) -> dict[str, Any]:
    built: dict[str, Any] = json.loads(build_reply(endpoint, body, generations, HEAD))
    return built


def test_completion() -> None:
    built = reply(COMPLETIONS, {"prompt": "p"}, generation([7, 8], "hi"))
    assert built["object"] == "text_completion"
    assert built["choices"] == [
        {"index": 0, "text": "hi", "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    ]
    assert built["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def test_chat_with_token_ids() -> None:
    built = reply(CHAT, {"messages": [], "return_token_ids": True}, generation([7, 8], "hi"))
    (choice,) = built["choices"]
    assert choice["message"] == {"role": "assistant", "content": "hi"}
    assert (choice["token_ids"], built["prompt_token_ids"]) == ([7, 8], [1, 2, 3])


def test_echo_puts_the_prompt_in_front() -> None:
    built = reply(COMPLETIONS, {"prompt": "p ", "echo": True}, generation([7], "hi"))
    assert built["choices"][0]["text"] == "p hi"


def test_usage_counts_each_prompt_once_and_every_answer() -> None:
    body = {"prompt": ["a", "b"], "n": 2, "temperature": 1.0}
    parts = [generation([1], "x", prompt=(1, 2))] * 2 + [generation([1, 2], "y", prompt=(1, 2, 3))] * 2
    built = reply(COMPLETIONS, body, *parts)
    assert [choice["index"] for choice in built["choices"]] == [0, 1, 2, 3]
    assert built["usage"] == {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}


def test_servers_without_token_ids_are_believed() -> None:
    made = Generation(finish_reason="stop", reported=(4, 9))
    made.append((), "hello")
    usage = reply(COMPLETIONS, {"prompt": "p"}, made)["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (4, 9)


def test_cached_tokens_are_those_of_the_first_leg() -> None:
    made = generation([7], "hi")
    made.cached_tokens = 2
    usage = reply(COMPLETIONS, {"prompt": "p"}, made)["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 2}


def test_log_probabilities_are_joined_with_moved_offsets() -> None:
    pieces = [
        {"text_offset": [0], "token_logprobs": [-0.5], "tokens": ["he"], "top_logprobs": [{"he": -0.5}]},
        # A continuation counts its offsets from its own start.
        {"text_offset": [0], "token_logprobs": [-0.1], "tokens": ["llo"], "top_logprobs": [{"llo": -0.1}]},
        {"text_offset": [3], "token_logprobs": [None], "tokens": ["!"], "top_logprobs": [None]},
    ]
    made = Generation(prompt_ids=(1,), finish_reason="length")
    for token, piece in enumerate(pieces):
        text = piece["tokens"][0]
        made.append((token,), str(text), split_logprobs(json.dumps(piece).encode(), 1))
    logprobs = reply(COMPLETIONS, {"prompt": "p", "logprobs": 1}, made)["choices"][0]["logprobs"]
    assert logprobs == {
        "text_offset": [0, 2, 5],
        "token_logprobs": [-0.5, -0.1, None],
        "tokens": ["he", "llo", "!"],
        "top_logprobs": [{"he": -0.5}, {"llo": -0.1}, None],
    }


def test_log_probabilities_that_do_not_fit_their_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="1 tokens came with 2 tokens"):
        split_logprobs(b'{"tokens":["a"],"token_logprobs":[0.0]}', 2)


def test_lines_of_both_files() -> None:
    stats = Stats(attempts=3, evictions=2, resumed_tokens=40, queue_s=1.23456)
    line = json.loads(
        result_line(
            request_id="b-1", custom_id="c", status=200, reply=b'{"a":1}', stats=stats, verdict="exact"
        )
    )
    assert line["response"] == {"status_code": 200, "request_id": "b-1", "body": {"a": 1}}
    assert line["error"] is None
    assert line["extproc"]["evictions"] == 2
    assert line["extproc"]["queue_s"] == 1.235
    failed = json.loads(
        failure_line(request_id="b-1", custom_id="c", code="batch_expired", message="late", stats=stats)
    )
    assert failed["response"] is None
    assert failed["error"] == {"code": "batch_expired", "message": "late"}
