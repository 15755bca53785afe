"""Settings of the gRPC server that Envoy talks to, of its shutdown and of its logs."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from extproc.errors import ConfigError, Problem


class QueuedAtDrain(Enum):
    """What becomes of queued requests when the server is told to stop."""

    REJECT = "reject"
    """Answered with 503 `rejected-shutting-down` at once."""
    SERVE = "serve"
    """Dispatched as capacity comes free, until `drain_timeout_s`; the rest is answered then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """TLS for the gRPC port. With `client_ca_file`, Envoy must present a certificate signed by it.

    The files are read again when their contents change, at most every `reload_interval_s`; open connections
    keep the certificate they began with.
    """

    cert_file: str
    key_file: str
    client_ca_file: str | None = None
    reload_interval_s: float = 10.0

    def __post_init__(self) -> None:
        problems = []
        if not self.cert_file or not self.key_file:
            problems.append(Problem("cert_file", "cert_file and key_file are both needed"))
        if self.reload_interval_s <= 0:
            problems.append(Problem("reload_interval_s", "must be positive"))
        if problems:
            raise ConfigError(problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepaliveConfig:
    """HTTP/2 pings. A proxy that leaves one unanswered for `ping_timeout_s` is given up, with all requests on
    that connection. Envoy itself may ping as often as it likes.
    """

    ping_interval_s: float = 30.0
    ping_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        names = ("ping_interval_s", "ping_timeout_s")
        problems = [Problem(name, "must be positive") for name in names if getattr(self, name) <= 0]
        if problems:
            raise ConfigError(problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """The gRPC port. One stream is open per queued or in-flight request, so `max_streams` bounds both.

    Streams beyond it are answered 429. On SIGTERM readiness goes first; the server keeps taking requests for
    `drain_delay_s`, so that proxies notice, then takes none, and ends when all are done or `drain_timeout_s`
    has passed.
    """

    host: str = "0.0.0.0"
    port: int = 9002
    tls: TlsConfig | None = None
    keepalive: KeepaliveConfig = field(default_factory=KeepaliveConfig)
    max_streams: int = 100_000
    drain_delay_s: float = 1.0
    drain_timeout_s: float = 30.0
    queued_at_drain: QueuedAtDrain = QueuedAtDrain.REJECT

    def __post_init__(self) -> None:
        problems = []
        if not 0 <= self.port <= 65535:
            problems.append(Problem("port", f"must be from 0 to 65535, not {self.port}"))
        if self.max_streams < 1:
            problems.append(Problem("max_streams", "must be at least 1"))
        for name in ("drain_delay_s", "drain_timeout_s"):
            if not 0 <= getattr(self, name) <= 86_400:
                problems.append(Problem(name, "must lie between 0 and 86400"))
        if problems:
            raise ConfigError(problems)

    @property
    def address(self) -> str:
        """`host:port`, with brackets around an IPv6 host."""
        host = f"[{self.host}]" if ":" in self.host and not self.host.startswith("[") else self.host
        return f"{host}:{self.port}"


class LogFormat(Enum):
    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Logs go to standard error. `requests` adds a line per request: never its body, nor a header's value."""

    level: str = "info"
    format: LogFormat = LogFormat.TEXT
    requests: bool = False

    def __post_init__(self) -> None:
        if self.level not in ("debug", "info", "warning", "error"):
            raise ConfigError([Problem("level", "must be debug, info, warning or error")])


@dataclass(frozen=True, slots=True, kw_only=True)
class TracingConfig:
    """OpenTelemetry spans (needs the `otel` extra): sent by OTLP over gRPC to `endpoint`.

    A request's trace context is continued; of requests without one, a share of `sample_fraction` is traced.
    """

    enabled: bool = False
    endpoint: str = "http://127.0.0.1:4317"
    sample_fraction: float = 0.01
    service_name: str = "extproc"

    def __post_init__(self) -> None:
        if not 0 <= self.sample_fraction <= 1:
            raise ConfigError([Problem("sample_fraction", "must lie between 0 and 1")])
