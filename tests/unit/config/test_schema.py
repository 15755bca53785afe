"""The root of the configuration: the shipped files, checks across sections, and risky combinations."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from extproc.config.checks import envoy_needs, risks
from extproc.config.envoy_limits import check_envoy
from extproc.config.loader import dump
from extproc.config.schema import Config, load_config, parse_config
from extproc.config.yaml_source import parse_yaml
from extproc.errors import ConfigError

ROOT = Path(__file__).parents[3]
POOL = """
endpoints:
  discovery:
  - type: static
    endpoints:
    - {name: a, address: "10.0.0.1:8000"}
    - {name: b, address: "10.0.0.2:8000", max_requests: 4}
"""


def risks_of(text: str) -> list[str]:
    return [str(problem) for problem in risks(parse_config(text))]


def test_the_shipped_configuration_has_no_risks() -> None:
    config = load_config(ROOT / "config" / "extproc.yaml")
    assert list(risks(config)) == []
    assert config.flow_control.eviction.enabled


def test_the_example_for_replicas_has_no_risks() -> None:
    config = load_config(ROOT / "config" / "replicas.yaml")
    assert list(risks(config)) == []
    assert config.replicas.mode == "leased"


def test_the_shipped_envoy_file_fits_the_defaults_and_the_shipped_configuration() -> None:
    document = parse_yaml((ROOT / "envoy" / "envoy.yaml").read_text())
    for config in (Config(), load_config(ROOT / "config" / "extproc.yaml")):
        assert check_envoy(document, envoy_needs(config)) == []


def test_what_is_in_force_can_be_read_back() -> None:
    config = load_config(ROOT / "config" / "extproc.yaml")
    assert parse_config(json.dumps(dump(config))) == config


def test_two_servers_on_one_port_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"admin.port \(line 2\): 9002 is the port of the gRPC server"):
        parse_config("admin:\n  port: 9002\n")


def test_bands_that_no_request_can_reach_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"bands\[0\].priority .*2000 is outside"):
        parse_config("flow_control:\n  bands:\n  - priority: 2000\n")


def test_field_bug_076_scraping_slower_than_the_staleness_limit_is_refused() -> None:
    detector = "flow_control: {detector: {type: utilization-detector}}\n"
    with pytest.raises(ConfigError, match=r"staleness_s .*is shorter than three scrape intervals"):
        parse_config(detector)
    parse_config(detector + "endpoints: {scrape: {max_interval_s: 0.06, busy_interval_s: 0.05}}\n")
    with pytest.raises(ConfigError, match="needs what scraping measures"):
        parse_config(detector + "endpoints: {scrape: {enabled: false}}\n")


def test_field_bug_097_ceilings_out_of_order_are_refused() -> None:
    with pytest.raises(ConfigError, match="must not be above"):
        parse_config("flow_control: {ceilings: {type: explicit, ceilings: {10: 0.5, 0: 0.9}}}\n")


def test_field_bug_082_a_limit_that_can_never_be_reached_is_a_risk() -> None:
    text = POOL + "server: {max_streams: 20}\nflow_control: {detector: {type: concurrency-detector}}\n"
    assert "can never be reached" in risks_of(text)[0]


def test_a_holdback_that_holds_nothing_back_is_a_risk() -> None:
    text = POOL + (
        "flow_control:\n"
        "  detector: {type: concurrency-detector, max_concurrency: 4}\n"
        "  ceilings: {type: priority-holdback, min_ceiling: 0.9}\n"
    )
    assert "0.9 of 8 slots leaves none free" in risks_of(text)[0]


def test_an_eviction_without_possible_victims_is_a_risk() -> None:
    text = POOL + "requests: {priority: {minimum: 0}}\nflow_control: {eviction: {enabled: true}}\n"
    assert "nothing will ever be evicted" in risks_of(text)[0]


def test_an_empty_pool_is_a_risk() -> None:
    assert "endpoints.discovery" in risks_of("")[0]


@pytest.mark.parametrize(
    ("section", "reader"),
    [
        ("replicas: {mode: leased}", "dead replica"),
        ("flow_control: {detector: {type: capacity-detector}}", "kv_tokens"),
    ],
)
def test_somebody_who_needs_scraping_that_is_off_is_a_risk(section: str, reader: str) -> None:
    off = POOL + "  scrape: {enabled: false}\n"
    assert reader in risks_of(off + section)[0]
    assert risks_of(POOL + section) == []


@pytest.mark.parametrize(
    ("section", "path"),
    [
        ("tokens: {image_tokens: -5}", "tokens.image_tokens"),
        ("tokens: {audio_tokens: -1}", "tokens.audio_tokens"),
        ("tokens: {document_tokens: 99999999999}", "tokens.document_tokens"),
        ("model_rewrites: [{model: '', targets: [{model: b}]}]", "model_rewrites[0].model"),
        ("model_rewrites: [{model: a, targets: [{model: ''}]}]", "model_rewrites[0].targets[0].model"),
        ("strip_request_headers: ['x y']", "strip_request_headers[0]"),
        ("strip_request_headers: ['x-\u00e9']", "strip_request_headers[0]"),
        ("strip_request_headers: ['X-A']", "strip_request_headers[0]"),
    ],
)
def test_values_that_would_fail_every_request_or_count_below_zero_are_refused(
    section: str, path: str
) -> None:
    """Field bug 101: a header name that Envoy refuses would kill every call."""
    with pytest.raises(ConfigError) as raised:
        parse_config(f"requests: {{{section}}}\n")
    assert [problem.path for problem in raised.value.problems] == [f"requests.{path}"]
