"""One cell of a suite under one seed, in virtual time: builds the scenario and reduces its result.

The scenario runs the very FlowController of production over modelled engines; nothing here reads a clock,
so a run is a function of its inputs.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable

from extproc.bench.outcome import RunOutcome, TimelinePoint
from extproc.bench.suite import Arm, Cell, Suite
from extproc.core.config import FlowControlConfig
from extproc.core.statistics import Statistics
from extproc.sim.files import PoolEntry, ScenarioFile, load_engine
from extproc.sim.result import TimelinePoint as PoolPoint
from extproc.sim.runner import run
from extproc.sim.scenario import Delays, EndpointSpec, Scenario, Scraping
from extproc.sim.server_config import EngineConfig
from extproc.workload.traffic import TrafficClass

TIMELINE_POINTS = 240


def run_virtual(suite: Suite, cell: Cell, seed: int) -> RunOutcome:
    """Simulate the cell."""
    scenario = build_scenario(suite, cell, seed)
    result = run(scenario)
    return RunOutcome(
        cell=cell,
        seed=seed,
        records=result.records,
        duration_s=result.ended_at_s,
        preemptions=result.preemptions,
        prompt_tokens_computed=sum(engine.prompt_tokens_computed for engine in result.engines),
        timeline=[_point(point) for point in result.timeline],
        unconfirmed=sum(gateway.revocations_timed_out for gateway in result.gateways),
    )


def build_scenario(suite: Suite, cell: Cell, seed: int) -> Scenario:
    """The scenario of one cell; also what `bench export` writes out."""
    arm, load = suite.arm(cell.arm), suite.load(cell.load)
    engine = engine_config(suite, arm)
    classes = arm_classes(load.traffic(cell.setting), arm)
    latencies = suite.latencies
    return Scenario(
        name=f"{suite.name}: {cell.label}",
        pool=tuple(
            EndpointSpec(name=f"engine-{index}", engine=engine, max_requests=arm.slots)
            for index in range(arm.endpoints or suite.endpoints)
        ),
        classes=classes,
        flow_control=arm.flow_control or FlowControlConfig(mode="observe", default_ttl_s=None),
        delays=Delays(
            gateway_s=latencies.gateway_s,
            front_end_s=latencies.front_end_s,
            abort_s=latencies.abort_s,
            confirm_s=latencies.abort_s,
            confirm_unstarted_s=arm.confirm_unstarted_s,
            resubmit_s=latencies.resubmit_s,
        ),
        scraping=Scraping(interval_s=latencies.scrape_s),
        horizon_s=load.horizon_s,
        seed=seed,
        exempt_from_priority=arm.exempts_from,
        has_visible_output=arm.has_visible_output,
        timeline_interval_s=load.horizon_s / TIMELINE_POINTS / 4,
    )


def scenario_file(suite: Suite, cell: Cell, seed: int) -> ScenarioFile:
    """The cell in the file format of `extproc simulate`."""
    arm, scenario = suite.arm(cell.arm), build_scenario(suite, cell, seed)
    overrides = {**suite.engine, **arm.engine}
    entry = PoolEntry(name="engine", hardware=suite.hardware, count=len(scenario.pool), **overrides)  # type: ignore[arg-type]
    return ScenarioFile(
        name=scenario.name,
        description=f"Exported from the suite {suite.name} (seed {suite.seed}, section {suite.section}).",
        pool=(entry,),
        classes=scenario.classes,
        flow_control=scenario.flow_control,
        delays=scenario.delays,
        scraping=scenario.scraping,
        horizon_s=scenario.horizon_s,
        seed=seed,
        exempt_from_priority=scenario.exempt_from_priority,
        has_visible_output=scenario.has_visible_output,
    )


def engine_config(suite: Suite, arm: Arm) -> EngineConfig:
    """The suite's hardware with the suite's and the arm's overrides."""
    overrides = {**suite.engine, **arm.engine}
    return dataclasses.replace(_hardware(suite.hardware), **overrides)  # type: ignore[arg-type]


@functools.cache
def _hardware(name: str) -> EngineConfig:
    """Reading the file takes longer than many a simulation."""
    return load_engine(name)


def arm_classes(classes: Iterable[TrafficClass], arm: Arm) -> tuple[TrafficClass, ...]:
    """The classes as the arm changes them."""
    kept = [each for each in classes if not (arm.drops_batch and each.priority < 0)]
    if arm.after_eviction is None:
        return tuple(kept)
    return tuple(
        dataclasses.replace(each, after_eviction=arm.after_eviction) if each.priority < 0 else each
        for each in kept
    )


def _point(point: PoolPoint) -> TimelinePoint:
    """The first gateway's view (suites have one)."""
    gateway: Statistics = point.gateways[0]
    return TimelinePoint(
        at_s=round(point.at_s, 3),
        saturation=round(gateway.saturation, 4),
        ceilings={band.priority: band.ceiling for band in gateway.bands},
        queued={band.priority: band.queued_requests for band in gateway.bands},
        inflight={band.priority: band.inflight_requests for band in gateway.bands},
        evictions=sum(band.evictions for band in gateway.bands),
    )
