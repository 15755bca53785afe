"""`FlowController`: the whole of flow control behind `handle(event, now) -> list[Command]`.

It does no I/O, reads no clock and holds no lock. Every event is total: ids that are unknown or have ended
are counted and ignored, never an error. After each event a dispatch pass runs to its fixpoint, so a
decision is taken in the call that made it possible. `next_wakeup()` says when to hand in `TimerFired`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import assert_never

from extproc.core.ageing import Ageing
from extproc.core.arrivals import Arrivals
from extproc.core.books import Books
from extproc.core.commands import Command, Revoke
from extproc.core.config import FlowControlConfig
from extproc.core.credits import Credits, ReplicaDemand
from extproc.core.demand import DemandTracker
from extproc.core.dispatching import Dispatcher
from extproc.core.events import (
    CapacitiesLeased,
    CapacityLeased,
    DrainStarted,
    EndpointAdded,
    EndpointHealthChanged,
    EndpointRemoved,
    EndpointSampled,
    Event,
    OutputObserved,
    ReclaimRequested,
    RequestArrived,
    RequestCancelled,
    RequestFinished,
    ResponseStarted,
    SheddableHeld,
    TimerFired,
)
from extproc.core.explanation import Explanation, explain
from extproc.core.inflight import InflightLedger, InflightRequest
from extproc.core.inspection import Inspection, inspect
from extproc.core.outcomes import EndReason, Outcome
from extproc.core.policies import PolicyBuilder
from extproc.core.pool import EndpointState, Pool
from extproc.core.queues import RequestQueues
from extproc.core.refusals import Refusals
from extproc.core.reporting import build_statistics
from extproc.core.revocation import Revocations
from extproc.core.sharing import replica_capacity, replica_demand
from extproc.core.statistics import Statistics
from extproc.core.tally import Tally
from extproc.core.types import EndpointId, EndpointSample, Request, RequestId, Usage
from extproc.core.urgency import NO_NEED, Need


class FlowController:
    """Queues, ledger and policies of one pool. Drive it from one thread, with a `now` that never falls.

    `is_leased`: replicas share the pool, so an endpoint has no capacity until `CapacityLeased` gives some.
    """

    def __init__(self, config: FlowControlConfig, rng: random.Random, *, is_leased: bool = False) -> None:
        self._config = config
        self._pool = Pool(is_leased=is_leased)
        self._demand = DemandTracker()
        self._tally = Tally()
        self._now = float("-inf")
        ledger = InflightLedger()
        self._builder = PolicyBuilder(self._pool, ledger, self._demand, rng)
        self._books = Books(self._pool, ledger, self._builder.build(config))
        self._queues = RequestQueues(config.band_config, config.max_requests, config.max_bytes)
        self._create_bands(config)
        self._refusals = Refusals(self._queues, self._demand, self._tally)
        self._revocations = Revocations(config.eviction, self._books)
        self._dispatcher = Dispatcher(
            self._queues, self._books, self._revocations, self._tally, Ageing(config.ageing)
        )
        self._arrivals = Arrivals(
            config, self._queues, self._books, self._demand, self._tally, self._dispatcher, self._refusals
        )

    @property
    def config(self) -> FlowControlConfig:
        return self._config

    def handle(self, event: Event, now: float) -> list[Command]:
        """Takes one event in and returns what to do, in order. A `now` before the last one counts as it."""
        now = self._now = max(now, self._now)
        commands: list[Command] = []
        may_dispatch = self._let_time_pass(now, commands)
        if self._take(event, now, commands) or may_dispatch:
            self._queues.set_pool_empty(not self._pool.open, now)
            self._dispatcher.run(now, commands)
        return commands

    def next_wakeup(self) -> float | None:
        """When to hand in `TimerFired` if nothing else happens before; None: not needed."""
        now, policies = self._now, self._books.policies
        soonest = self._queues.next_expiry()
        released = self._revocations.next_wakeup(now)
        if released is not None and (soonest is None or released < soonest):
            soonest = released
        if self._dispatcher.gated:
            # What a policy expected to change by the last pass, that pass has taken into account.
            for policy in (policies.ceilings, policies.detector, policies.pacing):
                change = policy.next_change(now)
                if change is not None and change > self._dispatcher.passed_at:
                    soonest = change if soonest is None else min(soonest, change)
        return soonest

    def _create_bands(self, config: FlowControlConfig) -> None:
        """Declared bands, or the default one, are there and told of before their first request."""
        for priority in config.declared_priorities or (0,):
            self._queues.band(priority)

    def statistics(self) -> Statistics:
        """The state now and the counts since the start; costs a walk over bands and endpoints."""
        return build_statistics(self._dispatcher, self._books, self._tally, self._now)

    def expected_output_tokens(self, request_id: RequestId) -> int | None:
        """What a request in flight is expected to generate in all; None when it isn't in flight."""
        entry = self._books.ledger.get(request_id)
        return None if entry is None else max(0, entry.footprint.kv_tokens - entry.request.prompt_tokens)

    @property
    def queued_requests(self) -> int:
        return self._queues.requests

    def highest_need(self) -> Need:
        """The highest priority that has requests queued, and how many."""
        for priority in self._queues.active_priorities():
            return Need(priority, len(self._queues.bands[priority]))
        return NO_NEED

    def replica_demand(self) -> ReplicaDemand:
        """What this replica of a shared pool has in use and waiting; costs a walk over the bookings."""
        return replica_demand(self._queues, self._books)

    def replica_capacity(self) -> dict[str, Credits]:
        """Capacity of every open endpoint before leases, by address."""
        return replica_capacity(self._books)

    def endpoint_samples(self) -> list[tuple[EndpointId, str, EndpointSample | None]]:
        """Id, address and newest measurement of every listed endpoint."""
        return [(state.id, state.address, state.sample) for state in self._pool.states.values()]

    def pool_events(self) -> Iterator[Event]:
        """What another controller must be told to know the pool as this one does."""
        for state in self._pool.states.values():
            yield EndpointAdded(state.endpoint)
            yield EndpointHealthChanged(state.id, state.is_healthy, state.is_probing)
            if state.sample is not None:
                yield EndpointSampled(state.sample)

    def in_flight(self) -> Iterator[InflightRequest]:
        """The bookings, the oldest first."""
        return iter(self._books.ledger)

    def explain(self, request: Request, now: float) -> Explanation:
        """What would become of the request now, and why; changes nothing."""
        return explain(self._dispatcher, self._books, request, max(now, self._now))

    def leases(self) -> list[CapacityLeased]:
        """What every listed endpoint may be used for now."""
        return [
            CapacityLeased(state.id, state.leased_slots, state.leased_kv_tokens)
            for state in self._pool.states.values()
        ]

    def inspect(self, now: float) -> Inspection:
        """Flows, ages and who occupies which endpoint; costs a walk over the bookings."""
        return inspect(self._queues, self._books, max(now, self._now))

    def reconfigure(self, config: FlowControlConfig, now: float) -> list[Command]:
        """New limits and policies over the same queues and bookings; queued requests keep their TTL."""
        now = self._now = max(now, self._now)
        policies = self._builder.rebuild(config, self._config, self._books.policies)
        self._config = config
        self._queues.reconfigure(config.band_config, config.max_requests, config.max_bytes)
        self._create_bands(config)
        self._books.install(policies, now)
        self._revocations.reconfigure(config.eviction)
        self._dispatcher.ageing = Ageing(config.ageing)
        self._arrivals.config = config
        commands: list[Command] = []
        if config.mode == "observe":
            for item in self._queues:
                self._dispatcher.place_anyway(item, now, commands)
        self._dispatcher.run(now, commands)
        return commands

    def _let_time_pass(self, now: float, commands: list[Command]) -> bool:
        """Whatever was due by now; True when it may let something be dispatched."""
        is_any_expired = is_any_late = is_any_given_up = is_any_prefilled = False
        if now >= self._queues.nothing_due_before:
            is_any_expired = self._expire(now, commands)
            is_any_late = self._queues.demote_late(now)
        if self._revocations.outstanding:
            is_any_given_up = self._give_up_revocations(now)
        pacing = self._books.policies.pacing
        if now >= pacing.nothing_due_before:
            is_any_prefilled = pacing.expire(now)
        return is_any_expired or is_any_late or is_any_given_up or is_any_prefilled

    def _take(self, event: Event, now: float, commands: list[Command]) -> bool:
        """Applies the event; True when a dispatch pass may find something to do."""
        match event:
            case RequestArrived(request):
                self._arrivals.arrived(request, now, commands)
                return False
            case RequestFinished(request_id, reason, usage):
                return self._finished(request_id, reason, usage, now)
            case RequestCancelled(request_id):
                return self._cancelled(request_id, now)
            case ResponseStarted(request_id, address):
                return self._response_started(request_id, address, now)
            case OutputObserved(request_id, output_tokens):
                return self._output_observed(request_id, output_tokens, now)
            case EndpointAdded(endpoint):
                return self._touched(self._pool.put(endpoint), now)
            case EndpointRemoved(endpoint_id):
                return self._touched(self._pool.remove(endpoint_id), now)
            case EndpointHealthChanged(endpoint_id, is_healthy, is_probing):
                return self._touched(self._pool.set_health(endpoint_id, is_healthy, is_probing), now)
            case EndpointSampled(sample):
                return self._sampled(sample, now)
            case CapacityLeased():
                return self._lease(event, now)
            case CapacitiesLeased(leases):
                return sum(self._lease(lease, now) for lease in leases) > 0
            case ReclaimRequested():
                return self._reclaim(event, now, commands)
            case SheddableHeld(is_held):
                self._dispatcher.is_sheddable_held = is_held
                return not is_held
            case DrainStarted(reject_queued):
                return self._drain(reject_queued, now, commands)
            case TimerFired():
                return True
            case _:
                assert_never(event)

    def _expire(self, now: float, commands: list[Command]) -> bool:
        any_expired = False
        while (overdue := self._queues.pop_overdue(now)) is not None:
            item, is_deadline = overdue
            if is_deadline:
                outcome = Outcome.EXPIRED_DEADLINE
            elif self._queues.is_pool_empty or not len(self._pool.candidates(item.lane)):
                outcome = Outcome.EXPIRED_NO_ENDPOINTS
            else:
                outcome = Outcome.EXPIRED_TTL
            commands.append(self._refusals.expire(item, outcome, now))
            any_expired = True
        return any_expired

    def _finished(self, request_id: RequestId, reason: EndReason, usage: Usage | None, now: float) -> bool:
        is_whole = reason is EndReason.COMPLETED and usage is not None
        entry = self._books.release(request_id, now, usage.output_tokens if is_whole and usage else None)
        if entry is None:
            return self._ignored()
        if entry.revoked_at is not None:
            self._revocations.end(entry, now)
            if reason is not EndReason.COMPLETED:
                reason = EndReason.EVICTED
        self._count_end(entry, reason, now)
        return True

    def _cancelled(self, request_id: RequestId, now: float) -> bool:
        item = self._queues.get(request_id)
        if item is None:
            return self._finished(request_id, EndReason.CLIENT_GONE, None, now)
        self._refusals.cancel(item, now)
        return True

    def _response_started(self, request_id: RequestId, address: str | None, now: float) -> bool:
        entry = self._books.ledger.get(request_id)
        if entry is None:
            return self._ignored()
        if address is None or address == entry.endpoint.address:
            return False
        served_by = self._pool.at_address(address)
        if served_by is None:
            return self._ignored()
        if entry.revoked_at is not None:
            self._revocations.moved(entry.endpoint, served_by)
        self._books.move(entry, served_by, now)
        return True

    def _output_observed(self, request_id: RequestId, output_tokens: int, now: float) -> bool:
        entry = self._books.ledger.get(request_id)
        if entry is None:
            return self._ignored()
        entry.output_tokens = max(entry.output_tokens, output_tokens)
        if entry.first_output_at is None:
            entry.first_output_at = now
        return self._books.output_seen(entry, now)

    def _sampled(self, sample: EndpointSample, now: float) -> bool:
        state = self._pool.set_sample(sample)
        if state is None:
            return self._ignored()
        self._books.sampled(state, now)
        return True

    def _give_up_revocations(self, now: float) -> bool:
        any_given_up = False
        while (entry := self._revocations.overdue(now)) is not None:
            self._books.release(entry.request.id, now)
            self._revocations.end(entry, now, timed_out=True)
            self._count_end(entry, EndReason.EVICTED, now)
            any_given_up = True
        return any_given_up

    def _lease(self, lease: CapacityLeased, now: float) -> bool:
        state = self._pool.states.get(lease.endpoint_id)
        if state is not None:
            state.leased_slots, state.leased_kv_tokens = lease.slots, lease.kv_tokens
        return self._touched(state, now)

    def _reclaim(self, event: ReclaimRequested, now: float, commands: list[Command]) -> bool:
        """Another replica's demand: evicts for it, and gives the credits up at once."""
        endpoint = self._pool.states.get(event.endpoint_id)
        if endpoint is None:
            return self._ignored()
        revocations = self._revocations
        for victim in revocations.victims_for_others(endpoint, event.priority, event.slots, event.kv_tokens):
            revocations.begin(victim, now)
            retry_after_s = self._refusals.retry_after_s(victim.request.priority, now)
            commands.append(Revoke(victim.request.id, endpoint.id, retry_after_s))
            if endpoint.leased_slots is not None:
                endpoint.leased_slots = max(0, endpoint.leased_slots - 1)
            if endpoint.leased_kv_tokens is not None:
                left = endpoint.leased_kv_tokens - victim.footprint.kv_tokens
                endpoint.leased_kv_tokens = max(0, left)
        return self._touched(endpoint, now)

    def _drain(self, reject_queued: bool, now: float, commands: list[Command]) -> bool:
        self._arrivals.is_draining = True
        if reject_queued:
            for item in self._queues:
                self._queues.remove(item)
                commands.append(self._refusals.expire(item, Outcome.REJECTED_SHUTTING_DOWN, now))
        return not reject_queued

    def _count_end(self, entry: InflightRequest, reason: EndReason, now: float) -> None:
        priority = entry.request.priority
        self._tally.band(priority, now).ends[reason] += 1
        self._demand.leave(priority, now)

    def _touched(self, state: EndpointState | None, now: float) -> bool:
        if state is None:
            return self._ignored()
        self._books.touch(state, now)
        return True

    def _ignored(self) -> bool:
        self._tally.ignored_events += 1
        return False
