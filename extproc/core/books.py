"""Booking and everything that must move with it: ledger, victims, detector and picker stay in step.

The only place that changes an endpoint's load, so that no policy ever sees a load that another doesn't.
"""

from __future__ import annotations

from extproc.core.eviction import VictimIndex
from extproc.core.footprint import Footprint
from extproc.core.inflight import InflightLedger, InflightRequest
from extproc.core.picker import Picker
from extproc.core.pool import EndpointState, Pool
from extproc.core.saturation import SaturationDetector
from extproc.core.types import Request, RequestId


class Books:
    """Ledger plus notifications. `detector`, `picker` and `victims` are replaced on reconfiguration."""

    def __init__(
        self, pool: Pool, detector: SaturationDetector, picker: Picker, victims: VictimIndex
    ) -> None:
        self.ledger = InflightLedger()
        self.pool = pool
        self.detector = detector
        self.picker = picker
        self.victims = victims

    def dispatch(
        self, request: Request, endpoint: EndpointState, footprint: Footprint, now: float
    ) -> InflightRequest:
        entry = self.ledger.book(request, endpoint, footprint, now)
        self.victims.add(entry)
        self.touch(endpoint, now)
        self.picker.request_dispatched(request, endpoint, now)
        return entry

    def release(self, request_id: RequestId, now: float) -> InflightRequest | None:
        entry = self.ledger.release(request_id)
        if entry is not None:
            self.victims.discard(entry)
            self.touch(entry.endpoint, now)
        return entry

    def revoke(self, entry: InflightRequest, now: float) -> None:
        self.ledger.mark_revoked(entry, now)
        self.victims.discard(entry)
        self.touch(entry.endpoint, now)

    def move(self, entry: InflightRequest, endpoint: EndpointState, now: float) -> None:
        before = entry.endpoint
        self.victims.discard(entry)
        self.ledger.move(entry, endpoint)
        if entry.revoked_at is None:
            self.victims.add(entry)
        self.touch(before, now)
        self.touch(endpoint, now)

    def touch(self, endpoint: EndpointState, now: float) -> None:
        """Tells the policies that something about the endpoint has changed."""
        if endpoint.is_open:
            self.detector.endpoint_changed(endpoint, now)
            self.picker.endpoint_changed(endpoint)
        else:
            self.detector.endpoint_closed(endpoint)
            self.picker.endpoint_closed(endpoint)

    def replace(self, detector: SaturationDetector, picker: Picker, victims: VictimIndex, now: float) -> None:
        """New policies over the same endpoints and bookings."""
        self.detector, self.picker, self.victims = detector, picker, victims
        for endpoint in self.pool.states.values():
            self.touch(endpoint, now)
        for entry in self.ledger:
            if entry.revoked_at is None:
                victims.add(entry)
