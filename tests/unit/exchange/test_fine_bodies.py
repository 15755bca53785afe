"""Bodies of a million tiny pieces: no client may hold the event loop up for seconds with one request."""

from __future__ import annotations

import pytest
from msgspec import Raw

from extproc.core.types import RequestId
from extproc.exchange.admission import Admission, apply_changes
from extproc.exchange.attributes import NO_HINTS
from extproc.exchange.refusals import Refusal
from extproc.formats.openai import ApiKind
from extproc.formats.prompt import MAX_PIECES, measure_messages, measure_prompt
from extproc.formats.splice import is_too_fine, splice_members
from tests.support.exchange import surroundings
from tests.support.timing import best_of_three

BYTES = 2 << 20


def filled(head: bytes, piece: bytes, end: bytes) -> bytes:
    return head + b",".join([piece] * (BYTES // (len(piece) + 1))) + end


CHAT, PROMPT = b'{"model":"m","messages":[', b'{"model":"m","prompt":['
FINE = {
    "empty messages": (ApiKind.CHAT, filled(CHAT, b"{}", b"]}")),
    "tiny messages": (ApiKind.CHAT, filled(CHAT, b'{"role":"user","content":"a"}', b"]}")),
    "tiny parts": (
        ApiKind.CHAT,
        filled(CHAT + b'{"role":"user","content":[', b'{"type":"text","text":"a"}', b"]}]}"),
    ),
    "empty texts": (ApiKind.COMPLETIONS, filled(PROMPT, b'""', b"]}")),
    "lists of one id": (ApiKind.COMPLETIONS, filled(PROMPT, b"[1]", b"]}")),
    "a priority again and again": (
        ApiKind.CHAT,
        filled(b'{"model":"m","messages":[],', b'"priority":1', b"}"),
    ),
    "a priority beside empty messages": (
        ApiKind.CHAT,
        filled(b'{"priority":1,"model":"m","messages":[', b"{}", b"]}"),
    ),
}
PLAIN = CHAT + b'{"role":"user","content":"' + b"x" * BYTES + b'"}]}'


def admit(kind: ApiKind, body: bytes) -> Admission | Refusal:
    found = surroundings().admitter.admit_json(RequestId(1), kind, body, NO_HINTS, None)
    if isinstance(found, Admission):
        apply_changes(body, found.changes)
    return found


@pytest.mark.parametrize("name", FINE)
def test_field_bug_056_many_pieces_cost_little_more_than_one_long_text(name: str) -> None:
    """They cost 100 to 250 times as much when each was looked at."""
    kind, body = FINE[name]
    assert best_of_three(lambda: admit(kind, body)) < 60 * best_of_three(lambda: admit(ApiKind.CHAT, PLAIN))


def test_beyond_the_limit_a_prompt_counts_by_its_bytes() -> None:
    def messages(count: int) -> Raw:
        return Raw(b"[" + b",".join([b'{"role":"user","content":"abcd"}'] * count) + b"]")

    few, many = measure_messages(messages(MAX_PIECES // 2)), measure_messages(messages(2 * MAX_PIECES))
    assert few.text_parts == MAX_PIECES // 2
    assert many.text_bytes == len(bytes(messages(2 * MAX_PIECES)))
    assert measure_prompt(Raw(b"[" + b",".join([b'"abc"'] * 100) + b"]")).text_bytes == 300


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        (b"[1,2,3]", 3),
        (b"[[1, 2],[3,4,5]]", 5),
        (b"[[],[ ],[7]]", 1),
        (b"[-1, 20\n]", 2),
        (b"[[1],[],[22,3]]", 3),
    ],
)
def test_token_ids_are_counted_exactly(prompt: bytes, ids: int) -> None:
    assert measure_prompt(Raw(prompt)).token_ids == ids


def test_long_texts_and_long_lists_of_ids_are_not_too_fine_to_be_changed() -> None:
    ids = b'{"priority":1,"prompt":[' + b",".join(b"%d" % (n % 9999) for n in range(1_000_000)) + b"]}"
    code = b'{"priority":1,"prompt":"' + b"{},[]:" * 300_000 + b'"}'
    for body in (ids, code):
        assert not is_too_fine(body)
        assert splice_members(body, {"priority": None}) == body.replace(b'"priority":1,', b"")


def test_a_body_too_fine_to_be_changed_is_refused_by_name() -> None:
    found = admit(*FINE["a priority again and again"])
    assert isinstance(found, Refusal)
    assert b"too many JSON values for its priority" in found.body
