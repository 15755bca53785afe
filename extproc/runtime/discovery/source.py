"""What every kind of discovery offers: a coroutine that publishes whole lists of endpoints, for ever.

A source publishes the full list that it knows, never differences, so that a lost or late event can't leave an
endpoint behind. What it can't read or reach leaves the last published list in force.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from extproc.config.endpoints import EndpointEntry

Publish = Callable[[Sequence[EndpointEntry]], None]

logger = logging.getLogger(__name__)


class Source(Protocol):
    """One source of endpoints; `name` is for logs and the state page."""

    name: str
    health: SourceHealth

    async def run(self, publish: Publish) -> None:
        """Publish lists until cancelled."""
        ...


class SourceHealth:
    """Whether a source works, and why not; says each problem once until it is gone."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.problem: str | None = None
        """Why the source can't be used now; None: all is well, or nothing has been tried yet."""
        self.problems = 0
        self.published = 0

    def succeed(self) -> None:
        """A list was read."""
        self.published += 1
        if self.problem is not None:
            logger.info("discovery %s: works again", self._name)
        self.problem = None

    def fail(self, problem: str) -> None:
        """Nothing could be read; the last list stays in force."""
        self.problems += 1
        if problem != self.problem:
            logger.warning("discovery %s: %s; the last good list stays in force", self._name, problem)
        self.problem = problem
