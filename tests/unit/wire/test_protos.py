"""The generated wire code: up to date with protos/, and the same bytes as Envoy's own message definitions."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from extproc.wire import ext_proc_pb2 as ours

ROOT = Path(__file__).parents[3]

v3 = pytest.importorskip("envoy_data_plane.envoy.service.ext_proc.v3")
filters = pytest.importorskip("envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3")
core = pytest.importorskip("envoy_data_plane.envoy.config.core.v3")
http = pytest.importorskip("envoy_data_plane.envoy.type.v3")
protobuf = pytest.importorskip("envoy_data_plane.google.protobuf")


def test_regeneration_changes_nothing(tmp_path: Path) -> None:
    files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "protos/extproc/wire").glob("*.proto"))
    argv = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        "-Iprotos",
        f"--python_out={tmp_path}",
        f"--pyi_out={tmp_path}",
    ]
    subprocess.run([*argv, *files], cwd=ROOT, check=True)
    made = sorted(path for path in (tmp_path / "extproc/wire").iterdir())
    assert len(made) == 2 * len(files)
    for path in made:
        assert path.read_bytes() == (ROOT / "extproc/wire" / path.name).read_bytes(), (
            f"run `make protos`: {path.name}"
        )


def test_what_envoy_sends_is_read() -> None:
    def headers() -> object:
        return v3.HttpHeaders(
            headers=core.HeaderMap(
                headers=[core.HeaderValue(key="a", raw_value=b"\xff"), core.HeaderValue(key="b", value="c")]
            ),
            end_of_stream=True,
        )

    trailers = v3.HttpTrailers(trailers=core.HeaderMap(headers=[core.HeaderValue(key="t", value="u")]))
    body = v3.HttpBody(body=b"abc", end_of_stream=True)
    struct = protobuf.Struct(fields={"k": protobuf.Value(string_value="v")})
    cases = {
        "request_headers": headers(),
        "response_headers": headers(),
        "request_body": body,
        "response_body": body,
        "request_trailers": trailers,
        "response_trailers": trailers,
    }
    for kind, message in cases.items():
        theirs = v3.ProcessingRequest(
            **{kind: message},
            metadata_context=core.Metadata(filter_metadata={"envoy.lb": struct}),
            observability_mode=True,
            protocol_config=v3.ProtocolConfiguration(
                request_body_mode=filters.ProcessingModeBodySendMode.FULL_DUPLEX_STREAMED,
                response_body_mode=filters.ProcessingModeBodySendMode.BUFFERED_PARTIAL,
                send_body_without_waiting_for_header_response=True,
            ),
        )
        found = ours.ProcessingRequest.FromString(bytes(theirs))
        assert found.WhichOneof("request") == kind
        assert found.observability_mode
        assert found.protocol_config.request_body_mode == 4
        assert found.protocol_config.response_body_mode == 3
        assert found.protocol_config.send_body_without_waiting_for_header_response
        assert found.metadata_context.filter_metadata["envoy.lb"].fields["k"].string_value == "v"
        if kind.endswith("headers"):
            read = getattr(found, kind)
            assert read.end_of_stream
            assert [(h.key, h.value, h.raw_value) for h in read.headers.headers] == [
                ("a", "", b"\xff"),
                ("b", "c", b""),
            ]
        elif kind.endswith("body"):
            assert (getattr(found, kind).body, getattr(found, kind).end_of_stream) == (b"abc", True)
        else:
            assert getattr(found, kind).trailers.headers[0].key == "t"
        assert v3.ProcessingRequest.parse(found.SerializeToString()) == theirs


def _common(kind: str) -> ours.ProcessingResponse:
    answer = ours.ProcessingResponse()
    common = getattr(answer, kind).response
    common.status = ours.CommonResponse.CONTINUE_AND_REPLACE
    common.clear_route_cache = True
    option = common.header_mutation.set_headers.add(
        append_action=ours.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD
    )
    option.header.key = "k"
    option.header.raw_value = b"v"
    common.header_mutation.remove_headers.append("gone")
    common.body_mutation.streamed_response.body = b"piece"
    common.body_mutation.streamed_response.end_of_stream = True
    answer.dynamic_metadata.fields["envoy.lb"].struct_value.fields["x"].string_value = "y"
    answer.mode_override.request_header_mode = ours.ProcessingMode.SKIP
    answer.mode_override.response_header_mode = ours.ProcessingMode.SEND
    answer.mode_override.request_body_mode = ours.ProcessingMode.BUFFERED
    answer.mode_override.response_body_mode = ours.ProcessingMode.STREAMED
    answer.mode_override.request_trailer_mode = ours.ProcessingMode.SKIP
    answer.mode_override.response_trailer_mode = ours.ProcessingMode.SEND
    answer.override_message_timeout.FromMilliseconds(1500)
    return answer


@pytest.mark.parametrize("kind", ["request_headers", "response_headers", "request_body", "response_body"])
def test_what_we_answer_is_understood(kind: str) -> None:
    answer = _common(kind)
    theirs = v3.ProcessingResponse.parse(answer.SerializeToString())
    common = getattr(theirs, kind).response
    assert common.status == v3.CommonResponseResponseStatus.CONTINUE_AND_REPLACE
    assert common.clear_route_cache
    (option,) = common.header_mutation.set_headers
    assert (option.header.key, option.header.raw_value, option.header.value) == ("k", b"v", "")
    assert option.append_action.value == 2
    assert common.header_mutation.remove_headers == ["gone"]
    assert common.body_mutation.streamed_response.body == b"piece"
    assert common.body_mutation.streamed_response.end_of_stream
    mode = theirs.mode_override
    found = [
        mode.request_header_mode,
        mode.response_header_mode,
        mode.request_body_mode,
        mode.response_body_mode,
    ]
    assert [item.value for item in found] == [2, 1, 2, 1]
    assert (mode.request_trailer_mode.value, mode.response_trailer_mode.value) == (2, 1)
    assert theirs.override_message_timeout == timedelta(seconds=1.5)
    assert ours.ProcessingResponse.FromString(bytes(theirs)) == answer


def test_other_answers_are_understood() -> None:
    answer = ours.ProcessingResponse()
    answer.immediate_response.status.code = 429
    answer.immediate_response.body = b"no"
    answer.immediate_response.details = "evicted"
    answer.immediate_response.headers.remove_headers.append("x")
    theirs = v3.ProcessingResponse.parse(answer.SerializeToString())
    assert theirs.immediate_response.status.code == http.StatusCode(429)
    assert (theirs.immediate_response.body, theirs.immediate_response.details) == (b"no", "evicted")
    for field, value in (("body", b"new"), ("clear_body", True)):
        body = ours.ProcessingResponse()
        setattr(body.request_body.response.body_mutation, field, value)
        found = v3.ProcessingResponse.parse(body.SerializeToString())
        assert getattr(found.request_body.response.body_mutation, field) == value
    for kind in ("request_trailers", "response_trailers"):
        trailers = ours.ProcessingResponse()
        getattr(trailers, kind).header_mutation.remove_headers.append("x")
        found = v3.ProcessingResponse.parse(trailers.SerializeToString())
        assert getattr(found, kind).header_mutation.remove_headers == ["x"]
