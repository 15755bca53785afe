"""Envoy's bootstrap for our filter: every setting that decides whether flow control works, in one place.

The defaults mean the same as `envoy/envoy.yaml`, which explains each number; a test compares the two. The
result is plain data; `checked` passes it through Envoy's own typed messages. It must not start anything.
"""

from __future__ import annotations

import copy
import importlib
import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from extproc.errors import ExtprocError
from extproc.stack.envoy_replies import local_reply_config

Node = dict[str, Any]

DESTINATION_HEADER = "x-gateway-destination-endpoint"
STRIPPED_HEADERS = (DESTINATION_HEADER, "x-vllm-priority")
METADATA_NAMESPACE = "envoy.lb"
SERVED_KEY = "x-gateway-destination-endpoint-served"
"""Where the override_host policy notes which address was used: a fallback's answer is booked there."""
MAX_FALLBACKS = 3
PROCESSOR_SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"

_TYPE = "type.googleapis.com/envoy.extensions."
_HCM = "filters.network.http_connection_manager.v3"
_HEADER_MUTATION = "filters.http.header_mutation.v3"
_EXT_PROC = "filters.http.ext_proc.v3"
_ROUTER = "filters.http.router.v3"
_HTTP_OPTIONS = "upstreams.http.v3"
_OVERRIDE_HOST = "load_balancing_policies.override_host.v3"
_ROUND_ROBIN = "load_balancing_policies.round_robin.v3"
_PREVIOUS_HOSTS = "retry.host.previous_hosts.v3"
_CEL_FILTER = "access_loggers.filters.cel.v3"


class ProcessingMode(Enum):
    """Which parts of a request Envoy shows to extproc; the value is the command line's word."""

    LEAN = "lean"
    """Request body buffered, response body not shown: three messages a request. The default."""
    LEAN_OBSERVED = "lean-observed"
    """As lean, with every chunk of every response shown."""
    BUFFERED_PARTIAL = "buffered-partial"
    STREAMED = "streamed"
    STREAMED_NO_WAIT = "streamed-no-wait"
    """STREAMED, and the body does not wait for the answer to the headers."""
    FULL_DUPLEX = "full-duplex"
    """What gateways use for an InferencePool: both bodies pass through extproc."""
    HEADERS_ONLY = "headers-only"
    OBSERVABILITY = "observability"
    """Envoy sends copies and waits for nothing."""


_LEAN = {
    "request_header_mode": "SEND",
    "request_body_mode": "BUFFERED",
    "response_header_mode": "SEND",
    "response_body_mode": "NONE",
    "response_trailer_mode": "SEND",
}

_OTHER_REPLICA: Node = {
    # A replica that has just died is listed until its health check has failed: a stream that it never
    # answered is opened again, elsewhere. Nothing can have been decided about its request.
    "retry_on": "connect-failure,refused-stream,reset,unavailable",
    # Together longer than the health check takes to notice, so that also a standby is found.
    "num_retries": 10,
    "retry_back_off": {"base_interval": "0.050s", "max_interval": "1s"},
    "retry_host_predicate": [
        {
            "name": "envoy.retry_host_predicates.previous_hosts",
            "typed_config": {
                "@type": f"{_TYPE}{_PREVIOUS_HOSTS}.PreviousHostsPredicate",
            },
        }
    ],
    "host_selection_retry_max_attempts": 5,
}

_FILTER_BY_MODE: Mapping[ProcessingMode, Node] = {
    ProcessingMode.LEAN: {"processing_mode": _LEAN},
    ProcessingMode.LEAN_OBSERVED: {"processing_mode": {**_LEAN, "response_body_mode": "STREAMED"}},
    ProcessingMode.BUFFERED_PARTIAL: {"processing_mode": {**_LEAN, "request_body_mode": "BUFFERED_PARTIAL"}},
    ProcessingMode.STREAMED: {"processing_mode": {**_LEAN, "request_body_mode": "STREAMED"}},
    ProcessingMode.STREAMED_NO_WAIT: {
        "processing_mode": {**_LEAN, "request_body_mode": "STREAMED"},
        "send_body_without_waiting_for_header_response": True,
    },
    ProcessingMode.FULL_DUPLEX: {
        "processing_mode": {
            "request_header_mode": "SEND",
            "request_body_mode": "FULL_DUPLEX_STREAMED",
            "request_trailer_mode": "SEND",
            "response_header_mode": "SEND",
            "response_body_mode": "FULL_DUPLEX_STREAMED",
            "response_trailer_mode": "SEND",
        }
    },
    ProcessingMode.HEADERS_ONLY: {"processing_mode": {**_LEAN, "request_body_mode": "NONE"}},
    ProcessingMode.OBSERVABILITY: {
        "processing_mode": {**_LEAN, "request_body_mode": "STREAMED"},
        "observability_mode": True,
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvoySettings:
    """What differs between installations; durations in seconds, sizes in bytes. Port 0 lets Envoy choose.

    With `endpoints` the pool is a fixed list with the override_host policy, which takes fallbacks; without,
    the address in the destination header is used as it is (an ORIGINAL_DST cluster). `further_extprocs`
    (`host:port`) are replicas beside the first one: streams go to the one with the fewest.
    """

    listen_host: str = "0.0.0.0"
    listen_port: int = 8080
    admin_host: str = "127.0.0.1"
    admin_port: int = 9901
    extproc_host: str = "127.0.0.1"
    extproc_port: int = 9002
    further_extprocs: tuple[str, ...] = ()
    endpoints: tuple[str, ...] = ()
    mode: ProcessingMode = ProcessingMode.LEAN
    use_extproc: bool = True
    """False leaves the filter out and spreads requests over `endpoints`."""
    message_timeout_s: float = 3600.0
    idle_timeout_s: float = 3600.0
    upstream_idle_timeout_s: float = 4.0
    """Below the servers' own keep-alive (vLLM: 5 s), so that no request meets a connection being closed."""
    upstream_retry_on: str = ""
    """Envoy's `retry_on` for one more attempt at the same server; `reset` may run a request twice."""
    delayed_close_timeout_s: float = 0.01
    buffer_limit_bytes: int = 32 << 20
    extproc_stream_window_bytes: int = 16 << 20
    max_streams_per_connection: int = 500
    max_concurrent_requests: int = 100_000


def render(settings: EnvoySettings) -> Node:
    """The bootstrap as plain data with the field names of Envoy's YAML."""
    if not settings.use_extproc and not settings.endpoints:
        raise ExtprocError("without extproc Envoy needs a list of endpoints: nothing else names an address")
    clusters = [_extproc_cluster(settings)] if settings.use_extproc else []
    return {
        "admin": {"address": _address(settings.admin_host, settings.admin_port)},
        "static_resources": {
            "listeners": [_listener(settings)],
            "clusters": [*clusters, _models_cluster(settings)],
        },
    }


def checked(bootstrap: Node) -> Node:
    """`bootstrap` after a pass through Envoy's typed messages: unknown fields and wrong types are errors."""
    try:
        messages = importlib.import_module("envoy_data_plane.envoy.config.bootstrap.v3")
    except ImportError as error:
        raise ExtprocError("checking needs envoy-data-plane: pip install 'extproc[envoy]'") from error
    for name in (
        _HCM,
        _HEADER_MUTATION,
        _EXT_PROC,
        _ROUTER,
        _HTTP_OPTIONS,
        _OVERRIDE_HOST,
        _ROUND_ROBIN,
        _PREVIOUS_HOSTS,
        _CEL_FILTER,
    ):
        importlib.import_module(f"envoy_data_plane.envoy.extensions.{name}")  # registers the type for `Any`
    casing = importlib.import_module("betterproto2").Casing
    try:
        message = messages.Bootstrap.from_dict(bootstrap)
        result = message.to_dict(casing=casing.SNAKE)
    except (KeyError, TypeError, ValueError) as error:
        raise ExtprocError(f"not a valid Envoy bootstrap: {error}") from error
    assert isinstance(result, dict)
    return result


def _duration(seconds: float) -> str:
    return f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"


def _address(host: str, port: int) -> Node:
    return {"socket_address": {"address": host, "port_value": port}}


def _typed(package: str, message: str, **fields: Any) -> Node:
    return {"@type": f"{_TYPE}{package}.{message}", **fields}


def _listener(settings: EnvoySettings) -> Node:
    manager = _typed(
        _HCM,
        "HttpConnectionManager",
        stat_prefix="ingress",
        use_remote_address=True,
        preserve_external_request_id=True,
        always_set_request_id_in_response=True,
        normalize_path=True,
        merge_slashes=True,
        stream_idle_timeout=_duration(settings.idle_timeout_s),
        request_headers_timeout="10s",
        request_timeout="300s",
        delayed_close_timeout=_duration(settings.delayed_close_timeout_s),
        common_http_protocol_options={"max_headers_count": 200},
        http_protocol_options={"accept_http_10": True, "default_host_for_http_10": "localhost"},
        http2_protocol_options={
            "initial_stream_window_size": settings.buffer_limit_bytes,
            "initial_connection_window_size": 2 * settings.buffer_limit_bytes,
        },
        upgrade_configs=[{"upgrade_type": "websocket"}],
        local_reply_config=local_reply_config(),
        http_filters=_http_filters(settings),
        route_config=_routes(settings),
    )
    network_filter = {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
    return {
        "name": "ingress",
        "address": _address(settings.listen_host, settings.listen_port),
        "per_connection_buffer_limit_bytes": settings.buffer_limit_bytes,
        "filter_chains": [{"filters": [network_filter]}],
    }


def _http_filters(settings: EnvoySettings) -> list[Node]:
    removals = [{"remove": name} for name in STRIPPED_HEADERS]
    strip = _typed(_HEADER_MUTATION, "HeaderMutation", mutations={"request_mutations": removals})
    filters = [{"name": "envoy.filters.http.header_mutation", "typed_config": strip}]
    if settings.use_extproc:
        filters.append({"name": "envoy.filters.http.ext_proc", "typed_config": _ext_proc_filter(settings)})
    router = {"name": "envoy.filters.http.router", "typed_config": _typed(_ROUTER, "Router")}
    return [*filters, router]


def _ext_proc_filter(settings: EnvoySettings) -> Node:
    service: Node = {"envoy_grpc": {"cluster_name": "extproc"}, "timeout": "0s"}
    if _may_be_several(settings):
        service["retry_policy"] = _OTHER_REPLICA
    return _typed(
        _EXT_PROC,
        "ExternalProcessor",
        grpc_service=service,
        failure_mode_allow=False,
        message_timeout=_duration(settings.message_timeout_s),
        allow_mode_override=settings.mode is not ProcessingMode.FULL_DUPLEX,
        metadata_options={
            "forwarding_namespaces": {"untyped": [METADATA_NAMESPACE]},
            "receiving_namespaces": {"untyped": [METADATA_NAMESPACE]},
        },
        **copy.deepcopy(_FILTER_BY_MODE[settings.mode]),
    )


def _routes(settings: EnvoySettings) -> Node:
    route: Node = {"cluster": "models", "timeout": "0s", "idle_timeout": _duration(settings.idle_timeout_s)}
    if settings.endpoints and settings.use_extproc:
        # Only what no engine has seen is tried again, at the next address of the destination header.
        route["retry_policy"] = {
            "retry_on": "connect-failure,reset-before-request",
            "num_retries": MAX_FALLBACKS,
        }
    if settings.upstream_retry_on:
        route["retry_policy"] = {"retry_on": settings.upstream_retry_on, "num_retries": 1}
    return {
        "name": "ingress",
        "virtual_hosts": [
            {"name": "models", "domains": ["*"], "routes": [{"match": {"prefix": "/"}, "route": route}]}
        ],
    }


def _circuit_breakers(settings: EnvoySettings) -> Node:
    limit = settings.max_concurrent_requests
    return {"thresholds": [{"max_connections": limit, "max_pending_requests": limit, "max_requests": limit}]}


def _http_options(**fields: Any) -> Node:
    name = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    return {name: _typed(_HTTP_OPTIONS, "HttpProtocolOptions", **fields)}


def _endpoints(cluster: str, addresses: Sequence[tuple[str, int]]) -> Node:
    entries = [{"endpoint": {"address": _address(host, port)}} for host, port in addresses]
    return {"cluster_name": cluster, "endpoints": [{"lb_endpoints": entries}]}


def _discovery(hosts: Sequence[str]) -> str:
    """STATIC takes addresses only; a name needs DNS."""
    try:
        for host in hosts:
            ipaddress.ip_address(host)
    except ValueError:
        return "STRICT_DNS"
    return "STATIC"


def _may_be_several(settings: EnvoySettings) -> bool:
    """Replicas are listed, or a name may resolve to them (a headless Service)."""
    return bool(settings.further_extprocs) or _discovery([settings.extproc_host]) == "STRICT_DNS"


def _extproc_cluster(settings: EnvoySettings) -> Node:
    http2 = {
        "max_concurrent_streams": settings.max_streams_per_connection,
        "max_outbound_control_frames": 100_000,
        "max_outbound_frames": 100_000,
        "initial_stream_window_size": settings.extproc_stream_window_bytes,
        "initial_connection_window_size": 2 * settings.extproc_stream_window_bytes,
        "connection_keepalive": {"interval": "10s", "timeout": "5s"},
    }
    health_check = {
        "timeout": "1s",
        "interval": "1s",
        "no_traffic_interval": "1s",
        "unhealthy_threshold": 3,
        "healthy_threshold": 1,
        "grpc_health_check": {"service_name": PROCESSOR_SERVICE},
    }
    replicas = [(settings.extproc_host, settings.extproc_port), *map(_split, settings.further_extprocs)]
    spread: Node = {"lb_policy": "LEAST_REQUEST"} if _may_be_several(settings) else {}
    return {
        "name": "extproc",
        "type": _discovery([host for host, _ in replicas]),
        **spread,
        "connect_timeout": "1s",
        "load_assignment": _endpoints("extproc", replicas),
        "typed_extension_protocol_options": _http_options(
            explicit_http_config={"http2_protocol_options": http2}
        ),
        "circuit_breakers": _circuit_breakers(settings),
        "health_checks": [health_check],
        "common_lb_config": {"healthy_panic_threshold": {"value": 1}},
    }


def _models_cluster(settings: EnvoySettings) -> Node:
    cluster: Node = {
        "name": "models",
        "connect_timeout": "5s",
        "typed_extension_protocol_options": _http_options(
            common_http_protocol_options={"idle_timeout": _duration(settings.upstream_idle_timeout_s)},
            explicit_http_config={"http_protocol_options": {}},
        ),
        "per_connection_buffer_limit_bytes": settings.buffer_limit_bytes,
        "circuit_breakers": _circuit_breakers(settings),
    }
    if not settings.endpoints:
        original_dst = {"use_http_header": True, "http_header_name": DESTINATION_HEADER}
        return {
            **cluster,
            "type": "ORIGINAL_DST",
            "lb_policy": "CLUSTER_PROVIDED",
            "original_dst_lb_config": original_dst,
        }
    addresses = [_split(address) for address in settings.endpoints]
    cluster |= {
        "type": _discovery([host for host, _ in addresses]),
        "load_assignment": _endpoints("models", addresses),
    }
    if settings.use_extproc:
        cluster["load_balancing_policy"] = _override_host()
    return cluster


def _override_host() -> Node:
    """The header's addresses in order, one an attempt; requests without the header are spread."""
    round_robin = {"name": "envoy.load_balancing_policies.round_robin"}
    round_robin_policy = {
        "typed_extension_config": {**round_robin, "typed_config": _typed(_ROUND_ROBIN, "RoundRobin")}
    }
    override = _typed(
        _OVERRIDE_HOST,
        "OverrideHost",
        override_host_sources=[{"header": DESTINATION_HEADER}],
        selected_host_key={"key": METADATA_NAMESPACE, "path": [{"key": SERVED_KEY}]},
        fallback_policy={"policies": [round_robin_policy]},
    )
    name = "envoy.load_balancing_policies.override_host"
    return {"policies": [{"typed_extension_config": {"name": name, "typed_config": override}}]}


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ExtprocError(f"endpoint {address!r} is not host:port")
    return host.strip("[]"), int(port)
