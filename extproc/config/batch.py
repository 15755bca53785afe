"""Settings of the batch queue processor (`extproc batch`): where it sends, where it keeps, what it allows.

Durations end in `_s`. Nothing here knows how the settings are used.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field

from extproc.errors import ConfigError, Problem


class ResumeMode(Enum):
    """What may be done with an interrupted request."""

    OFF = "off"
    """Every interrupted request starts again, after a back-off."""
    EXACT = "exact"
    """Continue what can be continued exactly, restart the rest."""
    BEST_EFFORT = "best-effort"
    """Also continue what is only nearly exact."""


def _refuse(problems: list[Problem]) -> None:
    if problems:
        raise ConfigError(problems)


def _positive(section: object, *names: str) -> list[Problem]:
    return [Problem(name, "must be greater than 0") for name in names if not getattr(section, name) > 0]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryConfig:
    """Delays are drawn uniformly from 0 to min(`cap_s`, `base_s` x 2^n): exponential back-off, full jitter.

    `max_failures` counts failures of one request in a row without a new token; `max_breaks` the ends that may
    be early evictions or crashes. Refusals for lack of room and absent servers never use up attempts.
    """

    base_s: float = 0.5
    cap_s: float = 30.0
    max_failures: int = 8
    max_breaks: int = 100

    def __post_init__(self) -> None:
        _refuse(_positive(self, "base_s", "cap_s", "max_failures", "max_breaks"))


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowConfig:
    """How many requests are sent at once. `max_queued` bounds those that wait at the gateway: order is
    decided here, late.

    The limit on requests in flight starts at `initial`, doubles per round trip until the first push-back,
    then grows by `growth_fraction` each `interval_s` while it is used up; a push-back multiplies it by
    `decrease`, at most once an interval. A wait above `queue_target_s` at the gateway stops the growth.
    """

    initial: int = 8
    minimum: int = 1
    maximum: int = 256
    max_queued: int = 8
    queue_target_s: float = 1.0
    interval_s: float = 0.5
    growth_fraction: float = 0.05
    decrease: float = 0.85

    def __post_init__(self) -> None:
        problems = _positive(self, "minimum", "max_queued", "interval_s", "decrease")
        if not self.minimum <= self.initial <= self.maximum:
            problems.append(Problem("initial", "must lie between minimum and maximum"))
        if self.decrease >= 1.0:
            problems.append(Problem("decrease", "must be less than 1"))
        _refuse(problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """Where requests go. Several `urls` are used in turn; one that can't be reached is left alone for a
    while.

    `render_url` is a vLLM render server, with the parser options of the servers: it turns chats into token
    ids and back, so that reasoning and tool calls can be resumed.
    `headers` go with every request; the default asks extproc for its batch objective, so that interactive
    traffic goes first. `queue_timeout_s` bounds the wait for response headers (a queue at the gateway),
    `stall_timeout_s` the silence inside an answer: longer than the engine's own preemption pauses.
    `request_timeout_s` bounds one attempt where no deadline is nearer.
    """

    urls: tuple[str, ...] = ("http://127.0.0.1:8080",)
    headers: dict[str, str] = field(default_factory=lambda: {"x-llm-d-inference-objective": "batch"})
    render_url: str | None = None
    max_model_len: int | None = None
    connect_timeout_s: float = 5.0
    queue_timeout_s: float = 600.0
    stall_timeout_s: float = 120.0
    request_timeout_s: float = 86400.0

    def __post_init__(self) -> None:
        problems = _positive(
            self, "connect_timeout_s", "queue_timeout_s", "stall_timeout_s", "request_timeout_s"
        )
        if not self.urls:
            problems.append(Problem("urls", "needs at least one URL"))
        for index, url in enumerate(self.urls):
            if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
                problems.append(Problem(f"urls[{index}]", f"{url!r} is not an http or https URL"))
        _refuse(problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class SqliteStoreConfig:
    """Embedded store: a folder on a local disk. `is_durable`: also survives a power cut, by fsync."""

    type: Literal["sqlite"] = "sqlite"
    folder: Path = Path("batch-data")
    is_durable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisStoreConfig:
    """Shared store for many workers: Redis or Valkey with an append-only file. `prefix` separates stores."""

    type: Literal["redis"] = "redis"
    url: str = "redis://127.0.0.1:6379/0"
    prefix: str = "extproc-batch"
    timeout_s: float = 10.0


StoreConfig = Annotated[SqliteStoreConfig | RedisStoreConfig, Field(discriminator="type")]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """`resume`: what is done with interrupted requests. Saves are grouped: a crash loses at most
    `save_interval_s` (or `save_tokens`, whichever comes first) of output, which is generated again, never
    twice in the result.

    `lease_s` is how long a silent worker keeps its items; `stop_timeout_s` how long a stopping one may take
    to give them back.
    """

    resume: ResumeMode = ResumeMode.EXACT
    save_interval_s: float = 0.05
    save_tokens: int = 64
    lease_s: float = 10.0
    poll_interval_s: float = 0.25
    stop_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        _refuse(
            _positive(self, "save_interval_s", "save_tokens", "lease_s", "poll_interval_s", "stop_timeout_s")
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiConfig:
    """The OpenAI-compatible Files and Batches API. `port` 0 takes a free one. Meant for trusted networks: no
    login.

    `default_window` and `max_window` bound `completion_window`. `models` empty: any model, one per job.
    """

    host: str = "127.0.0.1"
    port: int = 8090
    max_file_bytes: int = 1024**3
    max_line_bytes: int = 8 * 1024**2
    max_lines: int = 2_000_000
    models: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        problems = _positive(self, "max_file_bytes", "max_line_bytes", "max_lines")
        if not 0 <= self.port <= 65535:
            problems.append(Problem("port", f"must be from 0 to 65535, not {self.port}"))
        _refuse(problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfig:
    """The port with /metrics, /healthz and /readyz; they carry no prompts and no results."""

    enabled: bool = True
    host: str = "127.0.0.1"
    port: int = 9091


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchConfig:
    """Everything that `extproc batch serve` and `extproc batch worker` can be told."""

    gateway: GatewayConfig = field(default_factory=GatewayConfig)
    store: StoreConfig = field(default_factory=SqliteStoreConfig)
    worker: WorkerConfig = field(default_factory=WorkerConfig)
    window: WindowConfig = field(default_factory=WindowConfig)
    retry: RetryConfig = field(default_factory=RetryConfig)
    api: ApiConfig = field(default_factory=ApiConfig)
    admin: MetricsConfig = field(default_factory=MetricsConfig)
