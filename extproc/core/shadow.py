"""What enforcement would have done with the traffic that `mode: observe` lets through; it changes nothing.

A second controller, which enforces, is told of the same requests, endpoints and measurements. Its decisions
are counted instead of performed. It can't know how long a request would have taken that it starts later than
the servers did, so it goes by the work that the servers finish:

- an answer that ends for real ends here too where its request is running;
- where it is still waiting, that work would have gone into the request that has been running for longest:
  the two change roles, so that one ends now and the other when the first one's answer does;
- where it was refused or ended early, the work would have gone there too, if anything waits.

Requests that wait inside a server only because nothing was held are taken off its measurements. What clients
would have done about refusals it can't know: none comes back.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple, assert_never

from msgspec import structs

from extproc.core.commands import Command, Dispatch, Displace, Expire, Reject, Revoke
from extproc.core.config import FlowControlConfig
from extproc.core.controller import FlowController
from extproc.core.events import (
    DrainStarted,
    EndpointSampled,
    Event,
    ReclaimRequested,
    RequestArrived,
    RequestCancelled,
    RequestFinished,
    ResponseStarted,
)
from extproc.core.outcomes import EndReason
from extproc.core.types import EndpointId, EndpointSample, Request, RequestId


@dataclass(slots=True)
class WouldHave:
    """Counts of one priority. Every arrival is one of `passed`, `held` and `rejected`; of those `held` some
    are `displaced` or `expired` later. `evicted` are its own requests that would have been ended."""

    passed: int = 0
    held: int = 0
    rejected: int = 0
    expired: int = 0
    displaced: int = 0
    evicted: int = 0
    held_s: float = 0.0
    """Seconds that those which left the queue would have spent there."""


class _Place(NamedTuple):
    endpoint_id: EndpointId
    priority: int


class _Waiting(NamedTuple):
    priority: int
    since: float


class Shadow:
    """Follows a controller that observes; `counts` are only ever added to."""

    def __init__(self, config: FlowControlConfig, counts: dict[int, WouldHave]) -> None:
        self._controller = FlowController(_enforcing(config), random.Random(0))
        self._counts = counts
        self._served_at: dict[RequestId, EndpointId] = {}
        """Where the requests that run for real were sent."""
        self._served: Counter[EndpointId] = Counter()
        """How many of them."""
        self._places: dict[RequestId, _Place] = {}
        """What would be running; taken for longest first."""
        self._places_at: dict[EndpointId, dict[RequestId, None]] = {}
        self._waiting: dict[RequestId, _Waiting] = {}
        self._stands_for: dict[RequestId, RequestId] = {}
        """Whose end here comes with a real end: of requests that changed roles."""
        self._ends_with: dict[RequestId, RequestId] = {}
        """The other way round."""
        for priority in config.declared_priorities or (0,):
            self._of(priority)

    @classmethod
    def beside(cls, controller: FlowController, counts: dict[int, WouldHave], now: float) -> Shadow:
        """The shadow of a controller that may have endpoints and requests already; those aren't counted."""
        shadow = cls(controller.config, {})
        for event in controller.pool_events():
            shadow._handle(event, now)
        for entry in controller.in_flight():
            shadow._sent(entry.request.id, entry.endpoint.id)
            shadow._arrived(entry.request, now)
        for priority in shadow._counts:
            counts.setdefault(priority, WouldHave())
        shadow._counts = counts
        return shadow

    def follow(self, event: Event, commands: Iterable[Command], now: float) -> None:
        """The controller that observes was given `event` and has answered `commands`."""
        refused: RequestId | None = None
        gone: list[RequestId] = []
        for command in commands:
            if isinstance(command, Dispatch):
                self._sent(command.request_id, command.endpoint_id)
            elif isinstance(command, Reject):
                refused = command.request_id
            else:
                gone.append(command.request_id)
        match event:
            case RequestArrived(request):
                if request.id != refused:
                    self._arrived(request, now)
            case RequestFinished() as finished:
                self._ended(finished, now)
            case RequestCancelled(request_id):
                self._ended(RequestFinished(request_id, EndReason.CLIENT_GONE), now)
            case EndpointSampled(sample):
                self._handle(EndpointSampled(self._corrected(sample)), now)
            case ResponseStarted() | DrainStarted() | ReclaimRequested():
                pass
            case _:
                self._handle(event, now)
        for request_id in gone:
            self._ended(RequestFinished(request_id, EndReason.CLIENT_GONE), now)

    @property
    def is_idle(self) -> bool:
        """Nothing would be running or waiting."""
        return not self._places and not self._waiting

    def next_wakeup(self) -> float | None:
        """When to follow a `TimerFired` at the latest."""
        return self._controller.next_wakeup()

    def reconfigure(self, config: FlowControlConfig, now: float) -> None:
        """Other limits to be tried on the same traffic."""
        self._count(self._controller.reconfigure(_enforcing(config), now), now)

    def _sent(self, request_id: RequestId, endpoint_id: EndpointId) -> None:
        self._served_at[request_id] = endpoint_id
        self._served[endpoint_id] += 1

    def _arrived(self, request: Request, now: float) -> None:
        self._waiting[request.id] = _Waiting(request.priority, now)
        self._handle(RequestArrived(request), now)
        if request.id in self._waiting:
            self._of(request.priority).held += 1
        elif request.id in self._places:
            self._of(request.priority).passed += 1

    def _ended(self, event: RequestFinished, now: float) -> None:
        """A real request has ended."""
        served_at = self._served_at.pop(event.request_id, None)
        if served_at is not None:
            self._served[served_at] -= 1
            if not self._served[served_at]:
                del self._served[served_at]
        self._settle(event, served_at, now)

    def _settle(self, event: RequestFinished, served_at: EndpointId | None, now: float) -> None:
        """`served_at` has finished this request, or as much work."""
        request_id = event.request_id
        if request_id in self._places:
            self._free(request_id)
            self._handle(event, now)
        elif request_id in self._waiting:
            if event.reason is EndReason.CLIENT_GONE or not self._places:
                self._leave(request_id, now)
                self._handle(RequestCancelled(request_id), now)
            else:
                self._swap(request_id, self._longest_running(served_at), now)
        elif (other := self._stands_for.pop(request_id, None)) is not None:
            self._ends_with.pop(other, None)
            self._settle(RequestFinished(other), served_at, now)
        elif served_at is not None and self._waiting and self._places:
            self._finish(self._longest_running(served_at), now)

    def _swap(self, waiting: RequestId, running: RequestId, now: float) -> None:
        """`running` ends now, `waiting` when the answer ends that would have ended the other."""
        holder = self._ends_with.pop(running, running)
        self._stands_for[holder] = waiting
        self._ends_with[waiting] = holder
        self._finish(running, now)

    def _longest_running(self, endpoint_id: EndpointId | None) -> RequestId:
        """There, or anywhere if nothing runs there."""
        there = None if endpoint_id is None else self._places_at.get(endpoint_id)
        return next(iter(there or self._places))

    def _finish(self, request_id: RequestId, now: float) -> None:
        self._free(request_id)
        self._handle(RequestFinished(request_id), now)

    def _corrected(self, sample: EndpointSample) -> EndpointSample:
        """Without those in the server's queue that would not have been sent there."""
        if not sample.waiting_requests:
            return sample
        surplus = self._served[sample.endpoint_id] - len(self._places_at.get(sample.endpoint_id, ()))
        waiting = max(0, sample.waiting_requests - max(0, surplus))
        return structs.replace(sample, waiting_requests=waiting)

    def _handle(self, event: Event, now: float) -> None:
        self._count(self._controller.handle(event, now), now)

    def _count(self, commands: Iterable[Command], now: float) -> None:
        """Counts decisions and takes them for done; victims of evictions end at once."""
        decided = deque(commands)
        while decided:
            command = decided.popleft()
            match command:
                case Dispatch(request_id, endpoint_id):
                    waited = self._leave(request_id, now)
                    self._places[request_id] = _Place(endpoint_id, waited.priority)
                    self._places_at.setdefault(endpoint_id, {})[request_id] = None
                case Reject(request_id):
                    self._of(self._waiting.pop(request_id).priority).rejected += 1
                case Expire(request_id):
                    self._of(self._leave(request_id, now).priority).expired += 1
                case Displace(request_id):
                    self._of(self._leave(request_id, now).priority).displaced += 1
                case Revoke(request_id):
                    self._of(self._free(request_id).priority).evicted += 1
                    end = RequestFinished(request_id, EndReason.EVICTED)
                    decided.extend(self._controller.handle(end, now))
                case _:
                    assert_never(command)

    def _leave(self, request_id: RequestId, now: float) -> _Waiting:
        """It waits no longer."""
        waited = self._waiting.pop(request_id)
        self._of(waited.priority).held_s += now - waited.since
        return waited

    def _free(self, request_id: RequestId) -> _Place:
        place = self._places.pop(request_id)
        there = self._places_at[place.endpoint_id]
        del there[request_id]
        if not there:
            del self._places_at[place.endpoint_id]
        return place

    def _of(self, priority: int) -> WouldHave:
        counts = self._counts.get(priority)
        if counts is None:
            counts = self._counts[priority] = WouldHave()
        return counts


def _enforcing(config: FlowControlConfig) -> FlowControlConfig:
    return replace(config, mode="enforce")
