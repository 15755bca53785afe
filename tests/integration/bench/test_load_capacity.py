"""One process must drive 2,000 requests/s with 5,000 open streams without falling behind its plan."""

from __future__ import annotations

import subprocess
import sys

import pytest
import uvloop

from extproc.bench.load import LoadGenerator, LoadResult
from extproc.bench.load_options import LoadOptions
from extproc.bench.prompts import PromptFactory, PromptStyle
from extproc.clock import SystemClock
from extproc.workload.arrivals import Poisson
from extproc.workload.lengths import Fixed
from extproc.workload.record import RequestOutcome
from extproc.workload.traffic import TrafficClass


def _drive(rate_per_s: float, seconds: float, delay_s: float) -> LoadResult:
    """Load against a server in its own process that answers each request after `delay_s`."""
    command = [sys.executable, "-m", "tests.support.canned_server", "4", str(delay_s)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        traffic = TrafficClass(
            name="flood",
            arrivals=Poisson(rate_per_s=rate_per_s, end_s=seconds),
            prompt=Fixed(tokens=64),
            output=Fixed(tokens=4),
        )
        prompts = PromptFactory(model="m", style=PromptStyle.TOKEN_IDS, seed=1, run_salt="flood")
        load = LoadGenerator(LoadOptions(base_url=url), prompts, SystemClock(), classes=[traffic])
        return uvloop.run(load.run())
    finally:
        server.kill()
        server.communicate()


def test_hundreds_of_streams_leave_on_time() -> None:
    result = _drive(rate_per_s=200.0, seconds=1.5, delay_s=0.5)
    assert {record.outcome for record in result.records} == {RequestOutcome.COMPLETED}
    assert result.invalid == ""


@pytest.mark.scale
def test_2000_requests_per_second_with_5000_open_streams() -> None:
    result = _drive(rate_per_s=2050.0, seconds=8.0, delay_s=2.6)
    assert {record.outcome for record in result.records} == {RequestOutcome.COMPLETED}
    assert len(result.records) > 15_000
    assert result.most_open >= 5_000
    assert result.invalid == ""
