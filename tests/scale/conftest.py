"""What the tests of ten thousand requests share."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

_NEEDED = 12_000


@pytest.fixture
def open_files() -> Iterator[None]:
    """Each held request is a connection of Envoy to the model server, which is in the test's process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < _NEEDED:
        pytest.skip(f"only {hard} open files are allowed, {_NEEDED} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, _NEEDED), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
