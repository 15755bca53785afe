"""What arrives on one ext_proc stream, as plain values: the input of the exchange. No protobuf here."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import msgspec


class BodyMode(Enum):
    """How Envoy hands a body to us; the values are Envoy's."""

    __hash__ = object.__hash__  # members are compared by identity; Enum's own hash runs Python code

    NONE = 0
    STREAMED = 1
    BUFFERED = 2
    BUFFERED_PARTIAL = 3
    FULL_DUPLEX_STREAMED = 4


class Phase(Enum):
    """The six kinds of message; each is answered in its own kind."""

    __hash__ = object.__hash__

    REQUEST_HEADERS = "request-headers"
    REQUEST_BODY = "request-body"
    REQUEST_TRAILERS = "request-trailers"
    RESPONSE_HEADERS = "response-headers"
    RESPONSE_BODY = "response-body"
    RESPONSE_TRAILERS = "response-trailers"


class StreamModes(msgspec.Struct, frozen=True, gc=False):
    """What the first message of a stream says about the others.

    `sends_body_early`: request body chunks come without waiting for the answer to the headers.
    `is_observing`: Envoy wants no answers at all.
    """

    request_body: BodyMode = BodyMode.BUFFERED
    response_body: BodyMode = BodyMode.NONE
    sends_body_early: bool = False
    is_observing: bool = False


LEAN = StreamModes()
"""What is assumed of an Envoy that doesn't say (before 1.32)."""


class RequestHeaders(msgspec.Struct, frozen=True, gc=False):
    """`headers` holds the names of `names.READ_REQUEST_HEADERS` only, in lower case.

    `subset` is the proxy's list of allowed addresses; None: no restriction. `count` is that of all header
    lines, read or not.
    """

    headers: Mapping[str, str]
    is_end: bool
    subset: frozenset[str] | None = None
    count: int = 0


class RequestBody(msgspec.Struct, frozen=True, gc=False):
    data: bytes
    is_end: bool


class RequestTrailers(msgspec.Struct, frozen=True, gc=False):
    pass


class ResponseHeaders(msgspec.Struct, frozen=True, gc=False):
    """`headers` holds the names of `names.READ_RESPONSE_HEADERS` only; `served_by` is an address, if
    known.
    """

    headers: Mapping[str, str]
    is_end: bool
    served_by: str | None = None


class ResponseBody(msgspec.Struct, frozen=True, gc=False):
    data: bytes
    is_end: bool


class ResponseTrailers(msgspec.Struct, frozen=True, gc=False):
    pass


ExchangeEvent = (
    RequestHeaders | RequestBody | RequestTrailers | ResponseHeaders | ResponseBody | ResponseTrailers
)
