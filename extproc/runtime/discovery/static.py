"""Endpoints written in the configuration itself."""

from __future__ import annotations

from extproc.config.endpoints import StaticDiscovery
from extproc.runtime.discovery.source import Publish, SourceHealth


class StaticSource:
    """Publishes its list once."""

    def __init__(self, config: StaticDiscovery) -> None:
        self.name = "static list"
        self.health = SourceHealth(self.name)
        self._config = config

    async def run(self, publish: Publish) -> None:
        """See `Source`."""
        self.health.succeed()
        publish(self._config.endpoints)
