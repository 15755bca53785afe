"""Waiting for a condition while another one must hold all the time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(
    condition: Callable[[], bool], *, always: Callable[[], None] = lambda: None, timeout_s: float = 15
) -> None:
    """Return once `condition()`; `always` is called meanwhile and may assert."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            always()
            await asyncio.sleep(0.005)
    always()
