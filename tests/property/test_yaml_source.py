"""Any text is either data or a list of problems; what YAML writes comes back unchanged."""

from __future__ import annotations

import contextlib
import string

import yaml
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
def test_what_yaml_writes_is_read_back(tree: object) -> None:
    text = yaml.safe_dump(tree, allow_unicode=True)
    document = parse_yaml(text)
    assert document.problems == []
    assert document.data == tree


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused_but_never_a_crash(text: str) -> None:
    with contextlib.suppress(ConfigError):
        parse_yaml(text)
