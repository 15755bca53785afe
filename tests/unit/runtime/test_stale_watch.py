"""One rate-limited log line when the detector is blind."""

from __future__ import annotations

import logging

import pytest

from extproc.core.capacity import CapacityDetectorConfig
from extproc.core.config import FlowControlConfig
from extproc.core.utilization import UtilizationDetectorConfig
from extproc.runtime.stale_watch import StaleWatch, consequence_of


def test_it_warns_at_most_twice_a_minute_and_says_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    watch = StaleWatch()
    with caplog.at_level(logging.INFO):
        for step in range(60):  # five minutes
            watch.observe(2, 3, "they count as full", 1000.25 + 5 * step)
        watch.observe(0, 3, "they count as full", 1400.0)
        watch.observe(0, 3, "they count as full", 1405.0)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 10 + ["INFO"]
    assert caplog.records[0].getMessage() == "2 of 3 endpoints have no fresh metrics; they count as full"


def test_a_new_blindness_is_said_at_once(caplog: pytest.LogCaptureFixture) -> None:
    watch = StaleWatch()
    for now, stale in ((1000.0, 1), (1005.0, 0), (1010.0, 1)):
        watch.observe(stale, 3, "they count as full", now)
    assert sum(record.levelname == "WARNING" for record in caplog.records) == 2


def test_what_it_means_depends_on_the_detector() -> None:
    assert consequence_of(FlowControlConfig()) is None
    full = consequence_of(FlowControlConfig(detector=UtilizationDetectorConfig()))
    accounting = consequence_of(
        FlowControlConfig(detector=UtilizationDetectorConfig(when_stale="accounting"))
    )
    assert full is not None
    assert "full" in full
    assert accounting is not None
    assert "in flight" in accounting
    assert consequence_of(FlowControlConfig(detector=CapacityDetectorConfig())) is not None
