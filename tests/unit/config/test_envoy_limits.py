"""An Envoy file against what a configuration needs: each limit that users met in production is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from extproc.config.envoy_limits import EnvoyNeeds, check_envoy
from extproc.config.yaml_source import parse_yaml

SHIPPED = (Path(__file__).parents[3] / "envoy" / "envoy.yaml").read_text()
NEEDS = EnvoyNeeds(longest_wait_s=3599.0, largest_body_bytes=16 << 20, concurrent_requests=20_000)


def problems_of(text: str, needs: EnvoyNeeds = NEEDS) -> list[str]:
    return [str(problem) for problem in check_envoy(parse_yaml(text), needs)]


def test_the_shipped_file_fits() -> None:
    assert problems_of(SHIPPED) == []


@pytest.mark.parametrize(
    ("line", "replacement", "expected"),
    [
        ("message_timeout: 3600s", "message_timeout: 0.2s", "message_timeout"),
        ("message_timeout: 3600s", "stat_prefix: x", "message_timeout"),
        ("timeout: 0s  # One gRPC", "timeout: 30s  # One gRPC", "grpc_service.timeout"),
        ("failure_mode_allow: false", "failure_mode_allow: true", "failure_mode_allow"),
        ("response_trailer_mode: SEND", "response_trailer_mode: SKIP", "response_trailer_mode"),
        ("request_body_mode: BUFFERED", "request_body_mode: NONE", "request_body_mode"),
        ("request_header_mode: SEND", "request_header_mode: SKIP", "request_header_mode"),
        ("stream_idle_timeout: 3600s", "stream_idle_timeout: 300s", "stream_idle_timeout"),
        ("delayed_close_timeout: 0.010s", "delayed_close_timeout: 1s", "delayed_close_timeout"),
        ("                  timeout: 0s", "                  timeout: 15s", "route.timeout"),
        (
            "                  idle_timeout: 3600s",
            "                  idle_timeout: 60s",
            "route.idle_timeout",
        ),
        ("per_connection_buffer_limit_bytes: 33554432", "name: x", "listeners[0]"),
        ("max_outbound_control_frames: 100000", "max_outbound_frames: 9", "clusters[0]"),
        ("  http2_protocol_options:  #", "  http_protocol_options:  #", "clusters[0]"),
        ("{idle_timeout: 4s}", "{idle_timeout: 60s}", "common_http_protocol_options.idle_timeout"),
        ("{idle_timeout: 4s}", "{max_connection_duration: 60s}", "common_http_protocol_options.idle_timeout"),
        ("cluster_name: extproc}", "cluster_name: other}", "static_resources.clusters"),
    ],
)
def test_each_limit_is_found(line: str, replacement: str, expected: str) -> None:
    assert line in SHIPPED
    found = problems_of(SHIPPED.replace(line, replacement, 1))
    assert any(expected in problem for problem in found), found


def test_field_bug_040_circuit_breakers_at_their_default() -> None:
    limits = "- {max_connections: 100000, max_pending_requests: 100000, max_requests: 100000}"
    found = problems_of(SHIPPED.replace(limits, "- {priority: HIGH, max_requests: 5}"))
    assert len([problem for problem in found if "max_requests 1024" in problem]) == 2


def test_field_bug_025_no_filter_at_all() -> None:
    assert "no ext_proc filter" in problems_of("static_resources: {}")[0]


def test_lines_are_named() -> None:
    text = SHIPPED.replace("message_timeout: 3600s", "message_timeout: 2s")
    line = next(number for number, row in enumerate(text.splitlines(), 1) if "message_timeout: 2s" in row)
    assert f"(line {line})" in problems_of(text)[0]
