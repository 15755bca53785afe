"""The recorder's own memory: what it keeps per label, and what it must not keep per request."""

from __future__ import annotations

from unittest import mock

from extproc.core.types import Request, RequestId
from extproc.runtime import telemetry
from extproc.runtime.gauges import MAX_PRIORITY_LABELS
from extproc.runtime.labels import OVERFLOW
from extproc.runtime.meters import Meters
from extproc.runtime.telemetry import Telemetry


def test_priorities_beyond_the_label_cap_share_one_set_of_series_that_is_found_once() -> None:
    meters = Meters()
    recorder = Telemetry(meters)
    beyond = 50
    with mock.patch.object(telemetry, "_BandCells", wraps=telemetry._BandCells) as found:
        for _ in range(3):
            for priority in range(MAX_PRIORITY_LABELS + beyond):
                recorder.arrived(Request(id=RequestId(1), priority=priority, model="m"))
    assert found.call_count == MAX_PRIORITY_LABELS + 1
    arrived = meters.counter("extproc_requests_arrived_total")
    assert arrived.labels(OVERFLOW).value == 3 * beyond
    assert arrived.labels("0").value == 3
