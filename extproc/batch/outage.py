"""A store that is away, said once by each loop that meets it, and once when it is back."""

from __future__ import annotations

import logging

logger = logging.getLogger(__name__)

_SUCCESSES = 5
"""So many in a row and it is over: after one, a connection of before the outage may still turn out broken."""


class Outage:
    """What one loop knows of it. `what` can't be done meanwhile: "nothing can be claimed"."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._is_on = False
        self._successes = 0

    def failed(self, error: Exception) -> None:
        """Another try has failed."""
        if not self._is_on:
            logger.warning("%s (said once until the store is back): %s", self._what, error)
        self._is_on = True
        self._successes = 0

    def succeeded(self) -> None:
        """A try has succeeded."""
        self._successes += 1
        if self._successes < _SUCCESSES:
            return
        if self._is_on:
            logger.info("the store is back (%s)", self._what)
        self._is_on = False
