"""What the shell must do for one ext_proc stream, in the imperative: the output of the exchange.

`Proceed`, `EchoBody` and `RespondNow` go out on the stream, in order; the others are for the shell itself.
"""

from __future__ import annotations

import msgspec

from extproc.core import events as core_events
from extproc.core.types import Request
from extproc.exchange.events import BodyMode, Phase
from extproc.exchange.refusals import Refusal
from extproc.formats.openai import ApiKind


class Proceed(msgspec.Struct, frozen=True, gc=False):
    """Let a message go on. `destination` is set as header and as metadata; `body` replaces the body.

    The overrides change how Envoy treats the rest of this stream's bodies.
    """

    phase: Phase
    destination: str | None = None
    set_headers: tuple[tuple[str, str], ...] = ()
    remove_headers: tuple[str, ...] = ()
    body: bytes | None = None
    clear_route_cache: bool = False
    request_body_override: BodyMode | None = None
    response_body_override: BodyMode | None = None


PROCEED = {phase: Proceed(phase) for phase in Phase}
"""The usual answers, which change nothing."""


class EchoBody(msgspec.Struct, frozen=True, gc=False):
    """A piece of a full-duplex body, to be sent on."""

    phase: Phase
    data: bytes
    is_end: bool


class RespondNow(msgspec.Struct, frozen=True, gc=False):
    """End the HTTP request with this answer; nothing else is sent on the stream after it."""

    refusal: Refusal


class SubmitRequest(msgspec.Struct, frozen=True, gc=False):
    """Hand the request to flow control; the answer comes back by `Exchange.decide`."""

    request: Request


class PickUnqueued(msgspec.Struct, frozen=True, gc=False):
    """Name any endpoint (of `subset`), without queueing; the answer comes back by
    `Exchange.route_unqueued`.
    """

    subset: frozenset[str] | None


class CountTokens(msgspec.Struct, frozen=True, gc=False):
    """Count the prompt exactly; the answer comes back by `Exchange.tokens_counted`."""

    kind: ApiKind
    model: str
    body: bytes


class Notify(msgspec.Struct, frozen=True, gc=False):
    """Tell flow control what happened."""

    event: core_events.Event


class Note(msgspec.Struct, frozen=True, gc=False):
    """Something to be counted: an ignored header, a decision without a body, ... `what` is one of few
    values.
    """

    what: str


ExchangeCommand = Proceed | EchoBody | RespondNow | SubmitRequest | PickUnqueued | CountTokens | Notify | Note
