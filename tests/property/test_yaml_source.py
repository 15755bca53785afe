"""Any text is either data or a list of problems; JSON comes back unchanged."""

from __future__ import annotations

import contextlib
import json
import string

from hypothesis import given
from hypothesis import strategies as st

from extproc.config.yaml_source import parse_yaml
from extproc.errors import ConfigError

words = st.text(string.ascii_letters + " _-:#'\"{}[]0123456789é", max_size=12)
scalars = st.none() | st.booleans() | st.integers(-(10**9), 10**9) | words
trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=20,
)


@given(trees)
def test_json_is_read_back_unchanged(tree: object) -> None:
    document = parse_yaml(json.dumps(tree, ensure_ascii=False, indent=1))
    assert document.problems == []
    assert document.data == tree


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused_but_never_a_crash(text: str) -> None:
    with contextlib.suppress(ConfigError):
        parse_yaml(text)
