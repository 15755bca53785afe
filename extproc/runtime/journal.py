"""One record per ended request: a log line and an OpenTelemetry span, where they are asked for.

Bodies and header values never get here, but for the trace context and the request id, which exist to be
passed on. Nothing is kept before the end of a request, so that it costs nothing where neither is switched
on.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Protocol

from extproc.config.server import LogConfig, TracingConfig
from extproc.errors import ConfigError, Problem
from extproc.runtime.redaction import redact_id

logger = logging.getLogger("extproc.requests")


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """What became of a request. Times in seconds; `ended_at` since the epoch."""

    api: str
    model: str
    priority: int
    fairness_id: str
    outcome: str
    """`dispatched`, `unqueued`, `passed`, or the reason of the refusal."""
    stream_end: str
    status: int
    prompt_tokens: int
    output_tokens: int | None
    queued_s: float
    duration_s: float
    ended_at: float
    request_id: str = ""
    traceparent: str = ""

    def fields(self) -> dict[str, object]:
        """For a log line or a span."""
        return {
            "api": self.api,
            "model": redact_id(self.model),
            "priority": self.priority,
            "fairness_id": redact_id(self.fairness_id),
            "outcome": self.outcome,
            "stream_end": self.stream_end,
            "status": self.status,
            "prompt_tokens": self.prompt_tokens,
            "output_tokens": self.output_tokens,
            "queued_s": round(self.queued_s, 6),
            "duration_s": round(self.duration_s, 6),
            "request_id": redact_id(self.request_id),
            "trace_id": self.traceparent[3:35],
        }


class Journal(Protocol):
    def record(self, record: RequestRecord) -> None: ...

    def close(self) -> None: ...


class LogJournal:
    """A line per request."""

    def record(self, record: RequestRecord) -> None:
        fields = record.fields()
        text = " ".join(f"{name}={value}" for name, value in fields.items() if value not in (None, ""))
        logger.info("request %s", text, extra=fields)

    def close(self) -> None:
        """Nothing to give back."""


class SpanJournal:
    """A span per request, child of the request's own trace context. Raises ConfigError without the extra."""

    def __init__(self, config: TracingConfig, exporter: Any = None) -> None:
        try:
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            message = "needs OpenTelemetry: pip install 'extproc[otel]'"
            raise ConfigError([Problem("tracing.enabled", message)]) from error
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": config.service_name}),
            sampler=ParentBasedTraceIdRatio(config.sample_fraction),
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter or _otlp_exporter(config)))
        self._tracer = self._provider.get_tracer("extproc")
        self._propagator = TraceContextTextMapPropagator()

    def record(self, record: RequestRecord) -> None:
        from opentelemetry.trace import SpanKind

        context = (
            self._propagator.extract({"traceparent": record.traceparent}) if record.traceparent else None
        )
        ended_ns = int(record.ended_at * 1e9)
        started_ns = ended_ns - int(record.duration_s * 1e9)
        span = self._tracer.start_span(
            f"extproc {record.api}", context=context, kind=SpanKind.SERVER, start_time=started_ns
        )
        if span.is_recording():
            for name, value in record.fields().items():
                if value not in (None, "") and name != "trace_id":
                    span.set_attribute(f"extproc.{name}", value)
            if record.outcome == "dispatched":
                span.add_event("dispatched", timestamp=started_ns + int(record.queued_s * 1e9))
        span.end(end_time=ended_ns)

    def close(self) -> None:
        """Send what is left; waits for the collector as long as its exporter does."""
        self._provider.shutdown()


class BothJournals:
    """Several journals as one."""

    def __init__(self, journals: list[Journal]) -> None:
        self._journals = journals

    def record(self, record: RequestRecord) -> None:
        for journal in self._journals:
            journal.record(record)

    def close(self) -> None:
        for journal in self._journals:
            journal.close()


def build_journal(logs: LogConfig, tracing: TracingConfig) -> Journal | None:
    """What the configuration asks for; None: nothing. Raises ConfigError when tracing can't be had."""
    journals: list[Journal] = []
    if logs.requests:
        journals.append(LogJournal())
    if tracing.enabled:
        journals.append(SpanJournal(tracing))
    return BothJournals(journals) if journals else None


def _otlp_exporter(config: TracingConfig) -> Any:
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter(
        endpoint=config.endpoint, insecure=config.endpoint.startswith("http://"), timeout=2
    )
