"""Between bytes and events: either value field is read, one is written, and hints of the proxy are
understood.
"""

from __future__ import annotations

import pytest

from extproc.exchange import events as ev
from extproc.exchange import names
from extproc.exchange.commands import PROCEED, EchoBody, Proceed, RespondNow
from extproc.exchange.events import BodyMode, Phase, StreamModes
from extproc.exchange.refusals import refuse_eviction
from extproc.wire import ext_proc_pb2 as pb
from extproc.wire.codec import encode, read_event, read_modes


def _answer(command: Proceed | EchoBody | RespondNow) -> pb.ProcessingResponse:
    return pb.ProcessingResponse.FromString(encode(command))


@pytest.mark.parametrize("value_field", ["value", "raw_value"])
def test_field_bug_034_either_value_field_is_read(value_field: str) -> None:
    message = pb.ProcessingRequest()
    header = message.request_headers.headers.headers.add(key=":path")
    setattr(header, value_field, "/v1/é" if value_field == "value" else "/v1/é".encode())
    message.request_headers.headers.headers.add(key="cookie", value="never decoded")
    message.request_headers.headers.headers.add(key="upgrade")
    event = read_event(message)
    assert event == ev.RequestHeaders({":path": "/v1/é", "upgrade": ""}, False, count=3)


def test_headers_that_are_no_text_do_no_harm() -> None:
    message = pb.ProcessingRequest()
    message.request_headers.headers.headers.add(key=":path", raw_value=b"/\xff\xfe")
    event = read_event(message)
    assert isinstance(event, ev.RequestHeaders)
    assert event.headers[":path"].startswith("/")


def test_modes_come_from_the_first_message() -> None:
    assert read_modes(pb.ProcessingRequest()) == StreamModes()
    message = pb.ProcessingRequest(observability_mode=True)
    message.protocol_config.request_body_mode = pb.ProcessingMode.FULL_DUPLEX_STREAMED
    message.protocol_config.response_body_mode = pb.ProcessingMode.STREAMED
    message.protocol_config.send_body_without_waiting_for_header_response = True
    modes = StreamModes(BodyMode.FULL_DUPLEX_STREAMED, BodyMode.STREAMED, True, True)
    assert read_modes(message) == modes
    message.protocol_config.request_body_mode = pb.ProcessingMode.GRPC
    assert read_modes(message).request_body is BodyMode.BUFFERED


def test_the_proxys_subset_is_understood_as_text_and_as_a_list() -> None:
    for as_list in (False, True):
        message = pb.ProcessingRequest()
        message.request_headers.SetInParent()
        hint = message.metadata_context.filter_metadata[names.SUBSET_NAMESPACE].fields[names.SUBSET_KEY]
        if as_list:
            for address in ("10.0.0.1:80", "10.0.0.2:80"):
                hint.list_value.values.add(string_value=address)
        else:
            hint.string_value = "10.0.0.1:80, 10.0.0.2:80"
        event = read_event(message)
        assert isinstance(event, ev.RequestHeaders)
        assert event.subset == frozenset({"10.0.0.1:80", "10.0.0.2:80"})


def test_who_served_is_read_from_the_response_phase() -> None:
    message = pb.ProcessingRequest()
    message.response_headers.headers.headers.add(key=":status", raw_value=b"200")
    lb = message.metadata_context.filter_metadata[names.DESTINATION_NAMESPACE]
    lb.fields[names.DESTINATION_SERVED].string_value = "10.0.0.2:80"
    assert read_event(message) == ev.ResponseHeaders({":status": "200"}, False, "10.0.0.2:80")


def test_the_route_goes_out_as_header_and_as_metadata() -> None:
    command = Proceed(Phase.REQUEST_BODY, destination="10.0.0.1:80,10.0.0.2:80", clear_route_cache=True)
    answer = _answer(command)
    (option,) = answer.request_body.response.header_mutation.set_headers
    assert (option.header.key, option.header.raw_value) == (names.DESTINATION, b"10.0.0.1:80,10.0.0.2:80")
    assert option.append_action == pb.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
    metadata = answer.dynamic_metadata.fields[names.DESTINATION_NAMESPACE].struct_value
    assert metadata.fields[names.DESTINATION].string_value == "10.0.0.1:80,10.0.0.2:80"
    assert answer.request_body.response.clear_route_cache


def test_each_phase_has_its_own_answer() -> None:
    for phase in Phase:
        assert _answer(PROCEED[phase]).WhichOneof("response") == phase.value.replace("-", "_")
    echoed = _answer(EchoBody(Phase.RESPONSE_BODY, b"abc", True)).response_body.response.body_mutation
    assert (echoed.streamed_response.body, echoed.streamed_response.end_of_stream) == (b"abc", True)
    assert _answer(Proceed(Phase.REQUEST_BODY, body=b"")).request_body.response.body_mutation.clear_body
    refused = _answer(RespondNow(refuse_eviction(3))).immediate_response
    assert (refused.status.code, refused.details) == (429, "extproc_evicted")


def test_an_override_repeats_what_stays() -> None:
    answer = _answer(Proceed(Phase.RESPONSE_HEADERS, response_body_override=BodyMode.STREAMED))
    assert answer.mode_override.response_body_mode == pb.ProcessingMode.STREAMED
    assert answer.mode_override.response_trailer_mode == pb.ProcessingMode.SEND
