"""Measures one endpoint: connect when needed, fetch its page, post what it says, wait, again.

At most one request is outstanding, and one timer runs: the limit of the running request or the start of the
next one. What the endpoint does wrong (garbage, half a body, an endless page, silence) ends here: it is
bounded, counted and reported once. Must not know the other endpoints.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from extproc.clock import Clock
from extproc.config.endpoints import ScrapeConfig, split_address
from extproc.core.events import EndpointSampled
from extproc.core.types import EndpointId, EndpointSample
from extproc.formats.engine_metrics import EngineMetrics, MetricNames
from extproc.formats.model_list import ModelList, parse_model_list
from extproc.formats.prometheus import MetricsReader, PageFeed
from extproc.runtime.scrape_connection import ScrapeConnection
from extproc.runtime.scrape_pace import next_interval_s
from extproc.tasks import TaskKeeper

logger = logging.getLogger(__name__)

_WHOLE_PAGE_BYTES = 262_144
"""Pages up to this size are put together before they are read, which is cheaper; larger ones are streamed."""
_MAX_MODEL_LIST_BYTES = 1_048_576
_RESTART_TOLERANCE_S = 2.0
"""Two readings of one start time may differ by rounding."""


class ScrapeObserver(Protocol):
    """Hears how scraping goes, besides the samples."""

    def on_scraped(self, endpoint_id: EndpointId) -> None:
        """A page was read."""
        ...

    def on_scrape_failed(self, endpoint_id: EndpointId, reason: str, *, is_unreachable: bool) -> None:
        """No usable page. `is_unreachable`: nobody listens there, or a server that was scraped before can't
        be connected to; where the scraper has never got through, that may be its own network's fault.
        """
        ...

    def on_server_restarted(self, endpoint_id: EndpointId) -> None:
        """Another process answers at this address than before: its counters started again."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapeStatus:
    """How one endpoint answers: the last good sample and its age (None: there was none)."""

    age_s: float | None
    sample: EndpointSample | None
    interval_s: float
    failures_in_a_row: int
    failures: int
    last_failure: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrapeSetting:
    """What all targets of one scraper share."""

    config: ScrapeConfig
    names: MetricNames
    clock: Clock
    post: Callable[[EndpointSampled], None]
    observer: ScrapeObserver
    keeper: TaskKeeper
    rng: random.Random
    tls: ssl.SSLContext | None
    authorization: str | None


class _Phase(Enum):
    WAITING = "waiting"
    CONNECTING = "connecting"
    METRICS = "metrics"
    MODELS = "models"
    CLOSED = "closed"


class ScrapeTarget:
    """One endpoint; the listener of its connection."""

    def __init__(self, setting: ScrapeSetting, endpoint_id: EndpointId, address: str) -> None:
        self._setting = setting
        self.address = address
        self._id = endpoint_id
        self._host, self._port = split_address(address)
        self._loop = asyncio.get_running_loop()
        self._metrics_request = _get_request(address, setting.config.path, setting.authorization)
        self._models_request = _get_request(address, "/v1/models", setting.authorization)
        self._page_reader = MetricsReader(setting.names, setting.config.merge)
        self._phase = _Phase.WAITING
        self._connection: ScrapeConnection | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._interval_s = setting.config.busy_interval_s
        self._started_at = 0.0
        self._pieces: list[bytes] = []
        self._feed: PageFeed | None = None
        self._body_bytes = 0
        self._models: ModelList | None = None
        self._models_due_at = 0.0
        self._sample: EndpointSample | None = None
        self._previous: EngineMetrics | None = None
        self._failures = 0
        self._failures_in_a_row = 0
        self._last_failure: str | None = None
        self._is_refused = False

    def start_within(self, delay_s: float) -> None:
        """Begin at a random moment, so that a pool that appears at once isn't measured at once."""
        self._timer = self._loop.call_later(self._setting.rng.uniform(0.0, delay_s), self._start)

    def hurry(self) -> None:
        """Have the next measurement at the busy pace when it is later."""
        busy_s = self._setting.config.busy_interval_s
        if self._interval_s <= busy_s:
            return
        self._interval_s = busy_s
        if self._phase is _Phase.WAITING and not self._failures_in_a_row:
            self._schedule()

    def status(self) -> ScrapeStatus:
        now = self._setting.clock.now()
        return ScrapeStatus(
            age_s=None if self._sample is None else now - self._sample.sampled_at,
            sample=self._sample,
            interval_s=self._interval_s,
            failures_in_a_row=self._failures_in_a_row,
            failures=self._failures,
            last_failure=self._last_failure,
        )

    def close(self) -> None:
        self._phase = _Phase.CLOSED
        self._drop_connection()
        if self._timer is not None:
            self._timer.cancel()

    # One measurement: connect when needed, metrics page, now and then the model list.

    def _start(self) -> None:
        self._started_at = self._setting.clock.now()
        self._timer = self._loop.call_later(self._setting.config.timeout_s, self._expire)
        if self._connection is not None and self._connection.is_free:
            self._send(_Phase.METRICS, self._metrics_request)
        else:
            self._connect()

    def _connect(self) -> None:
        self._phase = _Phase.CONNECTING
        self._connecting = self._setting.keeper.spawn(self._open(), name=f"scrape-connect {self._id}")

    async def _open(self) -> None:
        try:
            _, connection = await self._loop.create_connection(
                lambda: ScrapeConnection(self),
                self._host,
                self._port,
                ssl=self._setting.tls,
                server_hostname=self._server_name(),
            )
        except ssl.SSLError as error:
            self._connecting = None
            self.on_failure(f"TLS failed: {error.reason or error}", is_unreachable=False)
        except OSError as error:
            self._connecting = None
            reason = error.strerror or str(error)
            self._is_refused = isinstance(error, ConnectionRefusedError)
            self.on_failure(f"cannot connect: {reason}", is_unreachable=True)
        else:
            self._connecting = None
            self._connection = connection
            self._send(_Phase.METRICS, self._metrics_request)

    def _server_name(self) -> str | None:
        tls = self._setting.config.tls
        return None if tls is None else tls.server_name or self._host

    def _send(self, phase: _Phase, request: bytes) -> None:
        self._phase = phase
        self._pieces = []
        self._feed = None
        self._body_bytes = 0
        assert self._connection is not None
        if not self._connection.is_free:
            self.on_failure("closed the connection at once", is_unreachable=True)
            return
        self._connection.get(request)

    def on_body(self, piece: bytes, status: int) -> str | None:
        """Keep a piece of the answer; see `ResponseListener`."""
        self._body_bytes += len(piece)
        is_page = self._phase is _Phase.METRICS
        limit = self._setting.config.max_page_bytes if is_page else _MAX_MODEL_LIST_BYTES
        if self._body_bytes > limit:
            return f"sent more than {limit} bytes"
        if status != 200:
            return None
        if self._feed is not None:
            self._feed.feed(piece)
            return None
        self._pieces.append(piece)
        if is_page and self._body_bytes > _WHOLE_PAGE_BYTES:
            self._feed = self._page_reader.start_page()
            for kept in self._pieces:
                self._feed.feed(kept)
            self._pieces = []
        return None

    def on_end(self, status: int) -> None:
        """An answer is whole; see `ResponseListener`."""
        if self._phase is _Phase.MODELS:
            if status == 200:
                self._models = parse_model_list(b"".join(self._pieces))
            self._finish()
            return
        if status != 200:
            self.on_failure(f"answered HTTP status {status}", is_unreachable=False)
            return
        answered_at = self._setting.clock.now()
        if self._feed is not None:
            metrics = self._feed.finish()
        else:
            page = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
            metrics = self._page_reader.read_page(page)
        if metrics.is_empty:
            self.on_failure("the page has none of the expected series", is_unreachable=False)
            return
        self._publish(metrics)
        if self._phase is _Phase.CLOSED:
            return  # removed by whom we told
        self._pace(metrics, answered_at)
        models_interval_s = self._setting.config.models_interval_s
        can_ask = self._connection is not None and self._connection.is_free
        if models_interval_s and answered_at >= self._models_due_at and can_ask:
            self._models_due_at = answered_at + models_interval_s
            self._send(_Phase.MODELS, self._models_request)
        else:
            self._finish()

    def on_failure(self, reason: str, *, is_unreachable: bool) -> None:
        """No usable answer; see `ResponseListener`."""
        if self._phase in (_Phase.CLOSED, _Phase.WAITING):
            return
        connection = self._connection
        self._drop_connection()
        if (
            self._phase is _Phase.METRICS
            and is_unreachable
            and connection is not None
            and connection.has_answered
        ):
            self._connect()  # the server closed the kept connection just as the request went out
            return
        if self._phase is _Phase.METRICS or self._phase is _Phase.CONNECTING:
            self._count_failure(reason, is_unreachable=is_unreachable)
            self._pace(None, self._started_at)
        self._finish()

    def _expire(self) -> None:
        limit_s = self._setting.config.timeout_s
        self.on_failure(f"no answer within {limit_s:g} s", is_unreachable=self._phase is _Phase.CONNECTING)

    def _finish(self) -> None:
        """The measurement is over, well or not."""
        if self._phase is _Phase.CLOSED:
            return
        self._phase = _Phase.WAITING
        self._pieces = []
        self._feed = None
        self._schedule()

    def _pace(self, metrics: EngineMetrics | None, answered_at: float) -> None:
        took_s = answered_at - self._started_at
        self._interval_s = next_interval_s(self._setting.config, self._interval_s, took_s, metrics)

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        jitter = self._setting.config.jitter_fraction
        interval_s = self._interval_s * (1.0 + self._setting.rng.uniform(-jitter, jitter))
        delay_s = self._started_at + interval_s - self._setting.clock.now()
        self._timer = self._loop.call_later(max(0.0, delay_s), self._start)

    def _drop_connection(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    # What comes out of a measurement.

    def _publish(self, metrics: EngineMetrics) -> None:
        if self._failures_in_a_row:
            logger.info("endpoint %s: scraped again after %d failures", self._id, self._failures_in_a_row)
            self._failures_in_a_row = 0
        if _is_another_process(self._previous, metrics):
            self._previous = None
            self._setting.observer.on_server_restarted(self._id)
            if self._phase is _Phase.CLOSED:
                return  # it was replaced by an endpoint of its own
        self._previous = metrics
        models = self._models
        self._sample = sample = EndpointSample(
            endpoint_id=self._id,
            sampled_at=self._started_at,
            running_requests=metrics.running_requests,
            waiting_requests=metrics.waiting_requests,
            kv_usage_fraction=metrics.kv_usage_fraction,
            kv_capacity_tokens=metrics.kv_capacity_tokens,
            kv_block_tokens=metrics.kv_block_tokens,
            max_model_len=models.max_model_len if models is not None else None,
            preemptions_total=metrics.preemptions_total,
            prompt_tokens_total=metrics.prompt_tokens_total,
            models=models.models if models is not None else None,
            running_loras=metrics.running_loras,
            waiting_loras=metrics.waiting_loras,
            max_loras=metrics.max_loras,
        )
        self._setting.post(EndpointSampled(sample))
        self._setting.observer.on_scraped(self._id)

    def _count_failure(self, reason: str, *, is_unreachable: bool) -> None:
        self._failures += 1
        self._failures_in_a_row += 1
        if self._failures_in_a_row == 1:
            logger.warning("endpoint %s: %s (said once until it is scraped again)", self._id, reason)
        self._last_failure = reason
        is_telling = self._is_refused or self._sample is not None
        self._is_refused = False
        self._setting.observer.on_scrape_failed(
            self._id, reason, is_unreachable=is_unreachable and is_telling
        )


def _is_another_process(previous: EngineMetrics | None, metrics: EngineMetrics) -> bool:
    """By counters that went back; where there are none, by the start time.

    The start time alone would mislead: one vLLM may answer from several API processes.
    """
    if previous is None:
        return False
    before, after = previous.prompt_tokens_total, metrics.prompt_tokens_total
    if before is not None and after is not None:
        return after < before
    if previous.process_started_at is None or metrics.process_started_at is None:
        return False
    return metrics.process_started_at > previous.process_started_at + _RESTART_TOLERANCE_S


def _get_request(address: str, path: str, authorization: str | None) -> bytes:
    lines = [f"GET {path} HTTP/1.1", f"Host: {address}", "Accept: text/plain, application/json"]
    if authorization is not None:
        lines.append(f"Authorization: {authorization}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()
