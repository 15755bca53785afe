"""Faults as they are written, and when they end."""

import random

import pytest

from extproc.errors import ConfigError
from extproc.sim.emulator.faults import FaultPlan, parse_fault


def test_a_fault_has_defaults_and_takes_its_own_parameters() -> None:
    assert parse_fault("error")["status"] == 500
    fault = parse_fault("reset:after=3,share=0.25,for=30")
    assert (fault.kind, fault["after"], fault["share"], fault.for_s) == ("reset", 3, 0.25, 30)


@pytest.mark.parametrize(
    "text", ["meteor", "error:stauts=503", "error:status=many", "stall:seconds=-1", "slow:factor="]
)
def test_what_cannot_be_meant_is_refused_with_what_can(text: str) -> None:
    with pytest.raises(ConfigError, match="fault"):
        parse_fault(text)


def test_a_fault_ends_by_itself_or_when_it_is_removed() -> None:
    plan = FaultPlan()
    plan.add(parse_fault("stale-metrics:for=10"), now=100.0)
    plan.add(parse_fault("no-metrics"), now=100.0)
    assert {fault.kind for fault in plan.active(109.0)} == {"stale-metrics", "no-metrics"}
    assert {fault.kind for fault in plan.active(110.0)} == {"no-metrics"}
    plan.remove("no-metrics")
    assert plan.active(110.0) == []


def test_the_time_of_a_fault_given_at_the_start_counts_from_the_start() -> None:
    plan = FaultPlan()
    plan.add(parse_fault("error:for=5"))
    plan.begin(1000.0)
    assert plan.get("error", 1004.0) is not None
    assert plan.get("error", 1005.0) is None


def test_a_share_strikes_that_part_of_the_requests() -> None:
    plan = FaultPlan()
    plan.add(parse_fault("reset:share=0.3"), now=0.0)
    rng = random.Random(1)
    struck = sum(plan.draw("reset", 1.0, rng) is not None for _ in range(1000))
    assert 250 < struck < 350
