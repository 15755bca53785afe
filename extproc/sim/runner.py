"""Runs a scenario: engines, gateways and clients on one calendar, in virtual time.

The gateways are production `FlowController`s; everything random comes from streams named after the scenario's
seed, so that two arms of a comparison see the same arrivals and lengths.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from functools import partial
from typing import assert_never

from extproc.core.events import EndpointAdded, EndpointHealthChanged, EndpointSampled
from extproc.core.types import EndpointId, Request, RequestId
from extproc.sim.calendar import Calendar, Rank
from extproc.sim.engine_node import EngineNode
from extproc.sim.gateway_node import GatewayNode
from extproc.sim.journey import Journey
from extproc.sim.leg import Leg, LegOwner
from extproc.sim.replica_group import ReplicaGroup
from extproc.sim.result import RunResult, TimelinePoint
from extproc.sim.scenario import EndpointLoss, Fault, Scenario, SlowEngine, StaleMetrics
from extproc.sim.sequence import Sequence
from extproc.workload.arrivals import ClosedLoop
from extproc.workload.record import RequestRecord
from extproc.workload.rng import random_stream
from extproc.workload.traffic import PlannedRequest, TrafficClass, plan_class, plan_open


def run(scenario: Scenario, *, on_record: Callable[[RequestRecord], None] | None = None) -> RunResult:
    """Run `scenario` to its end. With `on_record` each record is handed over and not kept."""
    return Simulation(scenario, on_record=on_record).run()


class Simulation:
    """The parts of one run. Public parts are for callers that add their own actions to the calendar."""

    def __init__(
        self, scenario: Scenario, *, on_record: Callable[[RequestRecord], None] | None = None
    ) -> None:
        self.scenario = scenario
        self.calendar = Calendar()
        self.engines: dict[EndpointId, EngineNode] = {}
        shares = scenario.replicas > 1 and scenario.sharing.mode == "leased"
        self.gateways = [
            GatewayNode(
                scenario.flow_control,
                random_stream(scenario.seed, f"gateway/{replica}"),
                self.calendar,
                self.engines,
                is_leased=shares,
            )
            for replica in range(scenario.replicas)
        ]
        self.group = ReplicaGroup(self.gateways, scenario.sharing, self.calendar) if shares else None
        self.result = RunResult()
        self._nodes = [
            EngineNode(spec, number, self.calendar, keeps_token_times=scenario.keeps_token_gaps)
            for number, spec in enumerate(scenario.pool)
        ]
        self._on_record = on_record or self.result.records.append
        self._journeys: set[Journey] = set()
        self._request_ids = itertools.count(1)
        self._keys = itertools.count(1)
        self._backoff_rng = random_stream(scenario.seed, "backoff")
        self._spread_rng = random_stream(scenario.seed, "spread")
        self._bypass = itertools.cycle(self._nodes)
        self._open_plan = plan_open(scenario.classes, scenario.seed)
        self._has_begun = False
        self._sources_left = 1
        """Sources of traffic that may still send: the open-loop plan, and every closed-loop client."""

    def run(self) -> RunResult:
        """Run to the horizon, or until all traffic has been sent and has ended."""
        self.advance(self.scenario.horizon_s)
        return self._finish()

    def advance(self, until: float) -> None:
        """Run to `until` (seconds), at most to the horizon; for callers that show progress."""
        if not self._has_begun:
            self._has_begun = True
            self._begin()
        self.calendar.run(min(until, self.scenario.horizon_s))

    def _begin(self) -> None:
        """Put the first entries of every source into the calendar."""
        scenario, calendar = self.scenario, self.calendar
        for node in self._nodes:
            calendar.at(node.spec.joins_at_s, Rank.ENGINE, partial(self._join, node))
        for fault in scenario.faults:
            self._plan_fault(fault)
        for traffic in scenario.classes:
            if isinstance(traffic.arrivals, ClosedLoop):
                self._plan_closed_loop(traffic, traffic.arrivals)
        if self.group is not None:
            self.group.begin()
        self._plan_next_arrival()
        if scenario.timeline_interval_s is not None:
            calendar.at(0.0, Rank.SAMPLE, self._sample_timeline)

    # -- what journeys need -------------------------------------------------------------------------------

    @property
    def resubmit_s(self) -> float:
        return self.scenario.delays.resubmit_s

    def new_request_id(self) -> RequestId:
        return RequestId(next(self._request_ids))

    def new_leg(self, request: Request, sequence: Sequence, owner: LegOwner) -> Leg:
        """A leg through one of the gateways, or past them for requests that are exempt."""
        scenario = self.scenario
        exempt_from = scenario.exempt_from_priority
        is_exempt = exempt_from is not None and request.priority >= exempt_from
        sequence.is_exempt = is_exempt
        gateway = self.gateways[0]
        if len(self.gateways) > 1:
            pair = self._spread_rng.choices(self.gateways, k=2)
            gateway = min(pair, key=lambda gateway: gateway.open_requests)
        return Leg(
            request,
            sequence,
            owner,
            calendar=self.calendar,
            delays=scenario.delays,
            gateway=None if is_exempt else gateway,
            engine=next(self._bypass) if is_exempt else None,
            has_visible_output=scenario.has_visible_output,
        )

    # -- traffic ------------------------------------------------------------------------------------------

    def _plan_next_arrival(self) -> None:
        plan = next(self._open_plan, None)
        if plan is None or plan.at_s > self.scenario.horizon_s:
            self._source_ended()
            return
        self.calendar.at(plan.at_s, Rank.ARRIVAL, partial(self._arrive, plan))

    def _arrive(self, plan: PlannedRequest) -> None:
        self._start(plan, self._journey_ended, is_closed_loop=False)
        self._plan_next_arrival()

    def _plan_closed_loop(self, traffic: TrafficClass, arrivals: ClosedLoop) -> None:
        """Clients that send their next request when the last one has ended."""
        plans = plan_class(traffic, self.scenario.seed)
        until = self.scenario.horizon_s if arrivals.end_s is None else arrivals.end_s

        def next_request(ended: Journey | None = None) -> None:
            plan = next(plans, None) if self.calendar.now < until else None
            if plan is not None:
                shifted = plan if plan.deadline_s is None else _from_now(plan, self.calendar.now)
                self._start(shifted, next_request, is_closed_loop=True)
            if ended is not None:
                self._journeys.discard(ended)
                self._on_record(ended.record)
            if plan is None:
                self._source_ended()

        for _ in range(arrivals.concurrency):
            self._sources_left += 1
            self.calendar.at(arrivals.start_s, Rank.ARRIVAL, next_request)

    def _start(
        self, plan: PlannedRequest, on_end: Callable[[Journey], None], *, is_closed_loop: bool
    ) -> None:
        journey = Journey(
            plan,
            next(self._keys),
            calendar=self.calendar,
            factory=self,
            rng=self._backoff_rng,
            on_end=on_end,
            is_closed_loop=is_closed_loop,
        )
        self._journeys.add(journey)
        self.result.requests += 1
        journey.start()

    def _journey_ended(self, journey: Journey) -> None:
        self._journeys.discard(journey)
        self._on_record(journey.record)
        self._stop_when_done()

    def _source_ended(self) -> None:
        self._sources_left -= 1
        self._stop_when_done()

    def _stop_when_done(self) -> None:
        if self._sources_left == 0 and not self._journeys:
            self.calendar.stop()

    # -- the pool -----------------------------------------------------------------------------------------

    def _join(self, node: EngineNode) -> None:
        self.engines[node.endpoint.id] = node
        for gateway in self.gateways:
            gateway.handle(EndpointAdded(node.endpoint))
        self._deliver_sample(node)
        if self.scenario.scraping.interval_s is not None:
            self.calendar.after(self.scenario.scraping.interval_s, Rank.SAMPLE, partial(self._scrape, node))

    def _scrape(self, node: EngineNode) -> None:
        scraping = self.scenario.scraping
        assert scraping.interval_s is not None
        self._deliver_sample(node)
        self.calendar.after(scraping.interval_s, Rank.SAMPLE, partial(self._scrape, node))

    def _deliver_sample(self, node: EngineNode) -> None:
        sample = node.sample()
        if sample is None:
            return
        delay_s = self.scenario.scraping.delay_s
        for gateway in self.gateways:
            self.calendar.after(delay_s, Rank.SAMPLE, partial(gateway.handle, EndpointSampled(sample)))

    def _plan_fault(self, fault: Fault) -> None:
        node = next(node for node in self._nodes if node.spec.name == fault.endpoint)
        calendar = self.calendar
        match fault:
            case EndpointLoss():
                lost_s = self.scenario.delays.lost_s
                calendar.at(fault.at_s, Rank.ENGINE, node.die)
                calendar.at(fault.at_s + lost_s, Rank.MESSAGE, partial(self._tell_health, node, False))
                if fault.back_at_s is not None:
                    calendar.at(fault.back_at_s, Rank.ENGINE, node.restart)
                    back = max(fault.back_at_s, fault.at_s) + lost_s
                    calendar.at(back, Rank.MESSAGE, partial(self._tell_health, node, True))
            case StaleMetrics():
                calendar.at(fault.at_s, Rank.ENGINE, partial(node.set_metrics, is_fresh=False))
                calendar.at(fault.until_s, Rank.ENGINE, partial(node.set_metrics, is_fresh=True))
            case SlowEngine():
                calendar.at(fault.at_s, Rank.ENGINE, partial(node.slow_down, fault.factor))
                calendar.at(fault.until_s, Rank.ENGINE, partial(node.slow_down, 1.0))
            case _:
                assert_never(fault)

    def _tell_health(self, node: EngineNode, is_healthy: bool) -> None:
        for gateway in self.gateways:
            gateway.handle(EndpointHealthChanged(node.endpoint.id, is_healthy))

    # -- results ------------------------------------------------------------------------------------------

    def _sample_timeline(self) -> None:
        interval_s = self.scenario.timeline_interval_s
        assert interval_s is not None
        models = [node.model for node in self.engines.values()]
        self.result.timeline.append(
            TimelinePoint(
                at_s=self.calendar.now,
                gateways=tuple(gateway.controller.statistics() for gateway in self.gateways),
                running=sum(model.running for model in models),
                waiting=sum(model.waiting for model in models),
                kv_usage_fraction=sum(model.kv.usage_fraction for model in models) / max(1, len(models)),
            )
        )
        self.calendar.after(interval_s, Rank.SAMPLE, self._sample_timeline)

    def _finish(self) -> RunResult:
        result = self.result
        result.ended_at_s = self.calendar.now
        for journey in sorted(self._journeys, key=lambda journey: journey.record.intended_s):
            journey.close()
            self._on_record(journey.record)
        result.engines = tuple(node.totals() for node in self._nodes)
        result.gateways = tuple(gateway.controller.statistics() for gateway in self.gateways)
        return result


def _from_now(plan: PlannedRequest, now: float) -> PlannedRequest:
    """A closed-loop request's deadline counts from when it is really sent."""
    assert plan.deadline_s is not None
    return dataclasses.replace(plan, at_s=now, deadline_s=plan.deadline_s - plan.at_s + now)
