"""Several replicas in virtual time: they share what one would use, within its capacity."""

from __future__ import annotations

import dataclasses

import pytest

from extproc.bench.results import BEST
from extproc.bench.suite import Cell, Setting
from extproc.bench.suites.holdback import HOLDBACK_REQUESTS, SLOTS
from extproc.bench.virtual import build_scenario
from extproc.sim.runner import Simulation
from extproc.sim.scenario import Sharing


def simulation(replicas: int, sharing: Sharing | None = None, load: str = "bursts of 32") -> Simulation:
    cell = Cell(suite=HOLDBACK_REQUESTS.name, load=load, arm=BEST, setting=Setting.STEADY)
    scenario = build_scenario(HOLDBACK_REQUESTS, cell, seed=1)
    return Simulation(dataclasses.replace(scenario, replicas=replicas, sharing=sharing or Sharing()))


def in_flight(simulated: Simulation) -> int:
    """Without victims whose streams are just ending."""
    statistics = [gateway.controller.statistics() for gateway in simulated.gateways]
    return sum(one.inflight_requests - one.revocations_outstanding for one in statistics)


@pytest.mark.parametrize("replicas", [2, 8])
def test_the_group_fills_the_pool_and_never_exceeds_it(replicas: int) -> None:
    simulated = simulation(replicas)
    most = 0
    for step in range(1, 1100):
        simulated.advance(step * 0.02)
        used = in_flight(simulated)
        assert used <= SLOTS
        most = max(most, used)
    assert most == SLOTS


def test_replicas_that_know_nothing_of_each_other_exceed_it() -> None:
    simulated = simulation(2, Sharing(mode="none"))
    simulated.advance(5.0)
    assert in_flight(simulated) > SLOTS


def test_the_group_reports_by_the_period_while_only_batch_waits() -> None:
    simulated = simulation(4, load="1/s")
    simulated.advance(3.0)
    group = simulated.group
    assert group is not None
    before = group.reports_sent
    simulated.advance(8.0)
    assert group.reports_sent - before <= 2 * 4 * 5.0 / 0.1


def test_a_slower_way_to_the_store_delays_credits_but_loses_none() -> None:
    simulated = simulation(4, Sharing(store_s=0.05))
    used = []
    for step in range(1, 300):
        simulated.advance(20.0 + step * 0.05)
        used.append(in_flight(simulated))
    assert max(used) == SLOTS
    assert sum(used) / len(used) > 0.95 * SLOTS
