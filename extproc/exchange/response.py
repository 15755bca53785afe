"""The response direction of one stream: what is answered, what is watched, and when the request has ended.

The end is reported once. In lean mode no body passes and only the end of the stream tells; where the body
passes, its last message does, so that capacity is free before Envoy has torn the stream down.
"""

from __future__ import annotations

from extproc.core.events import Event, OutputObserved, RequestFinished, ResponseStarted
from extproc.core.outcomes import EndReason
from extproc.core.types import RequestId, Usage
from extproc.exchange.commands import PROCEED, EchoBody, ExchangeCommand, Notify, Proceed
from extproc.exchange.events import BodyMode, Phase, ResponseBody, ResponseHeaders
from extproc.exchange.names import UNREACHABLE
from extproc.exchange.observation import ObservationSampler, ResponseObserver
from extproc.exchange.restore import ModelRestorer

MAX_PIECE_BYTES = 62_000
"""Largest piece of a full-duplex body that Envoy is sent."""

REPORT_EVERY_TOKENS = 64
"""How often the progress of a watched answer is told to flow control, after its first token."""


class ResponseSide:
    """State of the response of a dispatched request."""

    __slots__ = (
        "_chunks",
        "_is_sampled",
        "_max_captured_bytes",
        "_mode",
        "_reported_tokens",
        "_request_id",
        "_sampler",
        "has_ended",
        "observer",
        "restorer",
        "status",
    )

    def __init__(
        self, request_id: RequestId, mode: BodyMode, sampler: ObservationSampler, max_captured_bytes: int
    ) -> None:
        self._request_id = request_id
        self._mode = mode
        self._sampler = sampler
        self._max_captured_bytes = max_captured_bytes
        self._reported_tokens = 0
        self._is_sampled = False
        self._chunks = 0
        self.restorer: ModelRestorer | None = None
        self.observer: ResponseObserver | None = None
        self.status = 0
        self.has_ended = False

    @property
    def has_started(self) -> bool:
        return self.status > 0

    @property
    def is_underway(self) -> bool:
        """Whether more is to come, as far as one can tell: an unseen body may have ended at any time."""
        if self.has_ended:
            return False
        return not (self.observer.is_complete if self.observer is not None else self.has_started)

    def on_headers(self, event: ResponseHeaders, now: float) -> list[ExchangeCommand]:
        """Answer the response headers; perhaps ask Envoy for this response's body."""
        status = event.headers.get(":status", "")
        self.status = int(status) if status.isascii() and status.isdigit() else 0
        commands: list[ExchangeCommand] = [
            Notify(
                ResponseStarted(
                    self._request_id, event.served_by, self.status or None, UNREACHABLE in event.headers
                )
            )
        ]
        override: BodyMode | None = None
        if self._mode is BodyMode.NONE:
            self.restorer = None  # not by chance either, in the responses that are sampled
        if not event.is_end and self._is_readable(event):
            if self._mode is BodyMode.NONE and self._sampler.wants(now):
                override = self._mode = BodyMode.STREAMED
                self._is_sampled = True
            if self._mode is not BodyMode.NONE:
                content_type = event.headers.get("content-type", "")
                self.observer = ResponseObserver(content_type, self._max_captured_bytes)
        removed: tuple[str, ...] = ()
        if self.restorer is not None:
            if self._mode in (BodyMode.STREAMED, BodyMode.FULL_DUPLEX_STREAMED):
                removed = ("content-length",)
            elif self._mode is not BodyMode.BUFFERED:
                self.restorer = None
        if removed or override is not None:
            phase = Phase.RESPONSE_HEADERS
            commands.append(Proceed(phase, remove_headers=removed, response_body_override=override))
        else:
            commands.append(PROCEED[Phase.RESPONSE_HEADERS])
        if event.is_end:
            commands += self.finish(self._natural_end())
        return commands

    def on_body(self, event: ResponseBody, now: float) -> list[ExchangeCommand]:
        """Answer a piece of the response body, and look at it."""
        self._chunks += 1
        commands: list[ExchangeCommand] = []
        if self.observer is not None:
            self.observer.feed(event.data, event.is_end, now)
            commands += self._progress()
        data = event.data
        if self.restorer is not None:
            data = self.restorer.feed(data, event.is_end or self._mode is BodyMode.BUFFERED)
        commands += answer_body(Phase.RESPONSE_BODY, self._mode, event.data, data, event.is_end)
        if event.is_end or (self._mode is BodyMode.BUFFERED):
            commands += self.finish(self._natural_end())
        return commands

    def on_trailers(self) -> list[ExchangeCommand]:
        commands: list[ExchangeCommand] = []
        held = self.restorer.feed(b"", True) if self.restorer is not None else b""
        if held and self._mode is BodyMode.FULL_DUPLEX_STREAMED:
            commands.append(EchoBody(Phase.RESPONSE_BODY, held, False))
        return [*commands, PROCEED[Phase.RESPONSE_TRAILERS], *self.finish(self._natural_end())]

    def finish(self, reason: EndReason) -> list[ExchangeCommand]:
        """Report the end of the request, the first time only."""
        if self.has_ended:
            return []
        self.has_ended = True
        if self._is_sampled:
            self._sampler.ended(self._chunks)
        return [Notify(RequestFinished(self._request_id, reason, self.usage()))]

    def end_by_stream(self, was_evicted: bool) -> list[ExchangeCommand]:
        """The stream is over: find out what that means for the request."""
        if self.has_ended:
            return []
        if was_evicted:
            return self.finish(EndReason.EVICTED)
        return self.finish(EndReason.CLIENT_GONE if self.is_underway else self._natural_end())

    def usage(self) -> Usage | None:
        """Token counts as far as they were seen; without the engine's figure the chunks that were counted."""
        if self.observer is None:
            return None
        seen = self.observer.usage
        return Usage(
            prompt_tokens=seen.prompt_tokens if seen else None,
            output_tokens=self.observer.output_tokens or None,
            cached_tokens=seen.cached_tokens if seen else None,
        )

    def _natural_end(self) -> EndReason:
        return EndReason.FAILED if self.status >= 500 else EndReason.COMPLETED

    def _is_readable(self, event: ResponseHeaders) -> bool:
        """Only plain answers of the engine are worth watching: errors and compressed bodies say nothing."""
        encoding = event.headers.get("content-encoding", "identity")
        return 200 <= self.status < 300 and encoding == "identity"

    def _progress(self) -> list[ExchangeCommand]:
        """Tell the first output at once, later output now and then."""
        assert self.observer is not None
        tokens = self.observer.counted_tokens
        if not tokens or (self._reported_tokens and tokens < self._reported_tokens + REPORT_EVERY_TOKENS):
            return []
        self._reported_tokens = tokens
        event: Event = OutputObserved(self._request_id, tokens)
        return [Notify(event)]


def answer_body(
    phase: Phase, mode: BodyMode, original: bytes, data: bytes, is_end: bool
) -> list[ExchangeCommand]:
    """The answer to one body message: nothing changed, replaced, or (full duplex) sent on in pieces."""
    if mode is BodyMode.FULL_DUPLEX_STREAMED:
        return echo_body(phase, data, is_end)
    if data is original or data == original:
        return [PROCEED[phase]]
    changed = (("content-length", str(len(data))),) if mode is BodyMode.BUFFERED else ()
    return [Proceed(phase, set_headers=changed, body=data)]


def echo_body(phase: Phase, data: bytes, is_end: bool) -> list[ExchangeCommand]:
    """Send a full-duplex body on, in pieces that Envoy accepts; an empty one only to carry its end."""
    if not data and not is_end:
        return []
    if len(data) <= MAX_PIECE_BYTES:
        return [EchoBody(phase, data, is_end)]
    view = memoryview(data)
    last = (len(data) - 1) // MAX_PIECE_BYTES * MAX_PIECE_BYTES
    return [
        EchoBody(phase, bytes(view[at : at + MAX_PIECE_BYTES]), is_end and at == last)
        for at in range(0, len(data), MAX_PIECE_BYTES)
    ]
