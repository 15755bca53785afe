"""Endpoints written in the configuration itself."""

from __future__ import annotations

from collections.abc import Sequence

from extproc.config.endpoints import EndpointEntry, StaticDiscovery
from extproc.runtime.discovery.source import Publish, SourceHealth


class StaticSource:
    """A list that never changes."""

    def __init__(self, config: StaticDiscovery) -> None:
        self.name = "static list"
        self.health = SourceHealth(self.name)
        self._config = config

    async def run(self, publish: Publish) -> None:
        """See `Source`."""
        publish(self.entries())

    def entries(self) -> Sequence[EndpointEntry]:
        """The list."""
        self.health.succeed()
        return self._config.endpoints
