"""Durations that are compared with each other in one run; never asserted by themselves."""

from __future__ import annotations

import time
from collections.abc import Callable


def best_of_three(work: Callable[[], object]) -> float:
    """Seconds of the quickest of three runs."""
    times = []
    for _ in range(3):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)
