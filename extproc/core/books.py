"""Booking and everything that must move with it: ledger and policies stay in step.

The only place that changes an endpoint's load, so that no policy ever sees a load that another doesn't.
"""

from __future__ import annotations

from extproc.core.footprint import Footprint
from extproc.core.inflight import InflightLedger, InflightRequest
from extproc.core.policies import Policies
from extproc.core.pool import EndpointState, Pool
from extproc.core.types import Request, RequestId


class Books:
    """Ledger plus notifications of the policies."""

    def __init__(self, pool: Pool, ledger: InflightLedger, policies: Policies) -> None:
        self.pool = pool
        self.ledger = ledger
        self.policies = policies
        pool.required_labels = policies.picker.required_labels

    def dispatch(
        self, request: Request, endpoint: EndpointState, footprint: Footprint, now: float
    ) -> InflightRequest:
        entry = self.ledger.book(request, endpoint, footprint, now)
        policies = self.policies
        policies.victims.add(entry)
        policies.pacing.dispatched(request, endpoint, now)
        policies.ceilings.booked(request.priority, footprint, now)
        self.touch(endpoint, now)
        policies.picker.request_dispatched(request, endpoint, now)
        return entry

    def output_seen(self, entry: InflightRequest, now: float) -> bool:
        """Output of a request; True if somebody may go now who couldn't before it."""
        policies = self.policies
        may_dispatch = policies.pacing.output_seen(entry.request, entry.endpoint, now)
        if policies.estimator.releases_at_first_output:
            taken = self.ledger.release_tokens(entry)
            if taken.tokens:
                policies.ceilings.released(entry.request.priority, taken, now)
                self.touch(entry.endpoint, now)
                return True
        return may_dispatch

    def release(
        self, request_id: RequestId, now: float, output_tokens: int | None = None
    ) -> InflightRequest | None:
        """Ends a booking; `output_tokens` only for an answer that was completed."""
        entry = self.ledger.release(request_id)
        if entry is None:
            return None
        policies = self.policies
        policies.detector.request_ended(entry, output_tokens, now)
        policies.victims.discard(entry)
        policies.pacing.ended(request_id, entry.endpoint, now)
        policies.ceilings.released(entry.request.priority, entry.footprint, now)
        if output_tokens is not None:
            policies.estimator.observe(entry.request, output_tokens)
        self.touch(entry.endpoint, now)
        return entry

    def revoke(self, entry: InflightRequest, now: float) -> None:
        self.ledger.mark_revoked(entry, now)
        self.policies.victims.discard(entry)
        self.touch(entry.endpoint, now)

    def move(self, entry: InflightRequest, endpoint: EndpointState, now: float) -> None:
        """A fallback served the request."""
        before, policies = entry.endpoint, self.policies
        policies.victims.discard(entry)
        self.ledger.move(entry, endpoint)
        if entry.revoked_at is None:
            policies.victims.add(entry)
        policies.pacing.moved(entry.request, before, endpoint, now)
        self.touch(before, now)
        self.touch(endpoint, now)

    def touch(self, endpoint: EndpointState, now: float) -> None:
        """Tells the policies that something about the endpoint has changed."""
        policies = self.policies
        if endpoint.is_open:
            policies.detector.endpoint_changed(endpoint, now)
            policies.picker.endpoint_changed(endpoint)
        else:
            policies.detector.endpoint_closed(endpoint)
            policies.picker.endpoint_closed(endpoint)
            policies.pacing.closed(endpoint)

    def sampled(self, endpoint: EndpointState, now: float) -> None:
        """The endpoint has a new sample."""
        policies, sample = self.policies, endpoint.sample
        policies.detector.endpoint_sampled(endpoint, now)
        policies.pacing.sampled(endpoint, now)
        if sample is not None and sample.kv_block_tokens:
            policies.estimator.use_blocks(sample.kv_block_tokens)
        self.touch(endpoint, now)

    def install(self, policies: Policies, now: float) -> None:
        """New policies over the same endpoints and bookings."""
        self.policies = policies
        self.pool.required_labels = policies.picker.required_labels
        for endpoint in self.pool.states.values():
            self.touch(endpoint, now)
        for entry in self.ledger:
            if entry.revoked_at is None:
                policies.victims.add(entry)
