"""One ext_proc stream, that is one HTTP request and its response, as a machine without I/O.

Events go in, commands come out; nothing waits, nothing raises but `PeerProtocolError` for a peer that
breaks the protocol. It knows no gRPC, no clock and no queue: decisions of flow control are handed in by
`decide`.
"""

from __future__ import annotations

from enum import Enum

from extproc.core import commands as core
from extproc.core.events import RequestCancelled
from extproc.core.outcomes import Outcome
from extproc.core.types import RequestId
from extproc.errors import PeerProtocolError
from extproc.exchange import events as ev
from extproc.exchange.admission import Admission
from extproc.exchange.attributes import NO_HINTS, read_hints
from extproc.exchange.classify import NO_TRACE, UNKNOWN, classify, declared_bytes, read_trace
from extproc.exchange.commands import (
    PROCEED,
    CountTokens,
    ExchangeCommand,
    Note,
    Notify,
    PickUnqueued,
    RespondNow,
    SubmitRequest,
)
from extproc.exchange.events import Phase, StreamModes
from extproc.exchange.refusals import (
    Refusal,
    refuse_eviction,
    refuse_malformed,
    refuse_outcome,
    refuse_oversize,
    refuse_too_many_headers,
    refuse_unknown_path,
)
from extproc.exchange.request import RequestSide
from extproc.exchange.response import ResponseSide, answer_body
from extproc.exchange.restore import ModelRestorer
from extproc.exchange.settings import CountMode, ExchangeConfig, Strictness, UnknownPath
from extproc.exchange.surroundings import Surroundings
from extproc.formats.openai import ApiKind


class State(Enum):
    """Where the stream is in its life; the transitions are the methods of `Exchange`."""

    IDLE = "idle"
    """Nothing has arrived."""
    COLLECTING = "collecting"
    """The headers are in, the body isn't."""
    COUNTING = "counting"
    """The prompt is being counted exactly."""
    QUEUED = "queued"
    """Flow control has the request."""
    PICKING = "picking"
    """Any endpoint is being named, without queueing."""
    DISPATCHED = "dispatched"
    """In flight: the end must be reported."""
    BYPASSED = "bypassed"
    """Goes its way without flow control: unqueued, an upgrade, or not ours."""
    ANSWERED = "answered"
    """We have ended it; whatever still arrives is ignored."""


TOLERATED_BODY_FACTOR = 2
"""A body of up to so many times the limit is taken whole before it is refused (see `LimitConfig`)."""

WAITING = (State.COUNTING, State.QUEUED, State.PICKING)


_NOT_SEEN = RequestSide(ExchangeConfig(), ev.LEAN, None)
"""Stands for the request of a stream that has shown none yet; nothing is ever put into it."""


class Exchange:
    """The machine of one stream. `now` is monotonic seconds, always the caller's."""

    __slots__ = (
        "_config",
        "_has_learnt",
        "_messages",
        "_request",
        "_shared",
        "_subset",
        "_was_evicted",
        "admission",
        "hints",
        "modes",
        "refusal",
        "request_class",
        "request_id",
        "response",
        "state",
        "trace",
    )

    def __init__(self, request_id: RequestId, surroundings: Surroundings) -> None:
        self.request_id = request_id
        self.state = State.IDLE
        self.modes = ev.LEAN
        self.request_class = UNKNOWN
        self.hints = NO_HINTS
        self.trace = NO_TRACE
        self.admission: Admission | None = None
        self.response: ResponseSide | None = None
        self.refusal: Refusal | None = None
        self._shared = surroundings
        self._config = surroundings.config
        self._request = _NOT_SEEN
        self._subset: frozenset[str] | None = None
        self._was_evicted = False
        self._has_learnt = False
        self._messages = 0

    @property
    def outcome(self) -> str:
        """In one word what became of the request: `dispatched`, `unqueued`, `passed`, or why it was
        refused.
        """
        if self.refusal is not None:
            return self.refusal.reason
        if self.response is not None:
            return "dispatched"
        return "unqueued" if self._request.is_routed else "passed"

    def start(self, modes: StreamModes) -> None:
        """The first message told how Envoy processes this stream."""
        self.modes = modes

    def receive(self, event: ev.ExchangeEvent, now: float, wall_time: float) -> list[ExchangeCommand]:
        """Take one message. `wall_time` is seconds since the epoch."""
        self._messages += 1
        if self._messages > self._config.limits.max_messages:
            raise PeerProtocolError("too many messages on one stream")
        if self.state is State.ANSWERED or self.modes.is_observing:
            return []
        match event:
            case ev.RequestHeaders():
                return self._on_request_headers(event, now, wall_time)
            case ev.RequestBody():
                return self._on_request_body(event)
            case ev.RequestTrailers():
                return self._on_request_trailers()
            case ev.ResponseHeaders():
                return self._on_response_headers(event, now)
            case ev.ResponseBody():
                return self._on_response_body(event, now)
            case ev.ResponseTrailers():
                if self.response is not None:
                    return self._settle(self.response.on_trailers())
                return [PROCEED[Phase.RESPONSE_TRAILERS]]

    def decide(self, command: core.Command) -> list[ExchangeCommand]:
        """Flow control has decided; a decision that comes too late changes nothing."""
        match command:
            case core.Dispatch():
                return self._dispatch(command) if self.state is State.QUEUED else []
            case core.Reject() | core.Expire():
                if self.state is not State.QUEUED:
                    return []
                return self._answer(refuse_outcome(command.outcome, command.retry_after_s))
            case core.Displace():
                if self.state is not State.QUEUED:
                    return []
                return self._answer(refuse_outcome(Outcome.DISPLACED, command.retry_after_s))
            case core.Revoke():
                if self.state is not State.DISPATCHED or self.response is None or self.response.has_ended:
                    return []
                self._was_evicted = True
                return self._answer(refuse_eviction(command.retry_after_s))

    def route_unqueued(self, address: str | None) -> list[ExchangeCommand]:
        """An endpoint was named for a request that isn't queued; None: there is none."""
        if self.state is not State.PICKING:
            return []
        if address is None:
            return self._answer(refuse_outcome(Outcome.REJECTED_NO_ENDPOINTS, None))
        self.state = State.BYPASSED
        return self._request.route(address, None)

    def tokens_counted(self, tokens: int | None) -> list[ExchangeCommand]:
        """The exact count is there, or (None) it failed and the estimate stands."""
        if self.state is not State.COUNTING or self.admission is None:
            return []
        if tokens is None:
            return [Note("count-fallback"), *self._submit(self.admission)]
        return self._submit(self.admission.with_prompt_tokens(tokens))

    @property
    def is_underway(self) -> bool:
        """Whether a stream that ends now ends before its request was answered."""
        if self.state is State.DISPATCHED and self.response is not None:
            return self.response.is_underway
        return self.state is State.COLLECTING or self.state in WAITING

    def close(self) -> list[ExchangeCommand]:
        """The stream is over, however: what flow control still holds of it is given back."""
        state, self.state = self.state, State.ANSWERED
        if state is State.QUEUED:
            return [Notify(RequestCancelled(self.request_id))]
        if self.response is not None:
            return self._settle(self.response.end_by_stream(self._was_evicted))
        return []

    # ---- requests

    def _on_request_headers(
        self, event: ev.RequestHeaders, now: float, wall_time: float
    ) -> list[ExchangeCommand]:
        if self.state is not State.IDLE:
            raise PeerProtocolError("request headers came twice")
        self._subset = event.subset
        self.request_class = found = classify(event.headers)
        self._request = RequestSide(self._config, self.modes, declared_bytes(event.headers))
        self.trace = read_trace(event.headers)
        self.hints = read_hints(event.headers, self._config, now, wall_time)
        notes: list[ExchangeCommand] = [Note(f"ignored-header:{name}") for name in self.hints.ignored]
        if event.count > self._config.limits.max_headers:
            return [*notes, *self._answer(refuse_too_many_headers(self._config.limits.max_headers))]
        if event.is_end or found.is_upgrade or (found.kind is ApiKind.UNQUEUED and not found.is_odd_upgrade):
            self._request.expects_no_body = found.is_upgrade
            self._request.owed.append(Phase.REQUEST_HEADERS)
            return [*notes, *self._pick()]
        refusal = self._refuse_early()
        if refusal is not None:
            return [*notes, *self._answer(refusal)]
        self.state = State.COLLECTING
        if self._request.answers_headers_at_once:
            return [*notes, PROCEED[Phase.REQUEST_HEADERS]]
        self._request.owed.append(Phase.REQUEST_HEADERS)
        if self._request.is_decided_at_headers:
            return [*notes, Note("decided-without-body"), *self._admit_unread()]
        return notes

    def _refuse_early(self) -> Refusal | None:
        found, config = self.request_class, self._config
        if found.kind is ApiKind.OPAQUE and config.unknown_paths is UnknownPath.REFUSE:
            return refuse_unknown_path()
        factor = 1 if self._request.is_decided_at_headers else TOLERATED_BODY_FACTOR
        if self._request.size_bytes > factor * config.limits.max_body_bytes:
            return refuse_oversize(config.limits.max_body_bytes)
        if found.is_odd_upgrade:
            return refuse_malformed("an Upgrade header does not go with this method: leave it out")
        if found.is_compressed and config.compressed_bodies is Strictness.REFUSE:
            return refuse_malformed("content-encoding is not supported: send the body uncompressed")
        return None

    def _pick(self) -> list[ExchangeCommand]:
        self.state = State.PICKING
        return [PickUnqueued(self._subset)]

    def _on_request_body(self, event: ev.RequestBody) -> list[ExchangeCommand]:
        if self.state is State.IDLE:
            raise PeerProtocolError("a request body came before its headers")
        if self._request.is_routed:
            return self._request.answer_later(event)
        self._request.add(event)
        limit = self._config.limits.max_body_bytes
        if self._request.size_bytes > limit:
            withdrawn = [Notify(RequestCancelled(self.request_id))] if self.state is State.QUEUED else []
            return [*withdrawn, *self._answer(refuse_oversize(limit))]
        if self.state is not State.COLLECTING:
            return []
        if self._request.is_complete(event):
            return self._admit(is_certain=True)
        return self._admit(is_certain=False) if self._request.must_decide() else []

    def _on_request_trailers(self) -> list[ExchangeCommand]:
        if self._request.is_routed:
            return [PROCEED[Phase.REQUEST_TRAILERS]]
        if self.state is State.IDLE:
            raise PeerProtocolError("request trailers came before the headers")
        self._request.owed.append(Phase.REQUEST_TRAILERS)
        return self._admit(is_certain=True) if self.state is State.COLLECTING else []

    def _admit(self, *, is_certain: bool) -> list[ExchangeCommand]:
        """Build the request from the body; when not `is_certain`, the body may have been cut off."""
        found = self.request_class
        if is_certain and not self._request.body():
            return self._pick()
        if found.kind is ApiKind.OPAQUE or not found.is_json or found.is_compressed:
            return self._admit_unread()
        body = self._request.body()
        admission = self._shared.admitter.admit_json(
            self.request_id, found.kind, body, self.hints, self._subset
        )
        if isinstance(admission, Refusal):
            return self._answer(admission) if is_certain else self._admit_unread()
        self.admission = admission
        if self._config.tokens.mode is CountMode.ESTIMATE or admission.prompt.is_exact:
            return self._submit(admission)
        self.state = State.COUNTING
        return [CountTokens(found.kind, admission.request.model, body)]

    def _admit_unread(self) -> list[ExchangeCommand]:
        """Admit by size: the body isn't ours to read, or isn't here."""
        is_text = self.request_class.kind is not ApiKind.OPAQUE and self.request_class.is_json
        self.admission = self._shared.admitter.admit_unread(
            self.request_id, self._request.size_bytes, is_text, self.hints, self._subset
        )
        return self._submit(self.admission)

    def _submit(self, admission: Admission) -> list[ExchangeCommand]:
        self.state = State.QUEUED
        return [SubmitRequest(admission.request)]

    def _dispatch(self, command: core.Dispatch) -> list[ExchangeCommand]:
        assert self.admission is not None
        self.state = State.DISPATCHED
        response = ResponseSide(
            self.request_id,
            self.modes.response_body,
            self._shared.sampler,
            self._config.observation.max_captured_bytes,
        )
        self.response = response
        admission = self.admission
        if self._config.restore_response_model and "model" in admission.changes:
            response.restorer = ModelRestorer(admission.request.model, admission.client_model)
        return self._request.route(",".join((command.address, *command.fallbacks)), admission)

    # ---- responses

    def _on_response_headers(self, event: ev.ResponseHeaders, now: float) -> list[ExchangeCommand]:
        if self.response is not None:
            return self._settle(self.response.on_headers(event, now))
        if self.state in WAITING or self.state is State.COLLECTING:
            settled = self.close()  # Envoy answers by itself: its answer passes
            self.state = State.BYPASSED
            return [*settled, PROCEED[Phase.RESPONSE_HEADERS]]
        return [PROCEED[Phase.RESPONSE_HEADERS]]

    def _on_response_body(self, event: ev.ResponseBody, now: float) -> list[ExchangeCommand]:
        if self.response is not None:
            return self._settle(self.response.on_body(event, now))
        return answer_body(
            Phase.RESPONSE_BODY, self.modes.response_body, event.data, event.data, event.is_end
        )

    # ---- ends

    def _answer(self, refusal: Refusal) -> list[ExchangeCommand]:
        self.state = State.ANSWERED
        self.refusal = refusal
        return [RespondNow(refusal)]

    def _settle(self, commands: list[ExchangeCommand]) -> list[ExchangeCommand]:
        """When the response has just ended, learn from what the engine counted."""
        response, admission = self.response, self.admission
        if response is not None and response.has_ended and admission is not None and not self._has_learnt:
            self._has_learnt = True
            usage = response.usage()
            if usage is not None and usage.prompt_tokens is not None:
                self._shared.estimator.learn(admission.request.model, admission.prompt, usage.prompt_tokens)
        return commands
