"""Waiting for a condition that other processes bring about; never sleeping for luck."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


def wait_for(condition: Callable[[], bool], *, timeout_s: float = 20.0, poll_s: float = 0.01) -> None:
    """Return once `condition()`; fails the test after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(poll_s)


async def eventually(
    condition: Callable[[], bool], *, timeout_s: float = 20.0, poll_s: float = 0.001
) -> None:
    """The same for a condition that comes true inside the test's own event loop."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - what is waited for knows of no event
            await asyncio.sleep(poll_s)
