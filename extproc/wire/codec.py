"""Between the protobuf messages of ext_proc and the exchange's events and commands. Knows the wire,
nothing else.

Answers are handed out as serialised bytes: most of them are constants, and what one address makes of the
routed answer is kept, so that the usual request encodes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from extproc.exchange import events as ev
from extproc.exchange import names
from extproc.exchange.commands import PROCEED, EchoBody, Proceed, RespondNow
from extproc.exchange.events import BodyMode, ExchangeEvent, Phase, StreamModes
from extproc.exchange.refusals import Refusal
from extproc.wire import ext_proc_pb2 as pb

_BODY_MODES = {mode.value: mode for mode in BodyMode}
_WIRE_MODES = {
    BodyMode.NONE: pb.ProcessingMode.NONE,
    BodyMode.STREAMED: pb.ProcessingMode.STREAMED,
    BodyMode.BUFFERED: pb.ProcessingMode.BUFFERED,
    BodyMode.BUFFERED_PARTIAL: pb.ProcessingMode.BUFFERED_PARTIAL,
    BodyMode.FULL_DUPLEX_STREAMED: pb.ProcessingMode.FULL_DUPLEX_STREAMED,
}
_OVERWRITE = pb.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"

parse_request = pb.ProcessingRequest.FromString
"""From the bytes of one message; raises google.protobuf.message.DecodeError."""


def read_modes(message: pb.ProcessingRequest) -> StreamModes:
    """How Envoy processes this stream, as its first message says; lean mode where it says nothing."""
    if not message.HasField("protocol_config"):
        return StreamModes(is_observing=message.observability_mode)
    config = message.protocol_config
    return _modes(
        config.request_body_mode,
        config.response_body_mode,
        config.send_body_without_waiting_for_header_response,
        message.observability_mode,
    )


@lru_cache(maxsize=128)
def _modes(request_body: int, response_body: int, sends_early: bool, is_observing: bool) -> StreamModes:
    return StreamModes(
        request_body=_BODY_MODES.get(request_body, BodyMode.BUFFERED),
        response_body=_BODY_MODES.get(response_body, BodyMode.NONE),
        sends_body_early=sends_early,
        is_observing=is_observing,
    )


def read_event(message: pb.ProcessingRequest) -> ExchangeEvent | None:
    """One message as an event; None for a kind that we don't know."""
    match message.WhichOneof("request"):
        case "request_headers":
            headers = message.request_headers
            lines = headers.headers.headers
            found = read_headers(lines, names.READ_REQUEST_HEADERS)
            subset = _subset(message) if message.HasField("metadata_context") else None
            return ev.RequestHeaders(found, headers.end_of_stream, subset, len(lines))
        case "request_body":
            return ev.RequestBody(message.request_body.body, message.request_body.end_of_stream)
        case "response_headers":
            headers = message.response_headers
            found = read_headers(headers.headers.headers, names.READ_RESPONSE_HEADERS)
            served_by = _served_by(message) if message.HasField("metadata_context") else None
            return ev.ResponseHeaders(found, headers.end_of_stream, served_by)
        case "response_body":
            return ev.ResponseBody(message.response_body.body, message.response_body.end_of_stream)
        case "request_trailers":
            return ev.RequestTrailers()
        case "response_trailers":
            return ev.ResponseTrailers()
        case _:
            return None


def read_headers(headers: Iterable[pb.HeaderValue], wanted: frozenset[str]) -> dict[str, str]:
    """The wanted headers, from either value field; of a repeated header the last one counts."""
    return {
        header.key: header.raw_value.decode("utf-8", "replace") or header.value
        for header in headers
        if header.key in wanted
    }


def _subset(message: pb.ProcessingRequest) -> frozenset[str] | None:
    """The proxy's list of addresses to choose from: comma-separated text or a list; None without the hint."""
    metadata = message.metadata_context.filter_metadata
    if names.SUBSET_NAMESPACE not in metadata:
        return None
    fields = metadata[names.SUBSET_NAMESPACE].fields
    if names.SUBSET_KEY not in fields:
        return None
    value = fields[names.SUBSET_KEY]
    texts = [item.string_value for item in value.list_value.values] or value.string_value.split(",")
    return frozenset(text.strip() for text in texts if text.strip())


def _served_by(message: pb.ProcessingRequest) -> str | None:
    metadata = message.metadata_context.filter_metadata
    if names.DESTINATION_NAMESPACE not in metadata:
        return None
    fields = metadata[names.DESTINATION_NAMESPACE].fields
    if names.DESTINATION_SERVED not in fields:
        return None
    return fields[names.DESTINATION_SERVED].string_value or None


# ---- answers


def encode(command: Proceed | EchoBody | RespondNow) -> bytes:
    """One answer, serialised."""
    if type(command) is Proceed:
        ready = _READY.get(id(command))
        if ready is not None:
            return ready
        return _encode_proceed(command) if command.body is None else _build_proceed(command)
    if type(command) is EchoBody:
        return _encode_echo(command)
    assert type(command) is RespondNow
    return encode_refusal(command.refusal)


@lru_cache(maxsize=4096)
def _encode_proceed(command: Proceed) -> bytes:
    return _build_proceed(command)


def _build_proceed(command: Proceed) -> bytes:
    answer = pb.ProcessingResponse()
    match command.phase:
        case Phase.REQUEST_HEADERS:
            common = answer.request_headers.response
        case Phase.REQUEST_BODY:
            common = answer.request_body.response
        case Phase.RESPONSE_HEADERS:
            common = answer.response_headers.response
        case Phase.RESPONSE_BODY:
            common = answer.response_body.response
        case Phase.REQUEST_TRAILERS:
            answer.request_trailers.SetInParent()
            return answer.SerializeToString()
        case Phase.RESPONSE_TRAILERS:
            answer.response_trailers.SetInParent()
            return answer.SerializeToString()
    common.SetInParent()
    _mutate_headers(common, command)
    if command.body is not None:
        if command.body:
            common.body_mutation.body = command.body
        else:
            common.body_mutation.clear_body = True
    if command.clear_route_cache:
        common.clear_route_cache = True
    if command.destination is not None:
        metadata = answer.dynamic_metadata.fields[names.DESTINATION_NAMESPACE].struct_value
        metadata.fields[names.DESTINATION].string_value = command.destination
    _override_modes(answer, command)
    return answer.SerializeToString()


def _mutate_headers(common: pb.CommonResponse, command: Proceed) -> None:
    if command.destination is not None:
        _set_header(common.header_mutation, names.DESTINATION, command.destination)
    for name, value in command.set_headers:
        _set_header(common.header_mutation, name, value)
    if command.remove_headers:
        common.header_mutation.remove_headers.extend(command.remove_headers)


def _override_modes(answer: pb.ProcessingResponse, command: Proceed) -> None:
    """An override replaces the whole mode, so the parts that stay are repeated."""
    request, response = command.request_body_override, command.response_body_override
    if request is None and response is None:
        return
    mode = answer.mode_override
    mode.response_header_mode = pb.ProcessingMode.SEND
    mode.response_trailer_mode = pb.ProcessingMode.SEND
    mode.request_body_mode = _WIRE_MODES[request or BodyMode.NONE]
    mode.response_body_mode = _WIRE_MODES[response or BodyMode.NONE]


def _set_header(mutation: pb.HeaderMutation, name: str, value: str) -> None:
    """The one place that builds a header: `raw_value` only, never both value fields."""
    option = mutation.set_headers.add(append_action=_OVERWRITE)
    option.header.key = name
    option.header.raw_value = value.encode()


def _encode_echo(command: EchoBody) -> bytes:
    answer = pb.ProcessingResponse()
    common = answer.request_body if command.phase is Phase.REQUEST_BODY else answer.response_body
    piece = common.response.body_mutation.streamed_response
    piece.body = command.data
    piece.end_of_stream = command.is_end
    return answer.SerializeToString()


@lru_cache(maxsize=256)
def encode_refusal(refusal: Refusal) -> bytes:
    """An immediate response."""
    answer = pb.ProcessingResponse()
    immediate = answer.immediate_response
    immediate.status.code = refusal.status
    for name, value in refusal.headers:
        _set_header(immediate.headers, name, value)
    immediate.body = refusal.body
    # The prefix tells Envoy's log, and its `local_reply_config`, that the answer is ours.
    immediate.details = f"extproc_{refusal.reason}"
    return answer.SerializeToString()


_READY = {id(answer): _build_proceed(answer) for answer in PROCEED.values()}
"""By identity: hashing an answer costs more than all else about it."""
