"""The `endpoints` section: what it accepts, and what it says of mistakes."""

import pytest

from extproc.config.endpoints import (
    DnsDiscovery,
    EndpointsConfig,
    ScrapeConfig,
    StaticDiscovery,
    check_staleness,
    join_address,
    split_address,
)
from extproc.config.loader import load_text
from extproc.errors import ConfigError


def load(text: str) -> EndpointsConfig:
    return load_text(text, EndpointsConfig)


def test_every_kind_of_discovery_is_chosen_by_its_type() -> None:
    config = load(
        """
discovery:
  - {type: static, endpoints: [{name: a, address: "[::1]:8000", labels: {zone: b}}]}
  - {type: file, path: endpoints.yaml}
  - {type: dns, name: vllm.example, record: SRV}
  - {type: kubernetes, pool: llama}
scrape: {engine: sglang, metrics: {running_requests: ["mine:running"]}}
"""
    )
    assert [item.type for item in config.discovery] == ["static", "file", "dns", "kubernetes"]
    names = config.scrape.metric_names()
    assert names.running_requests == ("mine:running",)
    assert names.waiting_requests == ("sglang:num_queue_reqs",)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{type: static, endpoints: [{name: a, address: 10.0.0.1}]}", "not of the form ip:port"),
        ("{type: static, endpoints: [{name: a, address: '10.0.0.1:0'}]}", "port must be 1 to 65535"),
        ("{type: static, endpoints: [{name: a, address: '::1:80'}]}", "needs brackets"),
        ("{type: static, endpoints: [{name: a, address: 'gpu-1:80'}]}", "use `type: dns`"),
        ("{type: static, endpoints: [{name: 'a|b', address: '1.2.3.4:80'}]}", "name"),
        (
            "{type: static, endpoints: [{name: a, address: '1.2.3.4:8'}, {name: a, address: '1.2.3.4:9'}]}",
            r"endpoints\[1\]\.name.*'a' is also endpoints\[0\]\.name",
        ),
        ("{type: dns, name: x}", "record A needs a port"),
        ("{type: dns, name: x, record: SRV, port: 80}", "brings its own ports"),
        ("{type: dns, name: x, port: 1, nameservers: [ns.example]}", "neither an ip nor ip:port"),
        ("{type: kubernetes}", "exactly one of pool and service"),
        ("{type: kubernetes, pool: a, service: b}", "exactly one of pool and service"),
        ("{type: kubernetes, pool: a, api_server: 'http://x'}", "namespace"),
        ("{type: etcd}", "type"),
    ],
)
def test_a_mistake_is_named(text: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        load(f"discovery: [{text}]")


def test_scrape_intervals_must_be_ordered() -> None:
    with pytest.raises(ConfigError, match="busy_interval_s"):
        ScrapeConfig(min_interval_s=1.0, busy_interval_s=0.2)
    with pytest.raises(ConfigError, match="belong together"):
        load("scrape: {tls: {cert_file: x}}")
    with pytest.raises(ConfigError, match="no metric name"):
        load("scrape: {metrics: {running_requests: ['a b']}}")


def test_field_bug_076_a_staleness_limit_below_the_scrape_interval_is_refused_naming_both() -> None:
    problems = check_staleness(ScrapeConfig(max_interval_s=5.0), 0.2, "flow_control.detector.staleness_s")
    assert len(problems) == 1
    assert problems[0].path == "flow_control.detector.staleness_s"
    assert "max_interval_s" in problems[0].message
    assert check_staleness(ScrapeConfig(max_interval_s=5.0), 15.0, "x") == []
    assert check_staleness(ScrapeConfig(enabled=False), 0.2, "x") == []


def test_addresses_split_and_join() -> None:
    for address in ("10.0.0.1:80", "[::1]:8000"):
        assert join_address(*split_address(address)) == address


def test_a_static_section_and_a_dns_section_check_themselves_in_code_too() -> None:
    assert StaticDiscovery().endpoints == ()
    with pytest.raises(ConfigError, match="min_ttl_s"):
        DnsDiscovery(name="x", port=1, min_ttl_s=5.0, max_ttl_s=1.0)
