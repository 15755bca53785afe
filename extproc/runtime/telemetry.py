"""What is counted about requests: the recorder between the driver, the streams and the Prometheus meters.

Fed from events and commands, a few times per request and never per token. Label values that come from clients
are bounded. It must not know policies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from extproc.core.commands import Command, Dispatch, Displace, Revoke
from extproc.core.events import Event, RequestFinished
from extproc.core.outcomes import EndReason, Outcome
from extproc.core.types import Request, RequestId
from extproc.errors import InvariantError
from extproc.exchange.observation import OutputTimes
from extproc.exchange.refusals import Refusal
from extproc.runtime.cells import CounterCell, HistogramCell
from extproc.runtime.gauges import PriorityLabels
from extproc.runtime.labels import OVERFLOW, LabelCap
from extproc.runtime.meters import Meters
from extproc.runtime.recent import RecentLatencies

MAX_MODEL_LABELS = 100

STREAM_ENDS = ("complete", "client-gone", "left-in-queue", "protocol-error", "internal", "refused")


class Recorder(Protocol):
    """What the driver tells about requests; durations in seconds."""

    def arrived(self, request: Request) -> None: ...

    def decided(self, request: Request, command: Command, queued_s: float) -> None:
        """The final answer of flow control."""
        ...

    def response_started(self, request: Request, since_dispatch_s: float) -> None: ...

    def revoked(self, request: Request, now: float) -> None: ...

    def ended(
        self,
        request: Request,
        arrived_at: float,
        dispatched_at: float,
        event: Event,
        expected_output_tokens: int | None,
        now: float,
    ) -> None:
        """A dispatched request has finished, or a queued one was cancelled."""
        ...

    def handled(self, event: Event, duration_s: float) -> None:
        """One call into the core was timed."""
        ...


class _BandCells:
    """The series of one priority label that the usual request moves, found once instead of each time."""

    __slots__ = (
        "arrived",
        "completed",
        "dispatched",
        "duration",
        "headers_time",
        "prompt_tokens",
        "queue_wait",
    )

    def __init__(self, telemetry: Telemetry, label: str) -> None:
        self.arrived = telemetry._requests_arrived(label)
        self.prompt_tokens = telemetry._prompt_tokens(label)
        self.dispatched = telemetry._requests(label, Outcome.DISPATCHED.value)
        self.queue_wait = telemetry._queue_wait(label, Outcome.DISPATCHED.value)
        self.headers_time = telemetry._headers_time(label)
        self.completed = telemetry._requests_finished(label, EndReason.COMPLETED.value)
        self.duration = telemetry._duration(label)


class Telemetry:
    """Counts into `meters`; implements `Recorder` and takes the streams' own reports."""

    def __init__(self, meters: Meters, priorities: PriorityLabels | None = None) -> None:
        def counter(name: str) -> Callable[..., CounterCell]:
            return meters.counter(f"extproc_{name}_total").labels

        def histogram(name: str) -> Callable[..., HistogramCell]:
            return meters.histogram(f"extproc_{name}").labels

        self.meters = meters
        self._models = LabelCap(MAX_MODEL_LABELS)
        self._priority = priorities or PriorityLabels()
        self._revoked_at: dict[RequestId, float] = {}
        self._cells_by_priority: dict[int, _BandCells] = {}
        self._overflow_cells: _BandCells | None = None
        """Of all priorities beyond the label cap together."""
        self._cells_by_model: dict[str, CounterCell] = {}
        self.recent_ttft = RecentLatencies()
        self._requests_arrived = counter("requests_arrived")
        self._requests = counter("requests")
        self._requests_finished = counter("requests_finished")
        self._model_requests = counter("model_requests")
        self._bypassed = counter("bypassed_requests")
        self._bad_requests = counter("bad_requests")
        self._ignored_headers = counter("ignored_headers")
        self._upstream_errors = counter("upstream_errors")
        self._request_notes = counter("request_notes")
        self._deadline_missed = counter("deadline_missed")
        self._ttft_target = counter("ttft_target")
        self._redone_tokens = counter("redone_tokens")
        self._revocations_issued = counter("revocations_issued")
        self._streams = counter("streams")
        self._task_failures = counter("task_failures")
        self._config_reloads = counter("config_reloads")
        self._queue_wait = histogram("queue_wait_seconds")
        self._duration = histogram("request_duration_seconds")
        self._headers_time = histogram("response_headers_seconds")
        self._ttft = histogram("ttft_seconds")
        self._itl = histogram("itl_seconds")
        self._tpot = histogram("tpot_seconds")
        self._prompt_tokens = histogram("prompt_tokens")
        self._output_tokens = histogram("output_tokens")
        self._cached_tokens = histogram("cached_tokens")
        self._estimate_ratio = histogram("output_estimate_ratio")
        self._decision = histogram("decision_seconds")
        self._body_bytes = meters.histogram("extproc_request_body_bytes").labels()
        self._confirmation = meters.histogram("extproc_revocation_confirmation_seconds").labels()

    def create_series(self, priorities: Iterable[int]) -> None:
        """Make the series of these bands exist at 0, so that the first event is no jump from nothing."""
        for priority in (self._priority(number) for number in priorities):
            for outcome in Outcome:
                self._requests(priority, outcome.value)
            for reason in EndReason:
                self._requests_finished(priority, reason.value)
            for family in (self._requests_arrived, self._revocations_issued, self._deadline_missed):
                family(priority)
            for kind in ("prompt", "output"):
                self._redone_tokens(priority, kind)
            for result in ("met", "missed"):
                self._ttft_target(priority, result)
            for latencies in (self._ttft, self._itl, self._tpot, self._duration, self._headers_time):
                latencies(priority)
            self._queue_wait(priority, Outcome.DISPATCHED.value)
        for end in STREAM_ENDS:
            self._streams(end)
        for result in ("applied", "refused", "unchanged"):
            self._config_reloads(result)
        for status_class in ("4xx", "5xx"):
            self._upstream_errors(status_class)

    # ---- from the driver

    def arrived(self, request: Request) -> None:
        cells = self._cells(request.priority)
        cells.arrived.value += 1
        cells.prompt_tokens.observe(request.prompt_tokens)
        self._body_bytes.observe(request.size_bytes)

    def decided(self, request: Request, command: Command, queued_s: float) -> None:
        if type(command) is Dispatch:
            cells = self._cells(request.priority)
            cells.dispatched.value += 1
            cells.queue_wait.observe(queued_s)
            model = self._cells_by_model.get(request.model) or self._model_cell(request.model)
            model.value += 1
            return
        priority = self._priority(request.priority)
        outcome = _outcome(command)
        self._requests(priority, outcome.value).inc()
        self._queue_wait(priority, outcome.value).observe(queued_s)
        if outcome is Outcome.EXPIRED_DEADLINE:
            self._deadline_missed(priority).inc()

    def response_started(self, request: Request, since_dispatch_s: float) -> None:
        self._cells(request.priority).headers_time.observe(since_dispatch_s)

    def revoked(self, request: Request, now: float) -> None:
        self._revocations_issued(self._priority(request.priority)).inc()
        self._revoked_at[request.id] = now

    def ended(
        self,
        request: Request,
        arrived_at: float,
        dispatched_at: float,
        event: Event,
        expected_output_tokens: int | None,
        now: float,
    ) -> None:
        usage = event.usage if type(event) is RequestFinished else None
        reason = event.reason if type(event) is RequestFinished else EndReason.CLIENT_GONE
        if reason is EndReason.COMPLETED and usage is None and dispatched_at and not self._revoked_at:
            cells = self._cells(request.priority)
            cells.completed.value += 1
            cells.duration.observe(now - arrived_at)
            return
        priority = self._priority(request.priority)
        if not dispatched_at:
            self._requests(priority, Outcome.CANCELLED.value).inc()
            self._queue_wait(priority, Outcome.CANCELLED.value).observe(now - arrived_at)
            return
        revoked_at = self._revoked_at.pop(request.id, None)
        if revoked_at is not None:
            self._confirmation.observe(now - revoked_at)
        self._requests_finished(priority, reason.value).inc()
        self._duration(priority).observe(now - arrived_at)
        if reason is EndReason.EVICTED:
            self._redone_tokens(priority, "prompt").inc(request.prompt_tokens)
            if usage is not None and usage.output_tokens and not request.is_resumable:
                self._redone_tokens(priority, "output").inc(usage.output_tokens)
        if usage is not None:
            if usage.output_tokens is not None:
                self._output_tokens(priority).observe(usage.output_tokens)
                if expected_output_tokens is not None and reason is EndReason.COMPLETED:
                    ratio = expected_output_tokens / max(1, usage.output_tokens)
                    self._estimate_ratio(priority).observe(ratio)
            if usage.cached_tokens is not None:
                self._cached_tokens(priority).observe(usage.cached_tokens)

    def _cells(self, priority: int) -> _BandCells:
        cells = self._cells_by_priority.get(priority)
        return self._find_cells(priority) if cells is None else cells

    def _find_cells(self, priority: int) -> _BandCells:
        """Kept per priority while it has a label of its own, so that made-up ones take no memory."""
        label = self._priority(priority)
        if label == OVERFLOW:
            if self._overflow_cells is None:
                self._overflow_cells = _BandCells(self, label)
            return self._overflow_cells
        cells = self._cells_by_priority[priority] = _BandCells(self, label)
        return cells

    def _model_cell(self, model: str) -> CounterCell:
        label = self._models.label(model)
        cell = self._model_requests(label)
        if label == model:
            self._cells_by_model[model] = cell
        return cell

    def handled(self, event: Event, duration_s: float) -> None:
        self._decision(type(event).__name__).observe(duration_s)

    # ---- from the streams

    def observed(self, request: Request, times: OutputTimes, output_tokens: int, arrived_at: float) -> None:
        """A watched response has ended."""
        if times.first_at is None or times.last_at is None:
            return
        priority = self._priority(request.priority)
        ttft_s = times.first_at - arrived_at
        self._ttft(priority).observe(ttft_s)
        self.recent_ttft.add(request.priority, ttft_s, times.last_at)
        if request.ttft_target_s is not None:
            self._ttft_target(priority, "met" if ttft_s <= request.ttft_target_s else "missed").inc()
        for gap_s in times.gaps_s:
            self._itl(priority).observe(gap_s)
        if output_tokens > 1:
            self._tpot(priority).observe((times.last_at - times.first_at) / (output_tokens - 1))

    def bypassed(self, reason: str) -> None:
        """A request was routed without queueing."""
        self._bypassed(reason).inc()

    def refused(self, refusal: Refusal) -> None:
        """A request was answered with a fault of its own; flow control's refusals are counted by
        `decided`.
        """
        if refusal.status in (400, 404, 413):
            self._bad_requests(refusal.reason).inc()

    def ignored_header(self, name: str) -> None:
        self._ignored_headers(name).inc()

    def noted(self, note: str) -> None:
        """Something about a request is worth counting; `note` is one of the catalogue's values."""
        self._request_notes(note).inc()

    def upstream_error(self, status: int) -> None:
        self._upstream_errors(f"{status // 100}xx").inc()

    def stream_ended(self, end: str) -> None:
        """`end` is one of the catalogue's values."""
        self._streams(end).inc()

    def task_failed(self, name: str) -> None:
        self._task_failures(name).inc()

    def config_reloaded(self, result: str) -> None:
        """`result` is `applied`, `refused` or `unchanged`."""
        self._config_reloads(result).inc()


def _outcome(command: Command) -> Outcome:
    match command:
        case Dispatch():
            return Outcome.DISPATCHED
        case Displace():
            return Outcome.DISPLACED
        case Revoke():
            raise InvariantError("a revocation is no final answer")
        case _:
            return command.outcome
