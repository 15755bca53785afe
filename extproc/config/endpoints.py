"""Sections of the configuration about the pool: who is in it, how it is watched, who is left out.

Each section checks itself; times are seconds. Which endpoint is picked is `extproc.core.picker`'s section.
"""

from __future__ import annotations

import dataclasses
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from extproc.errors import ConfigError, Problem
from extproc.formats.engine_metrics import PRESETS, EngineMerge, MetricNames


def split_address(address: str) -> tuple[str, int]:
    """`ip:port` or `[ipv6]:port` to its parts; raises ValueError saying what is wrong."""
    host, colon, port_text = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError(f"{address!r}: an IPv6 address needs brackets, as in [::1]:8000")
    if not colon or not host or not port_text.isascii() or not port_text.isdigit():
        raise ValueError(f"{address!r} is not of the form ip:port")
    port = int(port_text)
    if not 1 <= port <= 65535:
        raise ValueError(f"{address!r}: the port must be 1 to 65535")
    if not _is_ip(host):
        raise ValueError(f"{address!r}: Envoy needs an IP address here; for a name use `type: dns`")
    return host, port


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def join_address(host: str, port: int) -> str:
    """The form that Envoy's original-destination cluster reads."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class _Checks:
    """Collects what is wrong with a section."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def require(self, is_right: bool, path: str, message: str) -> None:
        if not is_right:
            self.problems.append(Problem(path, message))

    def finish(self) -> None:
        if self.problems:
            raise ConfigError(self.problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointEntry:
    """One model server of a list.

    `address` is `ip:port` (IPv6 in brackets), what Envoy connects to; `metrics_address` is where the metrics
    are when they are not there. `max_requests` and `max_tokens` override the detector's capacity. `start`
    distinguishes a new server at an old address (any text); without it a new list entry after a removal is a
    new server. `draining` keeps the endpoint but gives it no new work.
    """

    name: str
    address: str
    labels: Mapping[str, str] = field(default_factory=dict)
    metrics_address: str | None = None
    max_requests: int | None = None
    max_tokens: int | None = None
    start: str = ""
    draining: bool = False

    def __post_init__(self) -> None:
        checks = _Checks()
        named = bool(self.name) and "|" not in self.name and self.name.isprintable()
        checks.require(
            named and len(self.name) <= 512, "name", "must be 1 to 512 printable characters without |"
        )
        checks.require("|" not in self.start, "start", "must not contain |")
        for path in ("address", "metrics_address"):
            value = getattr(self, path)
            if value is not None:
                try:
                    split_address(value)
                except ValueError as error:
                    checks.require(False, path, str(error))
        for path in ("max_requests", "max_tokens"):
            value = getattr(self, path)
            checks.require(value is None or value > 0, path, "must be positive")
        checks.finish()


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointList:
    """The document that `type: file` watches, and the body of `type: static`."""

    endpoints: tuple[EndpointEntry, ...] = ()

    def __post_init__(self) -> None:
        checks = _Checks()
        seen: dict[tuple[str, str], int] = {}
        for index, entry in enumerate(self.endpoints):
            for kind, value in (("name", entry.name), ("address", entry.address)):
                first = seen.setdefault((kind, value), index)
                path = f"endpoints[{index}].{kind}"
                checks.require(first == index, path, f"{value!r} is also endpoints[{first}].{kind}")
        checks.finish()


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticDiscovery(EndpointList):
    """A fixed list of endpoints."""

    type: Literal["static"] = "static"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDiscovery:
    """A YAML or JSON file with an `endpoints` list, read again whenever it changes.

    `poll_interval_s` is how often the file is looked at: a look costs one stat call, survives renames and
    re-creation, and works on file systems that send no change events.
    """

    type: Literal["file"] = "file"
    path: str
    poll_interval_s: float = 0.5
    max_bytes: int = 4_194_304

    def __post_init__(self) -> None:
        checks = _Checks()
        checks.require(bool(self.path), "path", "must name a file")
        checks.require(0.05 <= self.poll_interval_s <= 3600, "poll_interval_s", "must be 0.05 to 3600")
        checks.require(self.max_bytes > 0, "max_bytes", "must be positive")
        checks.finish()


@dataclass(frozen=True, slots=True, kw_only=True)
class DnsDiscovery:
    """Every address of a name; asked again when the answer's time to live is over.

    `record` SRV brings its own ports and names of hosts; A, AAAA and `host` (both) need `port`. The time to
    live is kept within `min_ttl_s` and `max_ttl_s`. `nameservers` (`ip` or `ip:port`) default to the
    system's.
    """

    type: Literal["dns"] = "dns"
    name: str
    record: Literal["A", "AAAA", "host", "SRV"] = "A"
    port: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    min_ttl_s: float = 1.0
    max_ttl_s: float = 300.0
    timeout_s: float = 3.0
    nameservers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        checks = _Checks()
        checks.require(bool(self.name), "name", "must be a DNS name")
        if self.record == "SRV":
            checks.require(self.port is None, "port", "an SRV record brings its own ports: leave this out")
        else:
            is_port = self.port is not None and 1 <= self.port <= 65535
            checks.require(is_port, "port", f"record {self.record} needs a port, 1 to 65535")
        checks.require(0.1 <= self.min_ttl_s <= self.max_ttl_s, "min_ttl_s", "must be 0.1 to max_ttl_s")
        checks.require(self.timeout_s > 0, "timeout_s", "must be positive")
        for index, server in enumerate(self.nameservers):
            is_address = _is_ip(server) or _is_ip(server.rpartition(":")[0].strip("[]"))
            checks.require(is_address, f"nameservers[{index}]", f"{server!r} is neither an ip nor ip:port")
        checks.finish()


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesDiscovery:
    """Ready pods of an InferencePool (`pool`), or the endpoints of a Service (`service`); one of the two.

    Without `api_server` the pod's own service account is used. `target_ports` overrides the pool's; each port
    of a pod is an endpoint. `list_limit` is the page size of lists.
    """

    type: Literal["kubernetes"] = "kubernetes"
    namespace: str = ""
    pool: str | None = None
    service: str | None = None
    pool_version: Literal["v1", "v1alpha2"] = "v1"
    target_ports: tuple[int, ...] = ()
    api_server: str | None = None
    token_file: str | None = None
    ca_file: str | None = None
    list_limit: int = 500
    watch_timeout_s: float = 300.0
    max_backoff_s: float = 30.0

    def __post_init__(self) -> None:
        checks = _Checks()
        checks.require(
            (self.pool is None) != (self.service is None), "", "needs exactly one of pool and service"
        )
        for index, port in enumerate(self.target_ports):
            checks.require(1 <= port <= 65535, f"target_ports[{index}]", "must be 1 to 65535")
        is_url = self.api_server is None or self.api_server.startswith(("http://", "https://"))
        checks.require(is_url, "api_server", "must begin with http:// or https://")
        checks.require(
            bool(self.namespace) or self.api_server is None, "namespace", "is needed with api_server"
        )
        checks.require(self.list_limit > 0, "list_limit", "must be positive")
        checks.require(self.watch_timeout_s >= 1, "watch_timeout_s", "must be at least 1")
        checks.require(self.max_backoff_s >= 0.1, "max_backoff_s", "must be at least 0.1")
        checks.finish()


Discovery = StaticDiscovery | FileDiscovery | DnsDiscovery | KubernetesDiscovery


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricOverrides:
    """Renamed series: what is given here replaces the preset's names of that signal."""

    running_requests: tuple[str, ...] | None = None
    waiting_requests: tuple[str, ...] | None = None
    kv_usage_fraction: tuple[str, ...] | None = None
    preemptions_total: tuple[str, ...] | None = None
    prompt_tokens_total: tuple[str, ...] | None = None
    cache_config: tuple[str, ...] | None = None
    lora_info: tuple[str, ...] | None = None
    block_tokens_label: str | None = None
    blocks_label: str | None = None
    reserved_blocks: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapeTls:
    """TLS towards the model servers' metrics. `verify` False accepts every certificate (in-cluster only)."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    server_name: str | None = None
    verify: bool = True

    def __post_init__(self) -> None:
        if (self.cert_file is None) != (self.key_file is None):
            raise ConfigError([Problem("cert_file", "cert_file and key_file belong together")])


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapeConfig:
    """How each endpoint is measured.

    The interval is `min_interval_s` while requests wait in the engine or its KV cache is nearly full,
    `busy_interval_s` while it works, and doubles up to `max_interval_s` while it is idle or does not answer;
    a dispatch brings it back to `busy_interval_s`. It is never so short that answering takes the engine more
    than `max_duty_fraction` of its time (a page costs vLLM 5 to 18 ms of its API server's event loop).
    `jitter_fraction` spreads the scrapes. A page larger than `max_page_bytes` is cut off.
    """

    enabled: bool = True
    engine: Literal["vllm", "sglang"] = "vllm"
    path: str = "/metrics"
    tls: ScrapeTls | None = None
    min_interval_s: float = 0.05
    busy_interval_s: float = 0.2
    max_interval_s: float = 5.0
    jitter_fraction: float = 0.1
    max_duty_fraction: float = 0.1
    timeout_s: float = 1.0
    max_page_bytes: int = 8_388_608
    models_interval_s: float = 10.0
    authorization_file: str | None = None
    metrics: MetricOverrides = field(default_factory=MetricOverrides)
    merge: EngineMerge = field(default_factory=EngineMerge)

    def __post_init__(self) -> None:
        checks = _Checks()
        checks.require(self.path.startswith("/") and " " not in self.path, "path", "must begin with /")
        checks.require(self.min_interval_s >= 0.01, "min_interval_s", "must be at least 0.01")
        is_ordered = self.min_interval_s <= self.busy_interval_s <= self.max_interval_s
        checks.require(is_ordered, "busy_interval_s", "must lie between min_interval_s and max_interval_s")
        checks.require(0 <= self.jitter_fraction <= 0.5, "jitter_fraction", "must be 0 to 0.5")
        checks.require(0 < self.max_duty_fraction <= 1, "max_duty_fraction", "must be above 0, at most 1")
        checks.require(self.timeout_s > 0, "timeout_s", "must be positive")
        checks.require(self.max_page_bytes >= 1024, "max_page_bytes", "must be at least 1024")
        checks.require(
            self.models_interval_s >= 0, "models_interval_s", "must not be negative (0: never ask)"
        )
        checks.finish()
        self.metric_names()

    def metric_names(self) -> MetricNames:
        """The preset of the engine with the overrides in place."""
        given = {
            item.name: value
            for item in dataclasses.fields(self.metrics)
            if (value := getattr(self.metrics, item.name)) is not None
        }
        return dataclasses.replace(PRESETS[self.engine], **given)


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthConfig:
    """When an endpoint is left out, and for how long.

    `consecutive_failures` connect failures or 5xx answers in a row eject it for `base_ejection_s`, doubled
    with each further ejection up to `max_ejection_s`; then one request is let through as a probe. After as
    long without a failure as the last ejection lasted, the time starts at the base again. An ejection for
    5xx answers is withheld when it would leave out more than `max_ejected_fraction` of the pool (a poisonous
    request makes every server answer 500); a server that can't be reached is always left out. 0 failures
    switches ejection off.
    """

    consecutive_failures: int = 3
    base_ejection_s: float = 5.0
    max_ejection_s: float = 300.0
    max_ejected_fraction: float = 0.5

    def __post_init__(self) -> None:
        checks = _Checks()
        checks.require(self.consecutive_failures >= 0, "consecutive_failures", "must not be negative")
        is_ordered = 0 < self.base_ejection_s <= self.max_ejection_s
        checks.require(is_ordered, "base_ejection_s", "must be above 0, at most max_ejection_s")
        checks.require(0 <= self.max_ejected_fraction <= 1, "max_ejected_fraction", "must be 0 to 1")
        checks.finish()


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointsConfig:
    """The `endpoints` section: several discoveries add up, an address counts once (the first listed wins)."""

    discovery: tuple[Discovery, ...] = ()
    scrape: ScrapeConfig = field(default_factory=ScrapeConfig)
    health: HealthConfig = field(default_factory=HealthConfig)


def check_staleness(scrape: ScrapeConfig, staleness_s: float, path: str) -> list[Problem]:
    """A measurement must not count as stale before the next one can arrive (three intervals at least).

    `path` names the setting that gives `staleness_s`.
    """
    needed_s = 3 * scrape.max_interval_s
    if not scrape.enabled or staleness_s >= needed_s:
        return []
    message = (
        f"{staleness_s:g} s is shorter than three scrape intervals (endpoints.scrape.max_interval_s is "
        f"{scrape.max_interval_s:g} s): idle endpoints would always look stale; "
        f"set at least {needed_s:g} s, or a max_interval_s of at most {staleness_s / 3:.3g} s"
    )
    return [Problem(path, message)]
