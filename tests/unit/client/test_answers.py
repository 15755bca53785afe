"""Decoding of stream events: vLLM's shapes, odd usage blocks, error objects."""

import pytest

from extproc.client.answers import EndKind, StreamEnd, UsageCounts, decode_error, decode_event, decode_usage


def test_completions_first_chunk_carries_prompt_and_first_token() -> None:
    payload = (
        b'{"id":"cmpl-1","object":"text_completion","choices":[{"index":0,"text":"","logprobs":null,'
        b'"finish_reason":null,"stop_reason":null,"prompt_token_ids":[260,290],"token_ids":[297]}]}'
    )
    (piece,) = decode_event(payload, 3.5).pieces
    assert (piece.at, piece.prompt_token_ids, piece.token_ids) == (3.5, (260, 290), (297,))
    assert not piece.is_role_only
    assert piece.logprobs is None


def test_field_bug_143_role_chunk_is_no_token() -> None:
    payload = (
        b'{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,'
        b'"finish_reason":null}],"prompt_token_ids":[1,87],"prompt_text":null}'
    )
    (piece,) = decode_event(payload, 0.0).pieces
    assert piece.is_role_only
    assert piece.prompt_token_ids == (1, 87)


def test_empty_delta_with_a_token_is_a_token() -> None:
    (piece,) = decode_event(b'{"choices":[{"index":2,"delta":{},"token_ids":[5]}]}', 0.0).pieces
    assert (piece.index, piece.token_ids, piece.text, piece.is_role_only) == (2, (5,), "", False)


def test_field_bug_061_usage_chunk_with_empty_choices() -> None:
    event = decode_event(b'{"choices":[],"usage":{"prompt_tokens":4,"completion_tokens":9}}', 0.0)
    assert event.pieces == ()
    assert event.usage == UsageCounts(4, 9, None)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b'"n/a"', None),
        (
            b'{"prompt_tokens":-1,"completion_tokens":"12","prompt_tokens_details":3}',
            UsageCounts(None, 12, None),
        ),
        (b'{"prompt_tokens":true,"completion_tokens":1.5}', UsageCounts(None, None, None)),
        (b'{"prompt_tokens":7,"prompt_tokens_details":{"cached_tokens":"4"}}', UsageCounts(7, None, 4)),
        (b"null", None),
    ],
)
def test_field_bug_062_odd_usage_is_read_leniently(raw: bytes, expected: UsageCounts | None) -> None:
    assert decode_usage(raw) == expected


def test_error_chunk() -> None:
    event = decode_event(
        b'{"error":{"message":"EngineCore died","type":"InternalServerError","code":500}}', 0.0
    )
    assert event.error == ("EngineCore died", "500")
    assert decode_event(b'{"choices":[],"error":null}', 0.0).error is None


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b'{"detail":"Not Found"}', ("Not Found", None)),
        (b'{"error":"plain"}', ("plain", None)),
        (b"upstream connect error", ("upstream connect error", None)),
    ],
)
def test_errors_of_other_shapes(raw: bytes, expected: tuple[str, str | None]) -> None:
    assert decode_error(raw) == expected


def test_garbage_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="not a completion chunk"):
        decode_event(b"{", 0.0)


def test_retry_after_is_read_only_when_plain() -> None:
    def end(value: str) -> StreamEnd:
        return StreamEnd(kind=EndKind.REFUSED, at=0.0, status=429, headers={"retry-after": value})

    assert end("7").retry_after_s == 7.0
    assert end("Wed, 21 Oct 2026 07:28:00 GMT").retry_after_s is None
