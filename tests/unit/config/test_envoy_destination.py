"""An Envoy file that would not send requests where extproc says, or not to the fallbacks that it names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from extproc.config.checks import envoy_needs
from extproc.config.envoy_limits import EnvoyNeeds, check_envoy
from extproc.config.loader import load_text
from extproc.config.schema import Config
from extproc.config.yaml_source import parse_yaml
from extproc.stack.envoy import EnvoySettings, render

SHIPPED = (Path(__file__).parents[3] / "envoy" / "envoy.yaml").read_text()
LISTED = render(EnvoySettings(endpoints=("10.0.0.1:8000", "10.0.0.2:8000")))
AGGREGATE = {
    "name": "envoy.clusters.aggregate",
    "typed_config": {
        "@type": "type.googleapis.com/envoy.extensions.clusters.aggregate.v3.ClusterConfig",
        "clusters": ["models", "spare"],
    },
}


def problems_of(bootstrap: str | dict[str, Any], addresses: int) -> list[str]:
    text = bootstrap if isinstance(bootstrap, str) else yaml.safe_dump(bootstrap, sort_keys=False)
    needs = EnvoyNeeds(
        longest_wait_s=3599.0,
        largest_body_bytes=16 << 20,
        concurrent_requests=20_000,
        addresses_named=addresses,
    )
    return [str(problem) for problem in check_envoy(parse_yaml(text), needs)]


def route_of(bootstrap: dict[str, Any]) -> dict[str, Any]:
    (listener,) = bootstrap["static_resources"]["listeners"]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    route: dict[str, Any] = manager["route_config"]["virtual_hosts"][0]["routes"][0]["route"]
    return route


def listed() -> dict[str, Any]:
    copy: dict[str, Any] = yaml.safe_load(yaml.safe_dump(LISTED))
    return copy


def test_original_dst_takes_one_address_only() -> None:
    assert problems_of(SHIPPED, 1) == []
    (problem,) = problems_of(SHIPPED, 3)
    line = next(number for number, row in enumerate(SHIPPED.splitlines(), 1) if "type: ORIGINAL_DST" in row)
    assert problem.startswith(
        f"static_resources.clusters[1].type (line {line}): ORIGINAL_DST takes one address"
    )
    assert "may hold 3" in problem
    assert "max_endpoints: 1" in problem
    assert "override_host" in problem


def test_a_list_with_the_override_host_policy_takes_as_many_as_its_retries_reach() -> None:
    assert problems_of(LISTED, 1) == problems_of(LISTED, 4) == []
    (problem,) = problems_of(LISTED, 5)
    assert "retry_policy.num_retries" in problem
    assert "4 fallbacks" in problem


def test_fallbacks_without_a_retry_are_never_used() -> None:
    bootstrap = listed()
    del route_of(bootstrap)["retry_policy"]
    assert problems_of(bootstrap, 1) == []
    (problem,) = problems_of(bootstrap, 3)
    assert ".route.retry_policy" in problem
    assert "num_retries: 2}" in problem


def test_a_retry_policy_may_stand_at_the_virtual_host() -> None:
    bootstrap = listed()
    policy = route_of(bootstrap).pop("retry_policy")
    manager = bootstrap["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    manager["route_config"]["virtual_hosts"][0]["retry_policy"] = policy
    assert problems_of(bootstrap, 3) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"use_http_header": False}, "original_dst_lb_config.use_http_header"),
        ({"http_header_name": "x-other"}, "original_dst_lb_config.http_header_name"),
    ],
)
def test_original_dst_must_read_the_destination_header(change: dict[str, Any], expected: str) -> None:
    bootstrap = yaml.safe_load(SHIPPED)
    bootstrap["static_resources"]["clusters"][1]["original_dst_lb_config"] |= change
    (problem,) = problems_of(bootstrap, 1)
    assert expected in problem


def test_an_aggregate_never_chooses_an_original_dst_member() -> None:
    bootstrap = yaml.safe_load(SHIPPED)
    clusters = bootstrap["static_resources"]["clusters"]
    clusters.append({**listed()["static_resources"]["clusters"][1], "name": "spare"})
    clusters.append({"name": "all", "lb_policy": "CLUSTER_PROVIDED", "cluster_type": AGGREGATE})
    route_of(bootstrap)["cluster"] = "all"
    (problem,) = problems_of(bootstrap, 1)
    assert "clusters[3].cluster_type" in problem
    assert "never chooses its ORIGINAL_DST member 'models'" in problem


def test_the_clusters_of_a_weighted_route_are_all_looked_at() -> None:
    bootstrap = yaml.safe_load(SHIPPED)
    route = route_of(bootstrap)
    del route["cluster"]
    route["weighted_clusters"] = {"clusters": [{"name": "models", "weight": 1}]}
    (problem,) = problems_of(bootstrap, 2)
    assert "ORIGINAL_DST" in problem


@pytest.mark.parametrize(
    ("picker", "endpoints", "expected"),
    [
        ("{type: profiles}", 3, 1),
        ("{type: profiles, profiles: [{name: a, max_endpoints: 2}, {name: b, max_endpoints: 4}]}", 9, 4),
        ("{type: profiles, profiles: [{name: a, max_endpoints: 4}]}", 3, 3),
        ("{type: profiles, profiles: [{name: a, max_endpoints: 4}]}", 1, 1),
        ("{type: least-inflight, fallbacks: 2}", 9, 3),
    ],
)
def test_how_many_addresses_a_configuration_names(picker: str, endpoints: int, expected: int) -> None:
    rows = ", ".join(f"{{name: e{number}, address: '10.0.0.{number}:8000'}}" for number in range(endpoints))
    source = f"{{type: static, endpoints: [{rows}]}}"
    text = f"flow_control: {{picker: {picker}}}\nendpoints: {{discovery: [{source}]}}"
    assert envoy_needs(load_text(text, Config, source="test")).addresses_named == expected


def test_a_watched_pool_may_grow_to_as_many_as_are_asked_for() -> None:
    text = (
        "flow_control: {picker: {type: least-inflight, fallbacks: 2}}\n"
        "endpoints: {discovery: [{type: dns, name: vllm, port: 8000}]}"
    )
    assert envoy_needs(load_text(text, Config, source="test")).addresses_named == 3
