"""Checking a file block by block: the result and the line index don't depend on where blocks end."""

from __future__ import annotations

import itertools
import json

from hypothesis import given
from hypothesis import strategies as st

from extproc.batch.inputs import OFFSET
from extproc.batch.intake import COMPLETIONS, IntakeLimits
from extproc.batch.validation import InputCheck


def line(number: int) -> bytes:
    body = {"model": "m", "prompt": "x" * number}
    record = {"custom_id": f"c{number}", "method": "POST", "url": COMPLETIONS, "body": body}
    return json.dumps(record).encode()


def check(blocks: list[bytes], limit: int = 10_000) -> tuple[list[int], InputCheck]:
    checked = InputCheck(COMPLETIONS, IntakeLimits(max_line_bytes=limit))
    for block in blocks:
        checked.feed(block)
    checked.finish()
    index = checked.take_index()
    return [offset for (offset,) in OFFSET.iter_unpack(index)], checked


@given(st.lists(st.integers(0, 1500), max_size=8), st.booleans())
def test_blocks_may_end_anywhere(cuts: list[int], ends_with_newline: bool) -> None:
    lines = [line(number) for number in range(1, 9)]
    content = b"\n\n".join(lines) + (b"\n" if ends_with_newline else b"")
    edges = sorted({0, len(content), *(cut for cut in cuts if cut < len(content))})
    blocks = [content[start:end] for start, end in itertools.pairwise(edges)]
    offsets, checked = check(blocks)
    assert checked.intake.errors == []
    assert checked.intake.requests == 8
    assert len(offsets) == 9
    assert offsets[-1] == len(content)
    for number, raw in enumerate(lines):
        assert content[offsets[number] : offsets[number + 1]].strip() == raw


def test_oversize_line_is_named_and_skipped_without_keeping_it() -> None:
    checked = InputCheck(COMPLETIONS, IntakeLimits(max_line_bytes=1000))
    checked.feed(line(1) + b"\n")
    for _ in range(100):
        checked.feed(b"x" * 5000)
    checked.feed(b"\n" + line(2) + b"\n")
    errors = checked.finish()
    assert [(error.code, error.line) for error in errors] == [("line_too_long", 2)]
    assert checked.intake.requests == 3


def test_oversize_last_line_without_newline() -> None:
    _, checked = check([line(1) + b"\n", b"x" * 5000, b"y" * 5000], limit=1000)
    assert [(error.code, error.line) for error in checked.intake.errors] == [("line_too_long", 2)]


def test_empty_and_blank_files() -> None:
    for content in (b"", b"\n\n  \n"):
        _, checked = check([content])
        assert [error.code for error in checked.intake.errors] == ["empty_file"]
