"""Clocks: the only reader of the system clock in the package.

`now()` is monotonic seconds, the only time that decisions see; `wall_time()` is seconds since the epoch and
appears in headers, journals and reports only.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """What a component needs of time; tests and the simulator hand in their own."""

    def now(self) -> float:
        """Monotonic seconds from an arbitrary origin."""
        ...

    def wall_time(self) -> float:
        """Seconds since the epoch."""
        ...

    async def sleep_until(self, deadline: float) -> None:
        """Return once `now()` is at least `deadline`; at once when it already is."""
        ...


class CpuClock:
    """Seconds of processor time of this process, to measure costs on a busy machine."""

    __slots__ = ()

    def now(self) -> float:
        return time.process_time()


class SystemClock:
    """The machine's clock."""

    __slots__ = ()

    def now(self) -> float:
        return time.monotonic()

    def wall_time(self) -> float:
        return time.time()

    async def sleep_until(self, deadline: float) -> None:
        delay_s = deadline - time.monotonic()
        await asyncio.sleep(max(0.0, delay_s))
