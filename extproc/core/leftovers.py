"""What victims free beyond the need that evicted them: kept for that demand's band for a while.

A victim is often larger than the request that it makes room for. Until its stream has ended nobody below can
take the rest, since the victim still counts; after that the rest stays reserved on its endpoint for
`keep_s`, so that the next requests of the same band needn't evict again and the batch doesn't start a
prompt there only to be evicted.
"""

from __future__ import annotations

from extproc.core.footprint import NO_FOOTPRINT, Footprint
from extproc.core.pool import EndpointState


class _Leftover:
    """One endpoint's rest. `until` None: victims there haven't all ended yet."""

    __slots__ = ("footprint", "priority", "until")

    def __init__(self, priority: int, footprint: Footprint) -> None:
        self.priority = priority
        self.footprint = footprint
        self.until: float | None = None


class Leftovers:
    """Reserves by endpoint; they only ever hold back lower bands."""

    def __init__(self, keep_s: float) -> None:
        self.keep_s = keep_s
        self._by_endpoint: dict[EndpointState, _Leftover] = {}

    def __bool__(self) -> bool:
        """Whether anything is kept."""
        return bool(self._by_endpoint)

    def freed(self, endpoint: EndpointState, priority: int, footprint: Footprint) -> None:
        """Victims of this footprint were revoked on the endpoint for a request of this priority."""
        if self.keep_s <= 0:
            return
        kept = self._by_endpoint.get(endpoint)
        if kept is None:
            self._by_endpoint[endpoint] = _Leftover(priority, footprint)
        else:
            kept.footprint = kept.footprint.plus(footprint)
            kept.priority = max(kept.priority, priority)
            kept.until = None

    def confirmed(self, endpoint: EndpointState, now: float) -> None:
        """The last victim on the endpoint has ended: its rest is kept from now on."""
        kept = self._by_endpoint.get(endpoint)
        if kept is not None and kept.until is None:
            kept.until = now + self.keep_s

    def dispatched(self, endpoint: EndpointState, priority: int, footprint: Footprint) -> None:
        """A request that it was kept for, the one that caused it included, has used its part."""
        kept = self._by_endpoint.get(endpoint)
        if kept is not None and priority >= kept.priority:
            kept.footprint = _positive(kept.footprint.minus(footprint))
            if kept.footprint == NO_FOOTPRINT:
                del self._by_endpoint[endpoint]

    def kept_from(self, endpoint: EndpointState, priority: int, now: float) -> Footprint:
        """What a request of this priority must leave free there."""
        kept = self._by_endpoint.get(endpoint)
        if kept is None:
            return NO_FOOTPRINT
        if kept.until is not None and kept.until <= now:
            del self._by_endpoint[endpoint]
            return NO_FOOTPRINT
        return kept.footprint if priority < kept.priority else NO_FOOTPRINT

    def next_end(self, now: float) -> float | None:
        """When the next rest is given up; those whose time is over are dropped."""
        ends = {e: kept.until for e, kept in self._by_endpoint.items() if kept.until is not None}
        for endpoint in [e for e, until in ends.items() if until <= now]:
            del self._by_endpoint[endpoint]
        return min((until for until in ends.values() if until > now), default=None)


def _positive(footprint: Footprint) -> Footprint:
    return Footprint(max(0, footprint.requests), max(0, footprint.tokens), max(0, footprint.kv_tokens))
