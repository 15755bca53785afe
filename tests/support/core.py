"""Builders and a small driver for tests of the policy core."""

from __future__ import annotations

import random
from itertools import count

from msgspec.structs import replace

from extproc.core.commands import Command, Dispatch, Displace, Expire, Reject, Revoke
from extproc.core.config import FlowControlConfig
from extproc.core.controller import FlowController
from extproc.core.events import (
    EndpointAdded,
    EndpointRemoved,
    EndpointSampled,
    Event,
    RequestArrived,
    RequestCancelled,
    RequestFinished,
    TimerFired,
)
from extproc.core.outcomes import EndReason
from extproc.core.types import Endpoint, EndpointId, EndpointSample, FairnessId, Request, RequestId, Usage

START_S = 1000.25
"""An odd start, so that nothing works by accident at zero."""


def endpoint(name: str = "a", **attributes: object) -> Endpoint:
    address = f"{name}:8000"
    made = Endpoint(id=EndpointId(f"{name}|{address}|1"), name=name, address=address)
    return replace(made, **attributes)  # type: ignore[arg-type]


class Script:
    """Drives a `FlowController` in virtual time and keeps what it answered."""

    def __init__(
        self,
        config: FlowControlConfig | None = None,
        *,
        endpoints: int = 1,
        seed: int = 1,
        is_leased: bool = False,
    ) -> None:
        rng = random.Random(seed)
        self.controller = FlowController(config or FlowControlConfig(), rng, is_leased=is_leased)
        self.now = START_S
        self.commands: list[Command] = []
        self._ids = count(1)
        for index in range(endpoints):
            self.add(endpoint(f"e{index}"))

    def send(self, event: Event) -> list[Command]:
        answered = self.controller.handle(event, self.now)
        self.commands.extend(answered)
        return answered

    def add(self, item: Endpoint) -> list[Command]:
        return self.send(EndpointAdded(item))

    def drop(self, item: Endpoint) -> list[Command]:
        return self.send(EndpointRemoved(item.id))

    def sample(self, item: Endpoint, **values: object) -> list[Command]:
        sample = EndpointSample(endpoint_id=item.id, sampled_at=self.now)
        return self.send(EndpointSampled(replace(sample, **values)))  # type: ignore[arg-type]

    def arrive(self, priority: int = 0, flow: str = "f", **attributes: object) -> RequestId:
        """Hands in a new request and returns its id; what was answered is in `commands`."""
        request_id = RequestId(next(self._ids))
        request = Request(id=request_id, priority=priority, fairness_id=FairnessId(flow))
        self.send(RequestArrived(replace(request, **attributes)))  # type: ignore[arg-type]
        return request_id

    def finish(
        self, request_id: RequestId, reason: EndReason = EndReason.COMPLETED, usage: Usage | None = None
    ) -> list[Command]:
        return self.send(RequestFinished(request_id, reason, usage))

    def cancel(self, request_id: RequestId) -> list[Command]:
        return self.send(RequestCancelled(request_id))

    def advance(self, seconds: float) -> list[Command]:
        """Lets time pass, with every wake-up the controller asked for at its exact time."""
        end = self.now + seconds
        answered: list[Command] = []
        while (due := self.controller.next_wakeup()) is not None and due <= end:
            self.now = max(self.now, due)
            answered.extend(self.send(TimerFired()))
        self.now = end
        return answered

    def dispatched(self) -> list[RequestId]:
        return [command.request_id for command in self.commands if isinstance(command, Dispatch)]

    def revoked(self) -> list[RequestId]:
        return [command.request_id for command in self.commands if isinstance(command, Revoke)]

    def rejected(self) -> list[Reject]:
        return [command for command in self.commands if isinstance(command, Reject)]

    def expired(self) -> list[Expire]:
        return [command for command in self.commands if isinstance(command, Expire)]

    def displaced(self) -> list[RequestId]:
        return [command.request_id for command in self.commands if isinstance(command, Displace)]

    def where(self, request_id: RequestId) -> str:
        """The name of the endpoint that the request was dispatched to."""
        for command in self.commands:
            if isinstance(command, Dispatch) and command.request_id == request_id:
                return command.address.split(":")[0]
        raise AssertionError(f"request {request_id} was never dispatched")
