"""The request direction of one stream: collecting what the decision needs, and answering once it is taken.

Per body mode (all told by Envoy's first message):

    mode                      decided at              answers
    BUFFERED, _PARTIAL        the body message        headers at once; the body's answer carries the route
    FULL_DUPLEX_STREAMED      the end of the body     headers with the route, then the whole body in pieces
    STREAMED, sent early      the end of the body,    headers with the route, then one answer per chunk
                              or `early_decision_bytes`
    STREAMED, NONE            the headers             headers with the route; later chunks at once

`owed` holds the phases that still wait for an answer; the first of them will carry the route.
"""

from __future__ import annotations

from extproc.exchange import names
from extproc.exchange.admission import Admission, apply_changes
from extproc.exchange.commands import PROCEED, ExchangeCommand, Proceed
from extproc.exchange.events import BodyMode, Phase, RequestBody, StreamModes
from extproc.exchange.response import answer_body, echo_body
from extproc.exchange.settings import ExchangeConfig

_BUFFERING = (BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL)


class RequestSide:
    """What has arrived of a request, and which of its messages are still unanswered."""

    __slots__ = (
        "_chunks",
        "_config",
        "_declared_bytes",
        "_ended_by_flag",
        "_mode",
        "_received_bytes",
        "_removed",
        "_response_mode",
        "_sends_early",
        "expects_no_body",
        "is_routed",
        "owed",
    )

    def __init__(self, config: ExchangeConfig, modes: StreamModes, declared_bytes: int | None) -> None:
        self._config = config
        self._removed = (*names.STRIPPED_REQUEST_HEADERS, *config.strip_request_headers)
        self._mode = modes.request_body
        self._response_mode = modes.response_body
        self._sends_early = modes.sends_body_early
        self._declared_bytes = declared_bytes
        self._chunks: list[bytes] = []
        self._received_bytes = 0
        self._ended_by_flag = False
        self.owed: list[Phase] = []
        self.is_routed = False
        self.expects_no_body = False
        """An upgraded connection: Envoy mustn't wait for the end of a body."""

    @property
    def is_decided_at_headers(self) -> bool:
        """The body comes only after the headers are answered, or never."""
        if self._mode is BodyMode.NONE:
            return True
        return self._mode is BodyMode.STREAMED and not self._sends_early

    @property
    def answers_headers_at_once(self) -> bool:
        return self._mode in _BUFFERING

    @property
    def size_bytes(self) -> int:
        """The body's size as far as it is known: what came, or what was announced."""
        return max(self._received_bytes, self._declared_bytes or 0)

    def add(self, event: RequestBody) -> None:
        """Take a piece of the body that will be answered with the decision."""
        self._chunks.append(event.data)
        self._received_bytes += len(event.data)
        self._ended_by_flag |= event.is_end
        if self._mode is not BodyMode.FULL_DUPLEX_STREAMED:
            self.owed.append(Phase.REQUEST_BODY)

    def is_complete(self, event: RequestBody) -> bool:
        """Whether the body is whole. An Upgrade header can keep the end flag away: then its length tells."""
        if event.is_end or self._mode is BodyMode.BUFFERED:
            return True
        return self._declared_bytes is not None and self._received_bytes >= self._declared_bytes

    def must_decide(self) -> bool:
        """Envoy may send no more before it is answered."""
        if self._mode is BodyMode.BUFFERED_PARTIAL:
            return True
        return (
            self._mode is BodyMode.STREAMED
            and self._received_bytes >= self._config.limits.early_decision_bytes
        )

    def body(self) -> bytes:
        """All that has arrived, in one piece."""
        if len(self._chunks) != 1:
            self._chunks = [b"".join(self._chunks)]
        return self._chunks[0]

    def route(self, destination: str, admission: Admission | None) -> list[ExchangeCommand]:
        """Answer everything owed; the first answer names the destination."""
        self.is_routed = True
        body = self.body()
        edited = apply_changes(body, admission.changes) if admission is not None else None
        headers: tuple[tuple[str, str], ...] = ()
        if edited is not None and self._mode is not BodyMode.STREAMED:
            headers = (("content-length", str(len(edited))),)
        owed = self.owed or [Phase.REQUEST_HEADERS]
        first = owed[0]
        replaced = edited if first is Phase.REQUEST_BODY else None
        commands: list[ExchangeCommand] = [self._first_answer(first, destination, headers, replaced)]
        rest = owed[1:]
        if self._mode is BodyMode.FULL_DUPLEX_STREAMED:
            if body or self._ended_by_flag:
                content = body if edited is None else edited
                commands += echo_body(Phase.REQUEST_BODY, content, self._ended_by_flag)
            commands += [PROCEED[phase] for phase in rest]
        else:
            commands += _answer_rest(rest, edited if replaced is None else None)
        self.owed = []
        self._chunks = [b""]
        return commands

    def answer_later(self, event: RequestBody) -> list[ExchangeCommand]:
        """A piece of the body after the decision: it goes on as it is."""
        return answer_body(Phase.REQUEST_BODY, self._mode, event.data, event.data, event.is_end)

    def _first_answer(
        self,
        phase: Phase,
        destination: str,
        headers: tuple[tuple[str, str], ...],
        body: bytes | None,
    ) -> Proceed:
        modes = (self._mode, self._response_mode)
        is_held = self.expects_no_body and any(mode in _BUFFERING for mode in modes)
        return Proceed(
            phase,
            destination=destination,
            set_headers=headers,
            remove_headers=self._removed,
            body=body,
            clear_route_cache=self._config.clear_route_cache,
            request_body_override=BodyMode.NONE if is_held else None,
            response_body_override=BodyMode.NONE if is_held else None,
        )


def _answer_rest(owed: list[Phase], edited: bytes | None) -> list[ExchangeCommand]:
    """Answer chunks that waited; an edited body goes out in the first of them, the others become empty."""
    commands: list[ExchangeCommand] = []
    for phase in owed:
        if phase is Phase.REQUEST_BODY and edited is not None:
            commands.append(Proceed(phase, body=edited))
            edited = b""
        else:
            commands.append(PROCEED[phase])
    return commands
