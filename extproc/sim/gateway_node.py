"""One processor of the simulated system: the production `FlowController` on the calendar.

What the asyncio shell does with sockets, this does with delays: it hands in events, performs commands in
order and keeps one appointment for `next_wakeup()`. No policy is decided here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Protocol, assert_never

from extproc.core.commands import Command, Dispatch, Displace, Expire, Reject, Revoke
from extproc.core.config import FlowControlConfig
from extproc.core.controller import FlowController
from extproc.core.events import Event, RequestArrived, TimerFired
from extproc.core.outcomes import Outcome
from extproc.core.types import EndpointId, Request, RequestId
from extproc.sim.calendar import Calendar, Rank
from extproc.sim.engine_node import EngineNode

_TIMER_RESOLUTION_S = 1e-6
"""No timer of a real event loop is finer; so that virtual time moves even if a wake-up is due at once."""


class GatewayClient(Protocol):
    """Whoever sent a request and learns what the gateway decided."""

    def on_dispatched(self, engine: EngineNode) -> None: ...

    def on_refused(self, outcome: Outcome, retry_after_s: int | None) -> None: ...

    def on_revoked(self) -> None: ...


class GatewayNode:
    """One replica. `engines` is shared by all replicas and may grow."""

    def __init__(
        self,
        config: FlowControlConfig,
        rng: random.Random,
        calendar: Calendar,
        engines: Mapping[EndpointId, EngineNode],
        *,
        is_leased: bool = False,
    ) -> None:
        self.controller = FlowController(config, rng, is_leased=is_leased)
        self.on_handled: Callable[[], None] | None = None
        """Told after every event, of a replica that shares its pool."""
        self._calendar = calendar
        self._engines = engines
        self._clients: dict[RequestId, GatewayClient] = {}
        self._timer_at: float | None = None

    def arrive(self, request: Request, client: GatewayClient) -> None:
        """A request's headers and body are here."""
        self._clients[request.id] = client
        self.handle(RequestArrived(request))

    def forget(self, request_id: RequestId) -> None:
        """The request has ended; its id means nothing from now on."""
        self._clients.pop(request_id, None)

    def handle(self, event: Event) -> None:
        """Hand `event` to the controller and perform what it answers."""
        now = self._calendar.now
        for command in self.controller.handle(event, now):
            self._perform(command)
        self._keep_appointment(now)
        if self.on_handled is not None:
            self.on_handled()

    @property
    def open_requests(self) -> int:
        """Streams that Envoy has open with it."""
        return len(self._clients)

    def _perform(self, command: Command) -> None:
        match command:
            case Dispatch():
                self._clients[command.request_id].on_dispatched(self._engines[command.endpoint_id])
            case Reject() | Expire():
                self._refuse(command.request_id, command.outcome, command.retry_after_s)
            case Displace():
                self._refuse(command.request_id, Outcome.DISPLACED, command.retry_after_s)
            case Revoke():
                client = self._clients.get(command.request_id)
                if client is not None:
                    client.on_revoked()
            case _:
                assert_never(command)

    def _refuse(self, request_id: RequestId, outcome: Outcome, retry_after_s: int | None) -> None:
        self._clients.pop(request_id).on_refused(outcome, retry_after_s)

    def _keep_appointment(self, now: float) -> None:
        wakeup = self.controller.next_wakeup()
        if wakeup is None or (self._timer_at is not None and now < self._timer_at <= wakeup):
            return
        self._timer_at = max(wakeup, now + _TIMER_RESOLUTION_S)
        self._calendar.at(self._timer_at, Rank.TIMER, self._timer)

    def _timer(self) -> None:
        if self._timer_at is not None and self._calendar.now >= self._timer_at:
            self._timer_at = None
            self.handle(TimerFired())
