"""Says in the log when the detector is blind: endpoints without fresh samples, at most twice a minute."""

from __future__ import annotations

import logging
from collections.abc import Callable

from extproc.clock import Clock
from extproc.core.config import FlowControlConfig

logger = logging.getLogger(__name__)

PERIOD_S = 5.0
REPEAT_AFTER_S = 30.0


class StaleWatch:
    """Compares the count of stale endpoints with what was said last."""

    def __init__(self) -> None:
        self._last_said_at = float("-inf")
        self._is_said = False

    def observe(self, stale: int, endpoints: int, consequence: str, now: float) -> None:
        """Logs a warning while endpoints are stale, and once that they are fresh again."""
        if stale and now - self._last_said_at >= REPEAT_AFTER_S:
            logger.warning("%d of %d endpoints have no fresh metrics; %s", stale, endpoints, consequence)
            self._last_said_at, self._is_said = now, True
        elif not stale and self._is_said:
            logger.info("all %d endpoints have fresh metrics again", endpoints)
            self._last_said_at, self._is_said = float("-inf"), False


def consequence_of(config: FlowControlConfig) -> str | None:
    """What staleness means for the configured detector; None: it needs no measurements."""
    detector = config.detector
    match detector.type:
        case "utilization-detector" if detector.when_stale == "full":
            return "the utilization-detector counts them as full (when_stale: full)"
        case "utilization-detector":
            return "the utilization-detector goes by what is in flight there (when_stale: accounting)"
        case "capacity-detector":
            return "the capacity-detector goes on from its own accounting, uncorrected"
        case _:
            return None


async def watch_staleness(
    clock: Clock, config: Callable[[], FlowControlConfig], counts: Callable[[], tuple[int, int]]
) -> None:
    """Looks every few seconds, until cancelled; `counts` gives the stale and the open endpoints."""
    watch = StaleWatch()
    while True:
        await clock.sleep_until(clock.now() + PERIOD_S)
        consequence = consequence_of(config())
        if consequence is not None:
            stale, endpoints = counts()
            watch.observe(stale, endpoints, consequence, clock.now())
