"""How late the event loop is: the first sign of a process with too little CPU, or of code that blocks it."""

from __future__ import annotations

from collections.abc import Callable

from extproc.clock import Clock

PERIOD_S = 0.25


async def measure_lag(clock: Clock, observe: Callable[[float], None]) -> None:
    """Hand in, four times a second, by how many seconds a timer was late; until cancelled."""
    while True:
        due = clock.now() + PERIOD_S
        await clock.sleep_until(due)
        observe(max(0.0, clock.now() - due))
