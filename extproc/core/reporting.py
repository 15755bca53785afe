"""Builds the statistics snapshot from the controller's parts; reads only."""

from __future__ import annotations

from extproc.core.books import Books
from extproc.core.dispatching import Dispatcher
from extproc.core.pool import ANY_ENDPOINT, EndpointState
from extproc.core.statistics import BandStatistics, EndpointStatistics, Statistics
from extproc.core.tally import BandTally, Tally


def build_statistics(dispatcher: Dispatcher, books: Books, tally: Tally, now: float) -> Statistics:
    queues = dispatcher.queues
    revocations = dispatcher.revocations
    priorities = {*queues.bands, *tally.bands, *books.ledger.priorities()}
    return Statistics(
        saturation=books.policies.detector.saturation(books.pool.candidates(ANY_ENDPOINT), now),
        resources=dict(books.policies.detector.resources(now)),
        queued_requests=queues.requests,
        queued_bytes=queues.bytes,
        inflight_requests=len(books.ledger),
        bands=tuple(
            _band(dispatcher, books, tally, priority, now) for priority in sorted(priorities, reverse=True)
        ),
        endpoints=tuple(_endpoint(books, state, now) for state in books.pool.states.values()),
        stale_endpoints=books.policies.detector.stale_endpoints(now),
        revocations_outstanding=revocations.outstanding,
        revocations_confirmed=revocations.confirmed,
        revocations_timed_out=revocations.timed_out,
        promised_requests=tally.promised_requests,
        ignored_events=tally.ignored_events,
    )


def _band(dispatcher: Dispatcher, books: Books, tally: Tally, priority: int, now: float) -> BandStatistics:
    band = dispatcher.queues.bands.get(priority)
    counts = tally.bands.get(priority) or BandTally(now)  # looking must not start a drain rate
    inflight = books.ledger.of_priority(priority)
    ceilings = books.policies.ceilings.shown(priority, now)
    return BandStatistics(
        priority=priority,
        queued_requests=0 if band is None else len(band),
        queued_bytes=0 if band is None else band.queued_bytes,
        queued_tokens=0 if band is None else band.queued_footprint.tokens,
        queued_flows=0 if band is None else band.flows,
        inflight_requests=inflight.requests,
        inflight_tokens=inflight.tokens,
        inflight_kv_tokens=inflight.kv_tokens,
        ceiling=ceilings.lowest,
        ceilings=ceilings,
        is_gated=priority in dispatcher.gated,
        dispatches_per_s=counts.drain.per_second(now),
        outcomes=dict(counts.outcomes),
        ends=dict(counts.ends),
        evictions=dispatcher.revocations.issued[priority],
    )


def _endpoint(books: Books, state: EndpointState, now: float) -> EndpointStatistics:
    return EndpointStatistics(
        endpoint_id=state.id,
        address=state.address,
        is_open=state.is_open,
        inflight_requests=state.requests,
        inflight_tokens=state.tokens,
        inflight_kv_tokens=state.kv_tokens,
        revoked_requests=state.revoked_requests,
        revoked_kv_tokens=state.revoked_kv_tokens,
        saturation=dict(books.policies.detector.endpoint_resources(state, now)) if state.is_open else {},
    )
