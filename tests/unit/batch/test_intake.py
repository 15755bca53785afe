"""Checking input lines: every kind of bad line is named with its line number, and nothing else is refused."""

import json

import pytest

from extproc.batch.intake import CHAT, COMPLETIONS, Intake, IntakeLimits
from extproc.batch.job import LineError


def line(custom_id: str = "a", **changes: object) -> bytes:
    record: dict[str, object] = {
        "custom_id": custom_id,
        "method": "POST",
        "url": COMPLETIONS,
        "body": {"model": "m", "prompt": "hello", "max_tokens": 4},
    }
    record.update(changes)
    return json.dumps({key: value for key, value in record.items() if value is not ...}).encode()


def errors_of(
    *lines: bytes, endpoint: str = COMPLETIONS, limits: IntakeLimits | None = None
) -> list[LineError]:
    intake = Intake(endpoint, limits or IntakeLimits())
    for number, raw in enumerate(lines, start=1):
        intake.take(raw, number)
    return intake.conclude()


def test_good_lines_and_blank_lines_pass() -> None:
    intake = Intake(COMPLETIONS, IntakeLimits())
    assert intake.take(line("a"), 1)
    assert not intake.take(b"  \r\n", 2)
    assert intake.take(line("b", body={"model": "m", "prompt": [1, 2, 3]}), 3)
    assert intake.conclude() == []
    assert (intake.is_valid, intake.requests) == (True, 2)


@pytest.mark.parametrize(
    ("raw", "code", "param"),
    [
        (b'{"custom_id": ', "invalid_json_line", None),
        (b"[1]", "invalid_line", None),
        (line(custom_id=...), "invalid_line", None),
        (line(custom_id=7), "invalid_line", "custom_id"),
        (line(""), "invalid_custom_id", "custom_id"),
        (line("x" * 513), "invalid_custom_id", "custom_id"),
        (line(method="GET"), "invalid_method", "method"),
        (line(url="/v1/images"), "invalid_url", "url"),
        (line(url=CHAT), "invalid_url", "url"),
        (line(body=...), "invalid_line", None),
        (line(body="text"), "invalid_body", "body"),
        (line(body={"prompt": "x"}), "invalid_body", "body"),
        (line(body={"model": 3, "prompt": "x"}), "invalid_body", "body.model"),
        (line(body={"model": "m"}), "invalid_body", "body"),
        (line().replace(b"hello", b"\xff\xfe"), "invalid_encoding", None),
        (line()[:-1] + b', "pad": "' + b"x" * 2000 + b'"}', "line_too_long", None),
    ],
)
def test_each_bad_line_is_named(raw: bytes, code: str, param: str | None) -> None:
    limits = IntakeLimits(max_line_bytes=1500)
    (error,) = errors_of(line("first"), raw, line("last"), limits=limits)
    assert (error.code, error.line, error.param) == (code, 2, param)
    assert error.message


def test_repeated_custom_id_is_found_far_apart() -> None:
    lines = [line(f"id-{number}") for number in range(2000)]
    (error,) = errors_of(*lines, line("id-7"))
    assert (error.code, error.line) == ("duplicate_custom_id", 2001)


def test_models_must_agree_and_be_served() -> None:
    other = line("b", body={"model": "n", "prompt": "x"})
    assert [error.code for error in errors_of(line(), other)] == ["mismatched_model"]
    limits = IntakeLimits(models=frozenset({"m"}))
    assert [error.code for error in errors_of(line(), other, limits=limits)] == ["model_not_found"]


def test_reported_errors_are_bounded_and_the_rest_counted() -> None:
    errors = errors_of(*[b"x"] * 50, limits=IntakeLimits(max_reported_errors=10))
    assert len(errors) == 11
    assert errors[-1].message == "40 more lines are wrong"


def test_too_many_lines_and_none_at_all() -> None:
    limits = IntakeLimits(max_lines=2)
    assert [error.code for error in errors_of(line("a"), line("b"), line("c"), limits=limits)] == [
        "too_many_tasks"
    ]
    assert [error.code for error in errors_of(b"\n")] == ["empty_file"]


@pytest.mark.parametrize("depth", [300, 1_000, 100_000])
@pytest.mark.parametrize("place", ["body", "prompt", "unknown"])
def test_a_line_that_is_nested_too_deeply_is_named_and_not_stumbled_over(place: str, depth: int) -> None:
    nested = b"[" * depth + b"]" * depth
    raw = {
        "body": line(body="X").replace(b'"X"', nested),
        "prompt": line(body={"model": "m", "prompt": "X"}).replace(b'"X"', nested),
        "unknown": line(body={"model": "m", "prompt": "a", "x": "X"}).replace(b'"X"', nested),
    }[place]
    (error,) = errors_of(raw)
    assert (error.code, error.line) == ("invalid_json_line", 1)
    assert "nested more than 200 deep" in error.message


def test_many_brackets_are_not_depth() -> None:
    text = "[" * 5_000 + '"\\"{' * 100
    messages = [{"role": "user", "content": text}] * 300
    assert errors_of(line(url=CHAT, body={"model": "m", "messages": messages}), endpoint=CHAT) == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 10**9}, "body.n"),
        ({"n": 129}, "body.n"),
        ({"n": 100, "prompt": ["a"] * 21}, "body.prompt"),
        ({"prompt": ["a"] * 2_049}, "body.prompt"),
        ({"prompt": [[1]] * 2_049}, "body.prompt"),
    ],
)
def test_more_answers_than_a_line_may_ask_for_are_refused(fields: dict[str, object], param: str) -> None:
    """Each answer is a request of its own: a line could ask for a billion of them, and end the process."""
    (error,) = errors_of(line(body={"model": "m", "prompt": "a", **fields}))
    assert (error.code, error.param) == ("too_many_answers", param)


@pytest.mark.parametrize(
    "fields",
    [{"n": 128}, {"n": "many"}, {"n": -5}, {"n": None}, {"n": 1.5}, {"prompt": [1] * 5_000}, {"prompt": []}],
)
def test_what_the_engine_has_to_judge_passes(fields: dict[str, object]) -> None:
    assert errors_of(line(body={"model": "m", "prompt": "a", **fields})) == []


def test_choices_are_bounded_where_there_is_no_prompt() -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "a"}], "n": 10**9}
    (error,) = errors_of(line(url=CHAT, body=body), endpoint=CHAT)
    assert (error.code, error.param) == ("too_many_answers", "body.n")
