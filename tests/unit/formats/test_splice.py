"""Single members change, every other byte stays."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.formats.splice import splice_members


@pytest.mark.parametrize(
    ("body", "changes", "expected"),
    [
        (b'{"model":"a", "x":1e0}', {"model": b'"bb"'}, b'{"model":"bb", "x":1e0}'),
        (b'{"x": "model", "model" : "a" }', {"model": b'"b"'}, b'{"x": "model", "model" : "b" }'),
        (b'{"model":2,"y":{"model":0},"model":7}', {"model": b"1"}, b'{"model":1,"y":{"model":0},"model":1}'),
        (b'{"priority":1,"a":2}', {"priority": None}, b'{"a":2}'),
        (b'{"a":2, "priority":1}', {"priority": None}, b'{"a":2}'),
        (b'{"priority":1}', {"priority": None}, b"{}"),
        (b'{"a":1,"priority":1,"priority":2,"b":3}', {"priority": None}, b'{"a":1,"b":3}'),
        (b'{"priority":1,"priority":2}', {"priority": None}, b"{}"),
        (b'{"a":"\\"model\\":1,"}', {"model": b"2"}, b'{"a":"\\"model\\":1,"}'),
        (b'{"mod\\u0065l":"a"}', {"model": b'"b"'}, b'{"mod\\u0065l":"b"}'),
        (b"{}", {"model": b"1"}, b"{}"),
    ],
)  # fmt: skip
def test_examples(body: bytes, changes: dict[str, bytes | None], expected: bytes) -> None:
    assert splice_members(body, changes) == expected


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(
    st.dictionaries(st.sampled_from(["model", "priority", "a", "b", "é"]) | st.text(), _JSON, max_size=6),
    st.booleans(),
    st.sampled_from([None, 0, 2]),
)
def test_agrees_with_a_json_round_trip(data: dict[str, object], ascii_only: bool, indent: int | None) -> None:
    body = json.dumps(data, ensure_ascii=ascii_only, indent=indent).encode("utf-8", "surrogatepass")
    try:
        body.decode()
    except UnicodeDecodeError:
        return  # lone surrogates are refused before anything is spliced
    edited = splice_members(body, {"model": b'"new"', "priority": None})
    expected = {key: "new" if key == "model" else value for key, value in data.items() if key != "priority"}
    assert json.loads(edited) == expected
