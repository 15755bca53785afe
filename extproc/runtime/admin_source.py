"""What the admin port shows of a running application: its health, metrics, configuration and state."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from extproc.core.explanation import Explanation
from extproc.core.inspection import Inspection
from extproc.errors import ConfigError, Problem
from extproc.runtime.admin import JsonObject
from extproc.runtime.live import LiveFeed
from extproc.runtime.meters import Meters
from extproc.runtime.redaction import redact_id, redact_settings
from extproc.runtime.reload import Reloader

Reasons = Callable[[], list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationView:
    """Implements `AdminSource`; everything is asked for at each request. `reloader` None: no file to read."""

    config: Callable[[], object]
    meters: Meters
    feed: LiveFeed
    inspect: Callable[[], Inspection]
    explain_request: Callable[[JsonObject], Explanation]
    not_ready: Reasons
    not_live: Reasons
    reloader: Reloader | None

    def not_ready_reasons(self) -> list[str]:
        return self.not_ready()

    def not_live_reasons(self) -> list[str]:
        return self.not_live()

    def expose_metrics(self) -> bytes:
        return self.meters.expose()

    def config_in_force(self) -> JsonObject:
        shown = redact_settings(plain(self.config()))
        assert isinstance(shown, dict)
        return shown

    def debug_state(self) -> JsonObject:
        """The newest state, with the queued requests of each flow; long ids are shortened."""
        self.feed.take_now()
        return {**self.feed.history()[-1], "flows": _flows(self.inspect())}

    def explain(self, request: JsonObject) -> JsonObject:
        shown = plain(self.explain_request(request))
        assert isinstance(shown, dict)
        return shown

    def history(self) -> list[JsonObject]:
        return self.feed.history()

    def snapshots(self) -> AsyncIterator[JsonObject]:
        return self.feed.snapshots()

    async def reload(self) -> JsonObject:
        if self.reloader is None:
            raise ConfigError([Problem("", "there is no configuration file to read again")])
        return dataclasses.asdict(self.reloader.reload())


def _flows(inspection: Inspection) -> list[JsonObject]:
    return [
        {"priority": band.priority, "fairness_id": redact_id(flow), "queued": count}
        for band in inspection.bands
        for flow, count in band.flows.items()
    ]


def plain(value: object) -> object:
    """Dataclasses, enums and mappings as what JSON can hold."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return value if isinstance(value, str | int | float | bool | None) else str(value)
