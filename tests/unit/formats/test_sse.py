"""The SSE splitter: payloads do not depend on where the network cuts the bytes."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from extproc.formats.sse import SseSplitter

STREAM = (
    b': keep-alive\n\ndata: {"text":"caf\xc3\xa9 \xe2\x82\xac"}\n\n'
    b"event: message\r\ndata:no space\r\nid: 7\r\n\r\n"
    b"data: two\ndata: lines\n\ndata:\n\ndata: [DONE]\n\n"
)
PAYLOADS = ['{"text":"café €"}'.encode(), b"no space", b"two\nlines", b"", b"[DONE]"]


def split(chunks: list[bytes], max_event_bytes: int = 1024) -> tuple[list[bytes], SseSplitter]:
    splitter = SseSplitter(max_event_bytes)
    events = [event for chunk in chunks for event in splitter.feed(chunk)]
    return events + splitter.finish(), splitter


@given(st.lists(st.integers(min_value=0, max_value=len(STREAM)), max_size=12))
def test_field_bug_058_065_cuts_never_change_the_payloads(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    chunks = [STREAM[start:end] for start, end in itertools.pairwise(edges)]
    assert split(chunks)[0] == PAYLOADS


def test_last_event_without_blank_line_is_still_delivered() -> None:
    assert split([b"data: a\n\ndata: b"])[0] == [b"a", b"b"]


def test_field_bug_064_oversize_event_is_dropped_alone() -> None:
    big = b"data: " + b"x" * 5000
    events, splitter = split([b"data: a\n\n", big[:2000], big[2000:4000], big[4000:] + b"\n\ndata: b\n\n"])
    assert events == [b"a", b"b"]
    assert splitter.overflows == 1


def test_oversize_event_over_many_lines_is_dropped_alone() -> None:
    events, splitter = split([b"data: " + b"x" * 600 + b"\n"] * 3 + [b"\ndata: b\n\n"])
    assert events == [b"b"]
    assert splitter.overflows == 1
