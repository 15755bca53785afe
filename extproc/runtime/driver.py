"""The one owner of the flow controller: feeds it events, performs its commands, keeps its one timer.

Everything happens in the caller's stack: between taking an event and performing its commands nothing is
awaited, so there are no locks. It knows neither gRPC nor HTTP; whoever submits a request is told by
`decided`.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from typing import Protocol

import msgspec

from extproc.clock import Clock
from extproc.core.commands import Command, Dispatch, Revoke
from extproc.core.config import FlowControlConfig
from extproc.core.controller import FlowController
from extproc.core.events import (
    Event,
    OutputObserved,
    RequestArrived,
    RequestCancelled,
    RequestFinished,
    ResponseStarted,
    TimerFired,
)
from extproc.core.inspection import Inspection
from extproc.core.shadow import Shadow, WouldHave
from extproc.core.statistics import Statistics
from extproc.core.types import EndpointId, Request, RequestId
from extproc.errors import InvariantError
from extproc.runtime.bypass import UnqueuedRoutes
from extproc.runtime.telemetry import Recorder

logger = logging.getLogger(__name__)

_TIMER_STEP_S = 0.001
"""The event loop's resolution; a timer is set a step late rather than early."""


_TIMED_EVERY = 16
"""One in so many calls of the controller is timed."""


class Sink(Protocol):
    """Whoever waits for the decisions about one request."""

    def decided(self, command: Command) -> None:
        """Called once with what became of the request, and perhaps once more to revoke it. Must not raise."""
        ...


class Slot(msgspec.Struct):
    """Where the decisions about one request go. The first one is written once."""

    request: Request
    sink: Sink
    arrived_at: float
    dispatched: Dispatch | None = None
    dispatched_at: float = 0.0
    is_revoked: bool = False


class EndpointObserver(Protocol):
    """Hears what endpoints are given and how they answer, for their health and their measurement."""

    def note_dispatch(self, endpoint_id: EndpointId) -> None: ...

    def note_response(
        self, endpoint_id: EndpointId, served_by: str | None, status: int, *, is_unreachable: bool = False
    ) -> None:
        """An answer began; `served_by` is the address that gave it, when Envoy said so."""
        ...


class Lease(Protocol):
    """Credits that may run out; see `extproc.runtime.replicas`."""

    def guard(self, now: float) -> None:
        """Called before an event is handled; may post events that let go of capacity."""
        ...

    def noticed(self) -> None:
        """Called after events were handled."""
        ...


class Driver:
    """Joins the pure controller with the event loop. Call everything from the loop's thread."""

    def __init__(self, controller: FlowController, clock: Clock, recorder: Recorder) -> None:
        self._controller = controller
        self._clock = clock
        self._recorder = recorder
        self._slots: dict[RequestId, Slot] = {}
        self._waiting: deque[Event] = deque()
        self._is_handling = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._last_id = 0
        self._calls = 0
        self._is_closed = False
        self.lease: Lease | None = None
        self.unqueued = UnqueuedRoutes()
        self.endpoint_observer: EndpointObserver | None = None
        self.would_have: dict[int, WouldHave] = {}
        """By priority, what mode observe did not enforce since the start."""
        self._shadow: Shadow | None = None
        self._follow_mode(clock.now())

    @property
    def controller(self) -> FlowController:
        return self._controller

    def next_id(self) -> RequestId:
        """A fresh id; never a client's own."""
        self._last_id += 1
        return RequestId(self._last_id)

    def submit(self, request: Request, sink: Sink) -> None:
        """Hand a request to flow control; `sink` may be told before this returns."""
        if request.id in self._slots:
            raise InvariantError(f"request {request.id} was submitted twice")
        self._slots[request.id] = Slot(request, sink, self._clock.now())
        self._recorder.arrived(request)
        self.post(RequestArrived(request))

    def post(self, event: Event) -> None:
        """Handle an event and perform what follows. From within a sink it is handled right afterwards."""
        lease = self.lease
        if lease is not None and not self._is_handling:
            lease.guard(self._clock.now())
        self._waiting.append(event)
        if self._is_handling:
            return
        self._is_handling = True
        try:
            while self._waiting:
                self._handle(self._waiting.popleft())
        finally:
            self._is_handling = False
        self._set_timer()
        if lease is not None:
            lease.noticed()

    def statistics(self) -> Statistics:
        return self._controller.statistics()

    def inspect(self) -> Inspection:
        return self._controller.inspect(self._clock.now())

    def reconfigure(self, config: FlowControlConfig) -> None:
        """New limits and policies over the same queues; what they make possible happens at once."""
        now = self._clock.now()
        for command in self._controller.reconfigure(config, now):
            self._perform(command, now)
        self._follow_mode(now)
        self._set_timer()

    def __len__(self) -> int:
        """Requests that are queued or in flight."""
        return len(self._slots)

    def close(self) -> None:
        """Stop the timer; events are still handled, so that streams that end late settle their accounts."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _follow_mode(self, now: float) -> None:
        config = self._controller.config
        if config.mode != "observe":
            self._shadow = None
        elif self._shadow is None:
            self._shadow = Shadow.beside(self._controller, self.would_have, now)
        else:
            self._shadow.reconfigure(config, now)

    def _handle(self, event: Event) -> None:
        now = self._clock.now()
        if self._note(event, now):
            return
        commands = self._controller.handle(event, now)
        self._calls += 1
        if self._calls % _TIMED_EVERY == 0:
            self._recorder.handled(event, self._clock.now() - now)
        if self._shadow is not None:
            self._shadow.follow(event, commands, now)
        for command in commands:
            self._perform(command, now)

    def _note(self, event: Event, now: float) -> bool:
        """Counts what the event says, and lets go of requests that have ended; True: it says nothing else."""
        match event:
            case RequestArrived() | OutputObserved():
                pass
            case RequestFinished() | RequestCancelled():
                slot = self._slots.pop(event.request_id, None)
                if slot is not None:
                    expected = None
                    if type(event) is RequestFinished and event.usage is not None:
                        expected = self._controller.expected_output_tokens(event.request_id)
                    self._recorder.ended(
                        slot.request, slot.arrived_at, slot.dispatched_at, event, expected, now
                    )
            case ResponseStarted():
                return self._note_response(event, now)
            case _:
                self.unqueued.observe(event)
        return False

    def _note_response(self, event: ResponseStarted, now: float) -> bool:
        """An answer from where the request was sent tells flow control nothing that it doesn't know."""
        slot = self._slots.get(event.request_id)
        if slot is None or slot.dispatched is None:
            return False
        self._recorder.response_started(slot.request, now - slot.dispatched_at)
        dispatched, served_by = slot.dispatched, event.endpoint_address
        if self.endpoint_observer is not None:
            self.endpoint_observer.note_response(
                dispatched.endpoint_id,
                served_by,
                event.status or 0,
                is_unreachable=event.is_unreachable,
            )
        return served_by is None or served_by == dispatched.address

    def _perform(self, command: Command, now: float) -> None:
        slot = self._slots.get(command.request_id)
        if slot is None:
            logger.error("a decision named an unknown request: %s", type(command).__name__)
            return
        if isinstance(command, Revoke):
            if slot.is_revoked:
                raise InvariantError(f"request {command.request_id} was revoked twice")
            slot.is_revoked = True
            self._recorder.revoked(slot.request, now)
        elif slot.dispatched is not None:
            raise InvariantError(f"request {command.request_id} was decided twice")
        else:
            self._recorder.decided(slot.request, command, now - slot.arrived_at)
            if isinstance(command, Dispatch):
                slot.dispatched, slot.dispatched_at = command, now
                if self.endpoint_observer is not None:
                    self.endpoint_observer.note_dispatch(command.endpoint_id)
            else:
                del self._slots[command.request_id]
        slot.sink.decided(command)

    # ---- the timer

    def _set_timer(self) -> None:
        """Keep one timer, at or before the next wake-up; one that fires early costs less than re-arming."""
        wakeup = self._next_wakeup()
        if wakeup is None or self._is_closed or (self._timer is not None and self._timer_at <= wakeup):
            return
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(0.0, wakeup - self._clock.now())
        steps = math.ceil(delay_s / _TIMER_STEP_S)
        self._timer_at = wakeup
        self._timer = asyncio.get_running_loop().call_later(steps * _TIMER_STEP_S, self._fire)

    def _next_wakeup(self) -> float | None:
        wakeup = self._controller.next_wakeup()
        if self._shadow is None:
            return wakeup
        other = self._shadow.next_wakeup()
        return min((when for when in (wakeup, other) if when is not None), default=None)

    def _fire(self) -> None:
        self._timer = None
        self._timer_at = math.inf
        wakeup = self._next_wakeup()
        if wakeup is not None and wakeup <= self._clock.now():
            self.post(TimerFired())
        else:
            self._set_timer()
