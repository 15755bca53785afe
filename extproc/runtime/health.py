"""Leaves failing endpoints out for growing times, and lets one probe decide when they come back.

States of an endpoint: healthy; ejected until a time; probing (one request may try it). Three kinds of
evidence are counted apart, because each may be wrong alone: a server may answer its metrics port and fail
every request, and Envoy may reach what the scraper can't, or the other way round. Pure: events and `now` in,
changes out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from extproc.config.endpoints import HealthConfig
from extproc.core.types import EndpointId


class Evidence(Enum):
    """How an endpoint failed; the value is for logs and the state page."""

    UNREACHABLE = "unreachable"
    """Envoy could not connect: it used a fallback, or said so in its own answer."""
    UNSCRAPABLE = "unreachable for the scraper"
    SERVER_ERROR = "5xx"


class HealthState(Enum):
    """What an endpoint may get: all work, none, or one request at a time."""

    HEALTHY = "healthy"
    EJECTED = "ejected"
    PROBING = "probing"


@dataclass(frozen=True, slots=True)
class HealthChange:
    """An endpoint's new state; `reason` says why, for the log."""

    endpoint_id: EndpointId
    state: HealthState
    reason: str


class _Record:
    """What is remembered of one endpoint."""

    __slots__ = (
        "cause",
        "ejected_until",
        "ejection_s",
        "ejections",
        "failures",
        "recovered_at",
        "state",
        "withheld",
    )

    def __init__(self) -> None:
        self.state = HealthState.HEALTHY
        self.cause = Evidence.SERVER_ERROR
        self.failures = dict.fromkeys(Evidence, 0)
        self.ejections = 0
        self.ejection_s = 0.0
        self.ejected_until = 0.0
        self.recovered_at = float("-inf")
        self.withheld = False


class HealthTracker:
    """All endpoints of the pool; unknown ids are ignored, since answers come late."""

    def __init__(self, config: HealthConfig) -> None:
        self._config = config
        self._records: dict[EndpointId, _Record] = {}
        self._ejected = 0

    def add(self, endpoint_id: EndpointId) -> None:
        """A new endpoint is healthy until shown otherwise."""
        self._records.setdefault(endpoint_id, _Record())

    def remove(self, endpoint_id: EndpointId) -> None:
        record = self._records.pop(endpoint_id, None)
        if record is not None and record.state is HealthState.EJECTED:
            self._ejected -= 1

    def state(self, endpoint_id: EndpointId) -> HealthState | None:
        """None for an unknown endpoint."""
        record = self._records.get(endpoint_id)
        return record.state if record is not None else None

    def succeed(self, endpoint_id: EndpointId, now: float, *, is_request: bool) -> HealthChange | None:
        """The endpoint answered: a request below status 500, or (`is_request` False) a scrape.

        A scrape proves only that the scraper can reach it: that ends an ejection for the opposite, into a
        probe, and forgives nothing else.
        """
        record = self._records.get(endpoint_id)
        if record is None:
            return None
        record.failures[Evidence.UNSCRAPABLE] = 0
        if is_request:
            return self._succeed_request(endpoint_id, record, now)
        if record.state is HealthState.EJECTED and record.cause is Evidence.UNSCRAPABLE:
            return self._move(endpoint_id, record, HealthState.PROBING, "it can be reached again")
        return None

    def _succeed_request(self, endpoint_id: EndpointId, record: _Record, now: float) -> HealthChange | None:
        record.failures = dict.fromkeys(Evidence, 0)
        record.withheld = False
        if record.state is HealthState.PROBING:
            record.recovered_at = now
            return self._move(endpoint_id, record, HealthState.HEALTHY, "its probe succeeded")
        if record.ejections and now - record.recovered_at >= record.ejection_s:
            record.ejections = 0
        return None

    def fail(self, endpoint_id: EndpointId, evidence: Evidence, now: float) -> HealthChange | None:
        """A connection could not be made, or a request was answered with a 5xx status."""
        record = self._records.get(endpoint_id)
        limit = self._config.consecutive_failures
        if record is None or not limit:
            return None
        record.failures[evidence] += 1
        count = record.failures[evidence]
        if record.state is HealthState.PROBING:
            return self._eject(endpoint_id, record, evidence, now, f"its probe failed ({evidence.value})")
        if record.state is HealthState.EJECTED or count < limit:
            return None
        if evidence is Evidence.SERVER_ERROR and not self._may_eject_another():
            record.withheld = True
            return None
        return self._eject(
            endpoint_id, record, evidence, now, f"{count} failures in a row ({evidence.value})"
        )

    def tick(self, now: float) -> list[HealthChange]:
        """Let those try again whose time has come."""
        return [
            self._move(endpoint_id, record, HealthState.PROBING, f"{record.ejection_s:g} s have passed")
            for endpoint_id, record in self._records.items()
            if record.state is HealthState.EJECTED and record.ejected_until <= now
        ]

    def next_wakeup(self) -> float | None:
        """When to call `tick`; None: nobody is ejected."""
        if not self._ejected:
            return None
        ejected = (record for record in self._records.values() if record.state is HealthState.EJECTED)
        return min(record.ejected_until for record in ejected)

    def withheld(self) -> list[EndpointId]:
        """Endpoints that answer 5xx but stay, because too much of the pool is out already."""
        return [endpoint_id for endpoint_id, record in self._records.items() if record.withheld]

    def _may_eject_another(self) -> bool:
        return self._ejected + 1 <= self._config.max_ejected_fraction * len(self._records)

    def _eject(
        self, endpoint_id: EndpointId, record: _Record, evidence: Evidence, now: float, reason: str
    ) -> HealthChange:
        """What the scraper can't reach is out for the longest time: the scraper itself finds it back."""
        record.ejections += 1
        grown_s = self._config.base_ejection_s * 2.0 ** min(record.ejections - 1, 32)
        longest_s = self._config.max_ejection_s
        is_watched = evidence is Evidence.UNSCRAPABLE
        record.ejection_s = longest_s if is_watched else min(longest_s, grown_s)
        record.ejected_until = now + record.ejection_s
        record.cause = evidence
        until = "until it is reached again, at most" if is_watched else "for"
        words = f"{reason}: out {until} {record.ejection_s:g} s"
        return self._move(endpoint_id, record, HealthState.EJECTED, words)

    def _move(
        self, endpoint_id: EndpointId, record: _Record, state: HealthState, reason: str
    ) -> HealthChange:
        self._ejected += (state is HealthState.EJECTED) - (record.state is HealthState.EJECTED)
        record.state = state
        return HealthChange(endpoint_id, state, reason)
