"""A line and a span per request: what they say, and what they never say."""

from __future__ import annotations

import json
import logging

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from extproc.config.server import LogConfig, TracingConfig
from extproc.runtime.journal import BothJournals, LogJournal, RequestRecord, SpanJournal, build_journal
from extproc.runtime.logs import JsonFormatter
from tests.integration.runtime.test_server_life import Call, _channel, running
from tests.support.gateway import wait_until

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def _record(**fields: object) -> RequestRecord:
    values: dict[str, object] = {
        "api": "chat",
        "model": "m",
        "priority": 10,
        "fairness_id": "sk-verysecretapikey-0123456789",
        "outcome": "dispatched",
        "stream_end": "complete",
        "status": 200,
        "prompt_tokens": 5,
        "output_tokens": 7,
        "queued_s": 0.25,
        "duration_s": 1.5,
        "ended_at": 1_700_000_001.5,
        "request_id": "r1",
        "traceparent": TRACEPARENT,
        **fields,
    }
    return RequestRecord(**values)  # type: ignore[arg-type]


def test_a_span_continues_the_trace_of_the_request() -> None:
    exporter = InMemorySpanExporter()
    journal = SpanJournal(TracingConfig(enabled=True, sample_fraction=0.0), exporter)
    journal.record(_record())
    journal.record(_record(traceparent=""))
    journal.record(_record(traceparent="nonsense"))
    journal.close()
    (span,) = exporter.get_finished_spans()
    assert span.context is not None
    assert span.parent is not None
    assert f"{span.context.trace_id:032x}" == TRACEPARENT[3:35]
    assert f"{span.parent.span_id:016x}" == TRACEPARENT[36:52]
    assert span.start_time == 1_700_000_000_000_000_000
    assert span.end_time == 1_700_000_001_500_000_000
    assert span.attributes is not None
    assert span.attributes["extproc.outcome"] == "dispatched"
    assert span.events[0].timestamp == 1_700_000_000_250_000_000


def test_nothing_is_built_that_is_not_asked_for() -> None:
    assert build_journal(LogConfig(), TracingConfig()) is None


async def test_a_request_leaves_one_line_without_its_words(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="extproc.requests")
    async with running(logs={"requests": True}) as app, _channel(app) as channel:
        caplog.set_level(logging.DEBUG)
        for body in ({"prompt": "my secret prompt"}, {"prompt": "my secret prompt", "priority": 5.5}):
            call = Call(channel)
            await call.open(**body)
            await call.finish()
        await wait_until(lambda: app.service.open_streams == 0)
        await wait_until(lambda: sum(record.name == "extproc.requests" for record in caplog.records) == 2)
    lines = [
        json.loads(JsonFormatter().format(record))
        for record in caplog.records
        if record.name == "extproc.requests"
    ]
    assert [line["outcome"] for line in lines] == ["dispatched", "bad-request"]
    assert lines[1]["status"] == 400
    assert "secret" not in caplog.text
    assert "secret" not in json.dumps(lines)


def test_long_ids_are_shortened(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="extproc.requests")
    BothJournals([LogJournal()]).record(_record())
    assert "verysecret" not in caplog.text
    assert "trace_id=0af7651916cd43dd8448eb211c80319c" in caplog.text
