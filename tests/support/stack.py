"""The whole as a fixture: real Envoy, `extproc serve`, emulated servers; the ledger must end empty."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from extproc.stack.ledger import wait_for_empty_ledger
from extproc.stack.local import LocalStack

SLOTS = 4

CONFIG: dict[str, Any] = {
    "flow_control": {
        "detector": {"type": "concurrency-detector", "mode": "requests", "max_concurrency": SLOTS},
        "eviction": {"enabled": True},
    },
    "requests": {"priority": {"objectives": {"interactive": 10, "batch": -1}}},
}


@contextmanager
def running_stack(config: dict[str, Any] | None = None, **options: Any) -> Iterator[LocalStack]:
    """A started stack; when the block ends without an error its ledger must be empty."""
    with LocalStack(CONFIG if config is None else config, **options) as stack:
        yield stack
        assert_empty_ledger(stack)


def assert_empty_ledger(stack: LocalStack) -> None:
    """Nothing in flight, nothing queued, no open stream."""
    ledger = wait_for_empty_ledger(stack.admin_url)
    assert ledger.is_zero, f"{ledger}\n{stack.child('extproc').tail()}"


@pytest.fixture(scope="session")
def shared_stack() -> Iterator[LocalStack]:
    """One stack for all tests that only send requests: one emulated server with four slots."""
    server = ["--max-num-seqs", str(SLOTS), "--speed", "0.5"]
    with running_stack(emulators=[server]) as stack:
        yield stack


@pytest.fixture
def stack(shared_stack: LocalStack) -> Iterator[LocalStack]:
    """The shared stack; this test must leave its ledger empty."""
    yield shared_stack
    assert_empty_ledger(shared_stack)


class ProcessMark:
    """An environment variable that all descendants of a command carry, to find the ones that were left."""

    def __init__(self) -> None:
        self.value = uuid.uuid4().hex
        self.env = {**os.environ, "EXTPROC_TEST_MARK": self.value}

    def pids(self) -> list[int]:
        """Living processes (zombies have no environment) that carry the mark."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    environment = (entry / "environ").read_bytes()
                except OSError:
                    continue
                if self.value.encode() in environment:
                    found.append(int(entry.name))
        return found


@pytest.fixture
def mark() -> Iterator[ProcessMark]:
    """No process that carries the mark may outlive the test."""
    mark = ProcessMark()
    yield mark
    assert mark.pids() == []
