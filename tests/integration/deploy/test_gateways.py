"""The gateway files carry every limit that flow control depends on, and Envoy accepts what is in them."""

from __future__ import annotations

import asyncio
import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from extproc.config.envoy_limits import EnvoyNeeds, check_envoy
from extproc.config.yaml_source import parse_yaml
from extproc.stack.envoy import DESTINATION_HEADER, STRIPPED_HEADERS, EnvoySettings, render
from extproc.stack.local import envoy_binary

DEPLOY = Path(__file__).parents[3] / "deploy"
NEEDS = EnvoyNeeds(longest_wait_s=600, largest_body_bytes=16 << 20, concurrent_requests=50_000)
HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


def documents(name: str) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all((DEPLOY / "gateway" / name).read_text()) if one]


def one(name: str, kind: str) -> dict[str, Any]:
    (found,) = [document for document in documents(name) if document["kind"] == kind]
    return found


def seconds(duration: str) -> float:
    return float(duration.removesuffix("s"))


def quantity(text: str) -> int:
    return int(text.removesuffix("Mi")) << 20


def our_bootstrap() -> dict[str, Any]:
    return render(EnvoySettings(extproc_host="extproc.default.svc.cluster.local"))


def manager_of(bootstrap: dict[str, Any]) -> dict[str, Any]:
    (listener,) = bootstrap["static_resources"]["listeners"]
    return listener["filter_chains"][0]["filters"][0]["typed_config"]


def istio_bootstrap() -> dict[str, Any]:
    """What Istio would make of the EnvoyFilter: its patches applied to a bare gateway bootstrap."""
    bare = copy.deepcopy(our_bootstrap())
    (listener,) = bare["static_resources"]["listeners"]
    del listener["per_connection_buffer_limit_bytes"]
    manager = manager_of(bare)
    for setting in ("stream_idle_timeout", "delayed_close_timeout", "local_reply_config"):
        del manager[setting]
    manager["http_filters"] = manager["http_filters"][-1:]
    (route,) = manager["route_config"]["virtual_hosts"][0]["routes"]
    route["route"] = {}
    bare["static_resources"]["clusters"] = []
    for patch in one("istio.yaml", "EnvoyFilter")["spec"]["configPatches"]:
        value = copy.deepcopy(patch["patch"]["value"])
        match patch["applyTo"], patch["patch"]["operation"]:
            case "LISTENER", "MERGE":
                listener.update(value)
            case "NETWORK_FILTER", "MERGE":
                manager.update(value["typed_config"])
            case "HTTP_FILTER", "INSERT_BEFORE":
                manager["http_filters"].insert(-1, value)
            case "HTTP_ROUTE", "MERGE":
                route["route"].update(value["route"])
            case "CLUSTER", "ADD":
                bare["static_resources"]["clusters"].append(value)
            case other:
                raise AssertionError(other)
    return bare


def plain_bootstrap() -> dict[str, Any]:
    config: dict[str, Any] = yaml.safe_load(one("plain-envoy.yaml", "ConfigMap")["data"]["envoy.yaml"])
    return config


def test_istio_ends_up_with_the_very_bootstrap_that_we_test_with() -> None:
    ours, made = our_bootstrap(), istio_bootstrap()
    manager_of(ours)["delayed_close_timeout"] = "0.010s"
    assert made == ours


@pytest.mark.parametrize("make", [istio_bootstrap, plain_bootstrap], ids=["istio", "plain"])
def test_the_linter_finds_nothing_too_small(make: Any) -> None:
    assert check_envoy(parse_yaml(yaml.safe_dump(make())), NEEDS) == []


@pytest.mark.parametrize("make", [istio_bootstrap, plain_bootstrap], ids=["istio", "plain"])
async def test_envoy_itself_accepts_it(make: Any, tmp_path: Path) -> None:
    file = tmp_path / "envoy.yaml"
    file.write_text(yaml.safe_dump(make()))
    process = await asyncio.create_subprocess_exec(
        envoy_binary(),
        "--mode",
        "validate",
        "-c",
        str(file),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, output.decode()


def test_envoy_gateway_fails_closed_and_waits_longer_than_the_queue() -> None:
    (processor,) = one("envoy-gateway.yaml", "EnvoyExtensionPolicy")["spec"]["extProc"]
    assert processor["failOpen"] is False
    assert seconds(processor["messageTimeout"]) > NEEDS.longest_wait_s
    assert processor["processingMode"] == {
        "request": {"body": "Buffered"},
        "response": {},
        "allowModeOverride": True,
    }
    breaker = processor["backendSettings"]["circuitBreaker"]
    assert all(limit >= NEEDS.concurrent_requests for limit in breaker.values())
    http2 = processor["backendSettings"]["http2"]
    ours = our_bootstrap()["static_resources"]["clusters"][0]["typed_extension_protocol_options"]
    expected = ours[HTTP_OPTIONS]["explicit_http_config"]["http2_protocol_options"]
    assert http2["maxConcurrentStreams"] == expected["max_concurrent_streams"]
    assert quantity(http2["initialStreamWindowSize"]) == expected["initial_stream_window_size"]
    assert quantity(http2["initialConnectionWindowSize"]) == expected["initial_connection_window_size"]


def test_envoy_gateway_patches_what_its_policies_cannot_say() -> None:
    patches = one("envoy-gateway.yaml", "EnvoyPatchPolicy")["spec"]["jsonPatches"]
    operations = {patch["operation"]["path"]: patch["operation"] for patch in patches}
    assert operations["/response_trailer_mode"]["value"] == "SEND"
    assert operations["/response_trailer_mode"]["jsonPath"].endswith("processing_mode")
    assert operations["/timeout"]["value"] == "0s"
    assert seconds(operations["/delayed_close_timeout"]["value"]) <= 0.01
    for flood_guard in ("/max_outbound_control_frames", "/max_outbound_frames"):
        assert operations[flood_guard]["value"] >= 2 * NEEDS.concurrent_requests
    names = {patch["name"] for patch in patches}
    policy = one("envoy-gateway.yaml", "EnvoyExtensionPolicy")["metadata"]["name"]
    gateway = one("envoy-gateway.yaml", "Gateway")
    listener = gateway["spec"]["listeners"][0]["name"]
    assert names == {
        f"default/{gateway['metadata']['name']}/{listener}",
        f"envoyextensionpolicy/default/{policy}/extproc/0",
    }


def test_envoy_gateway_holds_the_largest_body_and_never_cuts_an_answer() -> None:
    client = one("envoy-gateway.yaml", "ClientTrafficPolicy")["spec"]
    backend = one("envoy-gateway.yaml", "BackendTrafficPolicy")["spec"]
    assert quantity(client["connection"]["bufferLimit"]) > NEEDS.largest_body_bytes
    assert quantity(backend["connection"]["bufferLimit"]) > NEEDS.largest_body_bytes
    assert seconds(client["timeout"]["http"]["streamIdleTimeout"]) > NEEDS.longest_wait_s
    assert backend["timeout"]["http"]["requestTimeout"] == "0s"
    assert all(limit >= NEEDS.concurrent_requests for limit in backend["circuitBreaker"].values())
    assert backend["loadBalancer"]["endpointOverride"] == {"extractFrom": [{"header": DESTINATION_HEADER}]}


def test_field_bug_037_no_gateway_lets_a_client_choose_its_server() -> None:
    client = one("envoy-gateway.yaml", "ClientTrafficPolicy")["spec"]
    removed = set(client["headers"]["earlyRequestHeaders"]["remove"])
    for file in ("envoy-gateway.yaml", "inferencepool.yaml", "inferencepool-v1alpha2.yaml"):
        for rule in one(file, "HTTPRoute")["spec"]["rules"]:
            for filter_ in rule["filters"]:
                removed |= set(filter_["requestHeaderModifier"]["remove"])
        assert removed >= set(STRIPPED_HEADERS), file
        removed = set()


@pytest.mark.parametrize(
    ("file", "reference", "port"),
    [
        ("inferencepool.yaml", "endpointPickerRef", lambda ref: ref["port"]["number"]),
        ("inferencepool-v1alpha2.yaml", "extensionRef", lambda ref: ref["portNumber"]),
    ],
)
def test_inference_pools_name_our_service_and_fail_closed(file: str, reference: str, port: Any) -> None:
    picker = one(file, "InferencePool")["spec"][reference]
    assert picker["name"] == "extproc"
    assert port(picker) == 9002
    assert picker["failureMode"] == "FailClose"
    (rule,) = one(file, "HTTPRoute")["spec"]["rules"]
    assert rule["timeouts"] == {"request": "0s", "backendRequest": "0s"}
    (backend,) = rule["backendRefs"]
    assert backend["kind"] == "InferencePool"
    assert backend["group"] == one(file, "InferencePool")["apiVersion"].split("/")[0]


def test_istio_raises_the_limits_of_the_cluster_that_it_makes_for_a_picker() -> None:
    pool = one("istio.yaml", "DestinationRule")["spec"]["trafficPolicy"]["connectionPool"]
    assert pool["tcp"]["maxConnections"] >= NEEDS.concurrent_requests
    assert pool["http"]["http2MaxRequests"] >= NEEDS.concurrent_requests
    assert pool["http"]["maxConcurrentStreams"] <= 500


@pytest.mark.parametrize("file", ["envoy-gateway.yaml", "istio.yaml", "inferencepool.yaml"])
def test_every_number_has_its_reason_beside_it(file: str) -> None:
    """Each limit line, or a line within three above it, carries a comment."""
    lines = (DEPLOY / "gateway" / file).read_text().splitlines()
    limits = ("Timeout:", "timeout:", "bufferLimit:", "circuitBreaker:", "circuit_breakers:", "buffer_limit")
    for number, line in enumerate(lines):
        is_group = line.rstrip().endswith(("timeout:", "circuit_breakers:")) or "connect_timeout" in line
        if any(limit in line for limit in limits) and not is_group:
            near = lines[max(0, number - 4) : number + 1]
            assert any("#" in text for text in near), f"{file}:{number + 1}: {line.strip()}"
