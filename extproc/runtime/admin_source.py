"""What the admin port shows of a running application: its health, metrics, configuration and state."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable
from enum import Enum

from extproc.errors import ConfigError, Problem
from extproc.runtime.admin import JsonObject
from extproc.runtime.driver import Driver
from extproc.runtime.live import LiveFeed
from extproc.runtime.meters import Meters
from extproc.runtime.redaction import redact_settings


class ApplicationView:
    """Implements `AdminSource`; the reasons are asked for at each request."""

    def __init__(
        self,
        config: object,
        meters: Meters,
        driver: Driver,
        feed: LiveFeed,
        *,
        not_ready: Callable[[], list[str]],
        not_live: Callable[[], list[str]],
    ) -> None:
        self._config = config
        self._meters = meters
        self._driver = driver
        self._feed = feed
        self._not_ready = not_ready
        self._not_live = not_live

    def not_ready_reasons(self) -> list[str]:
        return self._not_ready()

    def not_live_reasons(self) -> list[str]:
        return self._not_live()

    def expose_metrics(self) -> bytes:
        return self._meters.expose()

    def config_in_force(self) -> JsonObject:
        shown = redact_settings(plain(self._config))
        assert isinstance(shown, dict)
        return shown

    def debug_state(self) -> JsonObject:
        return take_snapshot(self._driver)

    def explain(self, request: JsonObject) -> JsonObject:
        raise ConfigError([Problem("", "explaining a request is not available")])

    def history(self) -> list[JsonObject]:
        return self._feed.history()

    def snapshots(self) -> AsyncIterator[JsonObject]:
        return self._feed.snapshots()

    async def reload(self) -> JsonObject:
        raise ConfigError([Problem("", "reloading is not available")])


def take_snapshot(driver: Driver) -> JsonObject:
    """The controller's statistics as plain data."""
    snapshot = plain(driver.statistics())
    assert isinstance(snapshot, dict)
    return snapshot


def plain(value: object) -> object:
    """Dataclasses, enums and mappings as what JSON can hold."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
