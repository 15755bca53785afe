"""Reads an Envoy bootstrap and compares its limits with what a configuration of ours needs.

Envoy's defaults (200 ms for the processor, 15 s for a route, 1,024 calls, 1 MiB bodies) break flow control
under load only, so they are looked for beforehand. How the chosen address is obeyed is `envoy_destination`'s.
"""

from __future__ import annotations

from dataclasses import dataclass

from extproc.config.envoy_bootstrap import Bootstrap, number, numbered, seconds
from extproc.config.envoy_destination import destination_problems
from extproc.config.yaml_source import Data, Document, Path
from extproc.errors import Problem

_HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_MIB = 1 << 20
_ENGINE_KEEP_ALIVE_S = 5.0
"""Of uvicorn, in which vLLM's API server runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvoyNeeds:
    """What the configuration asks of Envoy."""

    longest_wait_s: float
    """The longest time that a request may spend in our queue."""
    largest_body_bytes: int
    concurrent_requests: int
    """Queued and in flight together; lean mode holds one call per request."""
    addresses_named: int = 1
    """The most addresses that the destination header of one request may hold."""


def check_envoy(document: Document, needs: EnvoyNeeds) -> list[Problem]:
    """Everything in the bootstrap that is too small for `needs`, with path and line."""
    return _Reader(document, needs).problems()


class _Reader:
    def __init__(self, document: Document, needs: EnvoyNeeds) -> None:
        self._bootstrap = Bootstrap(document)
        self._needs = needs
        self._problems: list[Problem] = []

    def problems(self) -> list[Problem]:
        filters = self._bootstrap.filters()
        if not filters:
            self._add((), "has no ext_proc filter: extproc would never be asked")
        for path, settings in filters:
            self._filter(path, settings)
        for path, settings in self._bootstrap.managers():
            self._manager(path, settings)
        for path, route in self._bootstrap.routes():
            self._route(path, route)
            for found in destination_problems(self._bootstrap, path, route, self._needs.addresses_named):
                self._add(*found)
        for path, listener in self._bootstrap.listeners():
            self._buffer(path, listener)
        return self._problems

    def _filter(self, path: Path, settings: dict[str, Data]) -> None:
        wait_s = self._needs.longest_wait_s
        timeout_s = seconds(settings.get("message_timeout"), 0.2)
        if timeout_s <= wait_s:
            self._add(
                (*path, "message_timeout"),
                f"{timeout_s:g} s, but a request may be queued for {wait_s:g} s: Envoy answers 504 first",
            )
        if settings.get("failure_mode_allow") is True:
            self._add((*path, "failure_mode_allow"), "true: without extproc requests pass without any limit")
        service = settings.get("grpc_service")
        if isinstance(service, dict):
            if 0 < seconds(service.get("timeout"), 0.0) <= wait_s:
                self._add(
                    (*path, "grpc_service", "timeout"), "must be 0s: a call lasts as long as its request"
                )
            target = service.get("envoy_grpc")
            if isinstance(target, dict):
                self._processor_cluster(str(target.get("cluster_name")))
        mode = settings.get("processing_mode")
        self._mode((*path, "processing_mode"), mode if isinstance(mode, dict) else {})

    def _mode(self, path: Path, mode: dict[str, Data]) -> None:
        if mode.get("request_header_mode") == "SKIP":
            self._add((*path, "request_header_mode"), "SKIP: no request would ever be seen")
        if mode.get("request_body_mode", "NONE") == "NONE":
            self._add((*path, "request_body_mode"), "NONE: model and prompt stay unknown")
        streams_response = mode.get("response_body_mode", "NONE") != "NONE"
        if not streams_response and mode.get("response_trailer_mode", "DEFAULT") != "SEND":
            self._add(
                (*path, "response_trailer_mode"),
                "must be SEND when the response body is not sent: else the call ends at the response headers "
                "and the request no longer counts as in flight",
            )

    def _manager(self, path: Path, settings: dict[str, Data]) -> None:
        wait_s = self._needs.longest_wait_s
        idle_s = seconds(settings.get("stream_idle_timeout"), 300.0)
        if 0 < idle_s <= wait_s:
            self._add(
                (*path, "stream_idle_timeout"),
                f"{idle_s:g} s, but a request may wait {wait_s:g} s",
            )
        if seconds(settings.get("delayed_close_timeout"), 1.0) > 0.1:
            self._add(
                (*path, "delayed_close_timeout"),
                "more than 0.1s (default 1s): evicted HTTP/1.1 clients learn of it that much later",
            )

    def _route(self, path: Path, route: dict[str, Data]) -> None:
        wait_s = self._needs.longest_wait_s
        timeout_s = seconds(route.get("timeout"), 15.0)
        if timeout_s > 0:
            self._add((*path, "timeout"), f"{timeout_s:g} s cuts longer generations (default 15 s); use 0s")
        if 0 < seconds(route.get("idle_timeout"), 0.0) <= wait_s:
            self._add((*path, "idle_timeout"), f"must exceed the longest wait of {wait_s:g} s")
        for cluster_path, cluster in self._bootstrap.clusters_of(route):
            if not self._bootstrap.members(cluster_path, cluster):
                self._breakers(cluster_path, cluster)
                self._upstream_idle(cluster_path, cluster)

    def _processor_cluster(self, name: str) -> None:
        found = self._bootstrap.cluster(name)
        if found is None:
            self._add(("static_resources", "clusters"), f"no cluster named {name!r} for extproc")
            return
        path, cluster = found
        self._breakers(path, cluster)
        http2 = self._http2(cluster)
        if http2 is None:
            self._add(path, "needs explicit http2_protocol_options: gRPC does not work over HTTP/1")
        elif int(number(http2.get("max_outbound_control_frames"), 1000)) < 10_000:
            self._add(
                path,
                "max_outbound_control_frames below 10,000 (default 1,000): when many requests end at once "
                "Envoy drops the connection to extproc, and with it every request",
            )

    def _upstream_idle(self, path: Path, cluster: dict[str, Data]) -> None:
        options = self._http_options(cluster).get("common_http_protocol_options", {})
        idle_s = seconds(options.get("idle_timeout") if isinstance(options, dict) else None, 3600.0)
        if not 0 < idle_s < _ENGINE_KEEP_ALIVE_S:
            self._add(
                (*path, "common_http_protocol_options", "idle_timeout"),
                f"{idle_s:g} s (default 1 h), but vLLM closes unused connections after "
                f"{_ENGINE_KEEP_ALIVE_S:g} s: a request that meets the closing gets 503; use 4s",
            )

    def _http_options(self, cluster: dict[str, Data]) -> dict[str, Data]:
        options = cluster.get("typed_extension_protocol_options")
        typed = options.get(_HTTP_OPTIONS) if isinstance(options, dict) else None
        return typed if isinstance(typed, dict) else {}

    def _http2(self, cluster: dict[str, Data]) -> dict[str, Data] | None:
        explicit = self._http_options(cluster).get("explicit_http_config")
        for holder in (explicit, cluster):
            if isinstance(holder, dict) and "http2_protocol_options" in holder:
                found = holder["http2_protocol_options"]
                return found if isinstance(found, dict) else {}
        return None

    def _breakers(self, path: Path, cluster: dict[str, Data]) -> None:
        breakers = cluster.get("circuit_breakers")
        thresholds = breakers.get("thresholds") if isinstance(breakers, dict) else None
        found = [
            entry for _, entry in numbered(thresholds, ()) if entry.get("priority", "DEFAULT") == "DEFAULT"
        ]
        limits = found[0] if found else {}
        for name in ("max_requests", "max_pending_requests", "max_connections"):
            limit = int(number(limits.get(name), 1024))
            if limit < self._needs.concurrent_requests:
                self._add(
                    (*path, "circuit_breakers"),
                    f"{name} {limit} (default 1,024) is below the {self._needs.concurrent_requests} requests "
                    "that may be queued and in flight: the rest would get 500 or 503",
                )

    def _buffer(self, path: Path, listener: dict[str, Data]) -> None:
        limit = int(number(listener.get("per_connection_buffer_limit_bytes"), _MIB))
        if limit < self._needs.largest_body_bytes:
            self._add(
                (*path, "per_connection_buffer_limit_bytes"),
                f"{limit} is below {self._needs.largest_body_bytes}, twice requests.limits.max_body_bytes: "
                "Envoy would answer 413 itself, or cut off clients that are still sending",
            )

    def _add(self, path: Path, message: str) -> None:
        problem = self._bootstrap.problem(path, message)
        if problem not in self._problems:
            self._problems.append(problem)
