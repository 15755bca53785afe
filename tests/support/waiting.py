"""Waiting for a condition that other processes bring about; never sleeping for luck."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_for(condition: Callable[[], bool], *, timeout_s: float = 20.0, poll_s: float = 0.01) -> None:
    """Return once `condition()`; fails the test after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(poll_s)
