"""One open ext_proc stream: the exchange machine joined with a gRPC call and the driver.

Reading is the stream's own coroutine; a decision that comes while it waits for Envoy (a dispatch from the
queue, an expiry, a revocation) is written by a short task, so the usual request needs no task at all.
Only one write runs at a time. It knows nothing of policies and little of HTTP: that is the machine's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

import grpc
from google.protobuf.message import DecodeError

from extproc.clock import Clock
from extproc.core.commands import Command, Dispatch, Displace, Expire
from extproc.errors import PeerProtocolError
from extproc.exchange.commands import (
    CountTokens,
    EchoBody,
    ExchangeCommand,
    Note,
    Notify,
    PickUnqueued,
    Proceed,
    RespondNow,
    SubmitRequest,
)
from extproc.exchange.machine import Exchange, State
from extproc.exchange.refusals import refuse_internal
from extproc.runtime.driver import Driver
from extproc.runtime.journal import Journal, RequestRecord
from extproc.runtime.patient_loop import ABANDON
from extproc.runtime.telemetry import Telemetry
from extproc.tasks import TaskKeeper
from extproc.wire.codec import encode, parse_request, read_event, read_modes

logger = logging.getLogger(__name__)

_EOF: object = grpc.aio.EOF  # type: ignore[attr-defined]

CLOSE_GRACE_S = 10.0
"""How long a peer may keep a stream open that we have answered for good."""

Counter = Callable[[CountTokens], Awaitable[int | None]]
"""Counts a prompt exactly; None: it could not be done in time."""


class Call(Protocol):
    """What is used of a gRPC call; reading gives bytes, or grpc.aio.EOF."""

    async def read(self) -> object: ...

    async def write(self, message: bytes) -> None: ...


class Stream:
    """Runs one exchange. `run` returns when the stream is over; it must be awaited to its end."""

    __slots__ = (
        "_arrived_at",
        "_call",
        "_clock",
        "_count_tokens",
        "_counting",
        "_driver",
        "_guard",
        "_has_modes",
        "_is_answered",
        "_is_taking",
        "_is_writing",
        "_journal",
        "_keeper",
        "_outbox",
        "_queued_s",
        "_task",
        "_telemetry",
        "exchange",
    )

    def __init__(
        self,
        call: Call,
        exchange: Exchange,
        driver: Driver,
        clock: Clock,
        telemetry: Telemetry,
        keeper: TaskKeeper,
        count_tokens: Counter | None,
        journal: Journal | None = None,
    ) -> None:
        self.exchange = exchange
        self._call = call
        self._driver = driver
        self._clock = clock
        self._telemetry = telemetry
        self._keeper = keeper
        self._count_tokens = count_tokens
        self._journal = journal
        self._queued_s = 0.0
        self._outbox: list[bytes] = []
        self._is_taking = False
        self._is_writing = False
        self._is_answered = False
        self._has_modes = False
        self._arrived_at = clock.now()
        self._task: asyncio.Task[None] | None = None
        self._counting: asyncio.Task[None] | None = None
        self._guard: asyncio.TimerHandle | None = None

    async def run(self) -> bool:
        """Read until the peer is done, or until we have answered for good; True: the peer was done first."""
        end = "internal"
        self._task = asyncio.current_task()
        try:
            end = await self._converse()
        except asyncio.CancelledError:
            end = self._ending()
            raise
        except (PeerProtocolError, DecodeError) as error:
            end = "protocol-error"
            logger.warning("a proxy broke the ext_proc protocol: %s", error)
            raise PeerProtocolError(str(error)) from error
        except grpc.aio.BaseError:
            end = "client-gone"  # the peer left while we wrote
        finally:
            self._finish(end)
        return not self._is_answered

    async def _converse(self) -> str:
        call = self._call
        while True:
            message = await call.read()
            if message is _EOF:
                return self._ending()
            self._take(message)
            if self._outbox:
                await self._flush()
            if self._is_answered and not self._is_writing:
                return "complete"

    def _ending(self) -> str:
        """What the peer's end of the stream means; whether it was a reset makes no difference."""
        if self.exchange.state is State.QUEUED:
            return "left-in-queue"
        return "client-gone" if self.exchange.is_underway else "complete"

    def decided(self, command: Command) -> None:
        """The driver's word on our request; may come from within our own submission."""
        if isinstance(command, Dispatch | Expire | Displace):
            self._queued_s = command.queued_s
        try:
            self._perform(self.exchange.decide(command))
        except Exception:
            logger.exception("a decision could not be carried out")
            self._respond(RespondNow(refuse_internal()))
        self._write_soon()

    # ---- one message

    def _take(self, message: object) -> None:
        assert isinstance(message, bytes)
        request = parse_request(message)
        if not self._has_modes:
            self._has_modes = True
            self.exchange.start(read_modes(request))
        event = read_event(request)
        if event is None:
            return
        self._is_taking = True
        try:
            clock = self._clock
            self._perform(self.exchange.receive(event, clock.now(), clock.wall_time()))
        except PeerProtocolError:
            raise
        except Exception:
            logger.exception("a request failed inside the gateway")
            self._respond(RespondNow(refuse_internal()))
        finally:
            self._is_taking = False

    def _perform(self, commands: list[ExchangeCommand]) -> None:
        for command in commands:
            if isinstance(command, Proceed):
                self._outbox.append(encode(command))
            elif isinstance(command, Notify):
                self._driver.post(command.event)
            elif isinstance(command, SubmitRequest):
                self._driver.submit(command.request, self)
            elif isinstance(command, EchoBody):
                self._outbox.append(encode(command))
            elif isinstance(command, RespondNow):
                self._respond(command)
            elif isinstance(command, PickUnqueued):
                address = self._driver.unqueued.pick(command.subset)
                self._telemetry.bypassed(self.exchange.request_class.kind.value)
                self._perform(self.exchange.route_unqueued(address))
            elif isinstance(command, CountTokens):
                self._counting = self._keeper.spawn(self._count(command), name="count-tokens")
            elif isinstance(command, Note):
                self._note(command.what)

    def _respond(self, command: RespondNow) -> None:
        self._telemetry.refused(command.refusal)
        self._outbox.append(encode(command))
        self._is_answered = True

    def _note(self, what: str) -> None:
        kind, _, name = what.partition(":")
        if kind == "ignored-header":
            self._telemetry.ignored_header(name)
        else:
            self._telemetry.noted(what)

    async def _count(self, command: CountTokens) -> None:
        tokens = None
        try:
            tokens = await self._count_tokens(command) if self._count_tokens is not None else None
        except Exception:  # whatever a tokenizer makes of a client's text, the estimate stands
            logger.exception("a prompt could not be counted")
        self._perform(self.exchange.tokens_counted(tokens))
        self._write_soon()

    # ---- writing

    def _write_soon(self) -> None:
        """Write from a task what was decided while `run` waits for the peer."""
        if self._outbox and not self._is_taking and not self._is_writing:
            self._keeper.spawn(self._write_decision(), name="write-decision")

    async def _write_decision(self) -> None:
        try:
            await self._flush()
        except (grpc.aio.BaseError, asyncio.InvalidStateError):
            logger.debug("a decision came after its stream had ended")
            return
        if self._is_answered and self._task is not None and self._guard is None:
            loop = asyncio.get_running_loop()
            self._guard = loop.call_later(CLOSE_GRACE_S, self._task.cancel, ABANDON)

    async def _flush(self) -> None:
        """Write the outbox, unless that is being done already."""
        if self._is_writing:
            return
        self._is_writing = True
        try:
            while self._outbox:
                messages, self._outbox = self._outbox, []
                for message in messages:
                    await self._call.write(message)
        finally:
            self._is_writing = False

    def _finish(self, end: str) -> None:
        if self._guard is not None:
            self._guard.cancel()
        if self._counting is not None:
            self._counting.cancel()
        exchange = self.exchange
        self._is_taking = True  # nothing may be written any more
        self._perform(exchange.close())
        self._telemetry.stream_ended(end)
        if self._journal is not None:
            self._journal.record(self._describe(end))
        response, admission = exchange.response, exchange.admission
        if response is None or admission is None:
            return
        if response.status >= 400:
            self._telemetry.upstream_error(response.status)
        if response.observer is not None:
            observer = response.observer
            self._telemetry.observed(
                admission.request, observer.times, observer.output_tokens, self._arrived_at
            )

    def _describe(self, end: str) -> RequestRecord:
        exchange = self.exchange
        admission, response = exchange.admission, exchange.response
        request = admission.request if admission is not None else None
        usage = response.usage() if response is not None else None
        status = response.status if response is not None else 0
        return RequestRecord(
            api=exchange.request_class.kind.value,
            model=request.model if request else "",
            priority=request.priority if request else 0,
            fairness_id=request.fairness_id if request else "",
            outcome=exchange.outcome,
            stream_end=end,
            status=exchange.refusal.status if exchange.refusal is not None else status,
            prompt_tokens=request.prompt_tokens if request else 0,
            output_tokens=usage.output_tokens if usage else None,
            queued_s=self._queued_s,
            duration_s=self._clock.now() - self._arrived_at,
            ended_at=self._clock.wall_time(),
            request_id=exchange.trace.request_id,
            traceparent=exchange.trace.traceparent,
        )
