"""A controller, observing with its shadow or enforcing, before an engine that serves in order of arrival."""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from itertools import count

from extproc.core.commands import Command, Dispatch, Displace, Expire, Reject, Revoke
from extproc.core.config import FlowControlConfig
from extproc.core.controller import FlowController
from extproc.core.events import EndpointAdded, Event, RequestArrived, RequestFinished, TimerFired
from extproc.core.outcomes import EndReason
from extproc.core.shadow import Shadow, WouldHave
from extproc.core.types import Request, RequestId
from tests.support.core import START_S, endpoint


@dataclass(frozen=True, slots=True)
class Job:
    """One request of a run: when it comes, how important it is, how long an engine is busy with it."""

    at_s: float
    service_s: float
    priority: int = 0


@dataclass(slots=True)
class Engine:
    """Serves up to `slots` requests at once; the others wait inside it, first come, first served."""

    slots: int
    running: set[RequestId] = field(default_factory=set)
    waiting: deque[RequestId] = field(default_factory=deque)

    def submit(self, request_id: RequestId) -> RequestId | None:
        """What starts now."""
        if len(self.running) < self.slots:
            self.running.add(request_id)
            return request_id
        self.waiting.append(request_id)
        return None

    def end(self, request_id: RequestId) -> RequestId | None:
        """What starts in its place."""
        if request_id in self.waiting:
            self.waiting.remove(request_id)
            return None
        self.running.discard(request_id)
        if not self.waiting:
            return None
        started = self.waiting.popleft()
        self.running.add(started)
        return started


class Rehearsal:
    """Plays jobs through a controller and one engine; with `mode: observe` a shadow counts beside it."""

    def __init__(self, config: FlowControlConfig, slots: int) -> None:
        self.controller = FlowController(config, random.Random(1))
        self.counts: dict[int, WouldHave] = {}
        self.shadow: Shadow | None = None
        if config.mode == "observe":
            self.shadow = Shadow.beside(self.controller, self.counts, START_S)
        self.engine = Engine(slots)
        self.now = START_S
        self.said: Counter[str] = Counter()
        self.queued_s = 0.0
        self._services: dict[RequestId, float] = {}
        self._ends: list[tuple[float, int, RequestId]] = []
        self._over: set[RequestId] = set()
        self._numbers = count()
        self.send(EndpointAdded(endpoint("gpu")))

    def play(self, jobs: list[Job]) -> None:
        """All jobs, then what is still running, to the end."""
        for number, job in enumerate(sorted(jobs, key=lambda job: job.at_s), start=1):
            self._until(START_S + job.at_s)
            request = Request(id=RequestId(number), priority=job.priority)
            self._services[request.id] = job.service_s
            self.send(RequestArrived(request))
        self._until(float("inf"))

    def send(self, event: Event) -> list[Command]:
        commands = self.controller.handle(event, self.now)
        if self.shadow is not None:
            self.shadow.follow(event, commands, self.now)
        for command in commands:
            self._perform(command)
        return commands

    def _perform(self, command: Command) -> None:
        match command:
            case Dispatch(request_id):
                self.said["passed" if command.queued_s == 0 else "held"] += 1
                self.queued_s += command.queued_s
                self._start(self.engine.submit(request_id))
            case Expire():
                self.said["held"] += 1
                self.said["expired"] += 1
                self.queued_s += command.queued_s
            case Displace():
                self.said["held"] += 1
                self.said["displaced"] += 1
                self.queued_s += command.queued_s
            case Reject():
                self.said["rejected"] += 1
            case Revoke(request_id):
                self.said["evicted"] += 1
                self._end(request_id, EndReason.EVICTED)

    def _until(self, time_s: float) -> None:
        while True:
            wakeups = [self.controller.next_wakeup(), self.shadow.next_wakeup() if self.shadow else None]
            timer = min((when for when in wakeups if when is not None), default=float("inf"))
            due = min(timer, self._ends[0][0] if self._ends else float("inf"))
            if due > time_s or due == float("inf"):
                break
            self.now = max(self.now, due)
            if self._ends and self._ends[0][0] <= due:
                self._end(heapq.heappop(self._ends)[2], EndReason.COMPLETED)
            else:
                self.send(TimerFired())
        if time_s != float("inf"):
            self.now = time_s

    def _start(self, request_id: RequestId | None) -> None:
        if request_id is not None:
            end = self.now + self._services[request_id]
            heapq.heappush(self._ends, (end, next(self._numbers), request_id))

    def _end(self, request_id: RequestId, reason: EndReason) -> None:
        if request_id not in self._over:
            self._over.add(request_id)
            self._start(self.engine.end(request_id))
            self.send(RequestFinished(request_id, reason))


def played(config: FlowControlConfig, slots: int, jobs: list[Job]) -> Rehearsal:
    """After all jobs have gone through."""
    rehearsal = Rehearsal(config, slots)
    rehearsal.play(jobs)
    return rehearsal


def both(config: FlowControlConfig, slots: int, jobs: list[Job]) -> tuple[Rehearsal, Rehearsal]:
    """The same jobs observed, and enforced."""
    return played(replace(config, mode="observe"), slots, jobs), played(
        replace(config, mode="enforce"), slots, jobs
    )
