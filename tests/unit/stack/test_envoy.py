"""The rendered bootstrap, the hand-written file, and the numbers that must fit each other."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from extproc.errors import ExtprocError
from extproc.stack.envoy import EnvoySettings, ProcessingMode, checked, render

HAND_WRITTEN = Path(__file__).parents[3] / "envoy" / "envoy.yaml"


def ext_proc_filter(settings: EnvoySettings) -> dict[str, object]:
    listener = render(settings)["static_resources"]["listeners"][0]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    named = {item["name"]: item["typed_config"] for item in manager["http_filters"]}
    found = named["envoy.filters.http.ext_proc"]
    assert isinstance(found, dict)
    return found


def test_the_hand_written_file_means_the_same_as_the_defaults() -> None:
    by_hand = checked(yaml.safe_load(HAND_WRITTEN.read_text()))
    assert checked(render(EnvoySettings())) == by_hand


def test_every_limit_of_the_file_is_commented() -> None:
    lines = HAND_WRITTEN.read_text().splitlines()
    for key in ("message_timeout", "timeout: 0s", "max_outbound_control_frames", "delayed_close_timeout"):
        at = next(number for number, line in enumerate(lines) if key in line and line.strip()[0] != "#")
        assert any("#" in line for line in lines[at - 4 : at + 1]), key


def test_unknown_fields_are_refused() -> None:
    bootstrap = render(EnvoySettings())
    bootstrap["static_resources"]["clusters"][0]["connect_timout"] = "1s"
    with pytest.raises(ExtprocError, match="connect_timout"):
        checked(bootstrap)


def test_lean_mode_is_the_default_and_keeps_the_stream_open() -> None:
    mode = ext_proc_filter(EnvoySettings())["processing_mode"]
    assert isinstance(mode, dict)
    assert mode["response_body_mode"] == "NONE"
    assert mode["response_trailer_mode"] == "SEND"


@pytest.mark.parametrize("mode", ProcessingMode)
def test_every_mode_is_valid(mode: ProcessingMode) -> None:
    assert checked(render(EnvoySettings(mode=mode)))


def test_fixed_endpoints_use_the_header_with_fallbacks() -> None:
    settings = EnvoySettings(endpoints=("127.0.0.1:8000", "vllm-1:8000"))
    models = checked(render(settings))["static_resources"]["clusters"][1]
    assert models["type"] == "STRICT_DNS"
    assert "override_host" in str(models["load_balancing_policy"])


@pytest.mark.parametrize("address", ["vllm", "vllm:", ":8000", "vllm:http", "vllm:0", "vllm:70000"])
def test_bad_endpoints_are_named(address: str) -> None:
    with pytest.raises(ExtprocError, match="not host:port"):
        render(EnvoySettings(endpoints=(address,)))


def test_without_extproc_a_list_is_needed() -> None:
    with pytest.raises(ExtprocError, match="list of endpoints"):
        render(EnvoySettings(use_extproc=False))


def test_several_replicas_share_the_streams_and_take_over_what_a_dead_one_never_answered() -> None:
    bootstrap = checked(render(EnvoySettings(further_extprocs=("127.0.0.1:9003", "127.0.0.1:9004"))))
    cluster = bootstrap["static_resources"]["clusters"][0]
    assert cluster["lb_policy"] == "LEAST_REQUEST"
    assert len(cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]) == 3
    assert cluster["health_checks"][0]["grpc_health_check"]
    service = ext_proc_filter(EnvoySettings(further_extprocs=("127.0.0.1:9003",)))["grpc_service"]
    assert "connect-failure" in str(service)
    assert "retry_policy" not in str(ext_proc_filter(EnvoySettings()))
