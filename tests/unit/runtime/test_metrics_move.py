"""Each metric of the catalogue moves by its event, by what the docs say, and by nothing else.

One event at a time is driven through the real driver, controller and telemetry; the exposition before and
after is compared. A metric without a case here fails the last test.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest
from msgspec import structs
from prometheus_client.parser import text_string_to_metric_families

from extproc.core.band import BandConfig
from extproc.core.commands import Command
from extproc.core.concurrency import ConcurrencyDetectorConfig
from extproc.core.config import FlowControlConfig
from extproc.core.controller import FlowController
from extproc.core.credits import Credits
from extproc.core.events import (
    EndpointAdded,
    EndpointRemoved,
    EndpointSampled,
    RequestCancelled,
    RequestFinished,
    ResponseStarted,
)
from extproc.core.eviction import EvictionConfig
from extproc.core.holdback import StaticCeilingConfig
from extproc.core.outcomes import EndReason
from extproc.core.types import EndpointId, EndpointSample, FairnessId, Request, RequestId, Usage
from extproc.core.utilization import UtilizationDetectorConfig
from extproc.exchange.observation import OutputTimes
from extproc.exchange.refusals import refuse_malformed
from extproc.runtime.catalogue import Kind, all_metrics
from extproc.runtime.driver import Driver
from extproc.runtime.gauges import PriorityLabels, StateReader, read_process, read_would_have
from extproc.runtime.health import HealthState
from extproc.runtime.meters import Meters
from extproc.runtime.pool_gauges import read_pool
from extproc.runtime.pool_watch import EndpointStatus, SourceStatus
from extproc.runtime.replicas.status import ReplicaStatus
from extproc.runtime.replicas.view import read_group
from extproc.runtime.scrape_target import ScrapeStatus
from extproc.runtime.telemetry import Telemetry
from tests.support.core import endpoint

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]

DECLARED = (10, -1)
CONFIG = FlowControlConfig(
    detector=ConcurrencyDetectorConfig(max_concurrency=2),
    ceilings=StaticCeilingConfig(threshold=1.0),
    bands=tuple(BandConfig(priority=priority, max_requests=3) for priority in DECLARED),
    eviction=EvictionConfig(enabled=True),
)


LEASED = ReplicaStatus(
    replica="r0",
    state="leased",
    is_leader=False,
    leader="r1:4",
    members=("r0", "r1"),
    shares={},
    capacity={"gpu:8000": Credits(8, 1000)},
    credits={"gpu:8000": Credits(4, 500)},
    grants_taken=1,
    reclaims_taken=0,
    allocation_rounds=0,
    store_calls=10,
    store_errors=0,
    lease_left_s=2.0,
)


@dataclass
class Clock:
    """Time that the test sets."""

    time: float = 1000.25

    def now(self) -> float:
        return self.time

    def wall_time(self) -> float:
        return self.time

    async def sleep_until(self, deadline: float) -> None:
        raise AssertionError("nothing sleeps here")


class Sink:
    def decided(self, command: Command) -> None:
        return


class Watch:
    """Stands for the pool's watcher."""

    def __init__(self) -> None:
        self.members: list[EndpointStatus] = []
        self.problem: str | None = None

    def endpoints(self) -> list[EndpointStatus]:
        return self.members

    def sources(self) -> list[SourceStatus]:
        return [SourceStatus(name="file", problem=self.problem, problems=0, published=1)]


class Bench:
    """A driver with telemetry, one endpoint of two places, and both declared bands."""

    def __init__(self, config: FlowControlConfig = CONFIG) -> None:
        self.clock = Clock()
        self.meters = Meters()
        priorities = PriorityLabels(DECLARED)
        self.telemetry = Telemetry(self.meters, priorities)
        self.telemetry.create_series(DECLARED)
        self.controller = FlowController(config, random.Random(1))
        self.driver = Driver(self.controller, self.clock, self.telemetry)
        self.driver._set_timer = lambda: None  # type: ignore[method-assign]  # no event loop here
        reader = StateReader(priorities)
        self.meters.add_source(lambda: reader.read(self.driver.statistics(), self.driver.inspect()))
        self.watch = Watch()
        self.meters.add_source(lambda: read_pool(self.watch))  # type: ignore[arg-type]
        self.group = LEASED
        self.meters.add_source(lambda: read_group(self.group))
        self.meters.add_source(lambda: read_would_have(self.driver.would_have, priorities))
        self.process = [0, False, 1]
        self.meters.add_source(lambda: read_process(*self.process))  # type: ignore[arg-type]
        self.endpoint = endpoint("gpu")
        self.driver.post(EndpointAdded(self.endpoint))

    def arrive(self, priority: int = 10, **attributes: object) -> RequestId:
        request = Request(
            id=self.driver.next_id(), priority=priority, model="m", prompt_tokens=100, size_bytes=400
        )
        self.driver.submit(structs.replace(request, **attributes), Sink())  # type: ignore[arg-type]
        return request.id

    def fill(self, priority: int = 10) -> list[RequestId]:
        return [self.arrive(priority), self.arrive(priority)]

    def finish(self, request: RequestId, reason: EndReason = EndReason.COMPLETED, **usage: int) -> None:
        self.driver.post(RequestFinished(request, reason, Usage(**usage) if usage else None))

    def advance(self, seconds: float) -> None:
        self.clock.time += seconds

    def series(self) -> Series:
        text = self.meters.expose().decode()
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


def key(name: str, **labels: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    return name, tuple(sorted(labels.items()))


CASES: dict[str, tuple[str, Callable[[Bench], Iterator[None]], dict[str, str], float | None]] = {}
"""What to do (after the yield: the event), the labels, and by how much the value changes (None: rises)."""


def case(name: str, by: float | None = 1, **labels: str) -> Callable[..., Callable[[Bench], Iterator[None]]]:
    def register(steps: Callable[[Bench], Iterator[None]]) -> Callable[[Bench], Iterator[None]]:
        CASES[f"{name} in {steps.__name__}"] = (name, steps, labels, by)
        return steps

    return register


@case("extproc_requests_arrived_total", priority="10")
@case("extproc_requests_total", priority="10", outcome="dispatched")
@case("extproc_model_requests_total", model="m")
@case("extproc_queue_wait_seconds_count", priority="10", outcome="dispatched")
@case("extproc_prompt_tokens_sum", by=100, priority="10")
@case("extproc_request_body_bytes_sum", by=400)
@case("extproc_inflight_requests", priority="10", endpoint="gpu:8000")
@case("extproc_inflight_tokens", by=100, priority="10", endpoint="gpu:8000")
@case("extproc_saturation_ratio", by=0.5)
@case("extproc_resource_saturation_ratio", by=0.5, resource="requests")
@case("extproc_endpoint_saturation_ratio", by=0.5, endpoint="gpu:8000", resource="requests")
def a_request_is_dispatched(bench: Bench) -> Iterator[None]:
    yield
    bench.arrive()


@case("extproc_requests_total", priority="10", outcome="dispatched", by=0)
@case("extproc_queue_requests", priority="10")
@case("extproc_queue_bytes", by=400, priority="10")
@case("extproc_queue_tokens", by=100, priority="10")
@case("extproc_flow_queue_requests", priority="10", fairness_id="team-a")
@case("extproc_flows")
def a_request_is_queued(bench: Bench) -> Iterator[None]:
    bench.fill()
    yield
    bench.arrive(fairness_id=FairnessId("team-a"))


@case("extproc_requests_total", priority="10", outcome="rejected-capacity")
@case("extproc_queue_wait_seconds_count", priority="10", outcome="rejected-capacity")
def a_queue_is_full(bench: Bench) -> Iterator[None]:
    bench.fill()
    for _ in range(3):
        bench.arrive()
    yield
    bench.arrive()


@case("extproc_requests_total", priority="10", outcome="cancelled")
@case("extproc_queue_requests", by=-1, priority="10")
def a_client_leaves_the_queue(bench: Bench) -> Iterator[None]:
    bench.fill()
    waiting = bench.arrive()
    yield
    bench.driver.post(RequestCancelled(waiting))


@case("extproc_requests_total", priority="10", outcome="expired-ttl")
@case("extproc_queue_wait_seconds_sum", by=5, priority="10", outcome="expired-ttl")
def a_ttl_runs_out(bench: Bench) -> Iterator[None]:
    bench.fill()
    bench.arrive(ttl_s=5.0)
    yield
    bench.advance(5)
    bench.driver.post(ResponseStarted(RequestId(999)))


@case("extproc_deadline_missed_total", priority="10")
@case("extproc_requests_total", priority="10", outcome="expired-deadline")
def a_deadline_passes(bench: Bench) -> Iterator[None]:
    bench.fill()
    bench.arrive(deadline_s=bench.clock.now() + 2)
    yield
    bench.advance(2)
    bench.driver.post(ResponseStarted(RequestId(999)))


@case("extproc_requests_finished_total", priority="10", reason="completed")
@case("extproc_request_duration_seconds_sum", by=3, priority="10")
@case("extproc_output_tokens_sum", by=50, priority="10")
@case("extproc_cached_tokens_sum", by=64, priority="10")
@case("extproc_output_estimate_ratio_sum", by=156 / 50, priority="10")  # 100 + 150 in blocks of 16
@case("extproc_inflight_requests", by=-1, priority="10", endpoint="gpu:8000")
def an_answer_ends(bench: Bench) -> Iterator[None]:
    running = bench.arrive()
    yield
    bench.advance(3)
    bench.finish(running, output_tokens=50, cached_tokens=64)


@case("extproc_response_headers_seconds_sum", by=0.5, priority="10")
def response_headers_come(bench: Bench) -> Iterator[None]:
    running = bench.arrive()
    yield
    bench.advance(0.5)
    bench.driver.post(ResponseStarted(running))


@case("extproc_revocations_issued_total", priority="-1")
@case("extproc_revocations_outstanding")
@case("extproc_promised_requests")
def a_request_is_evicted(bench: Bench) -> Iterator[None]:
    bench.fill(-1)
    yield
    bench.arrive()


@case("extproc_revocations_total", outcome="confirmed")
@case("extproc_revocation_confirmation_seconds_sum", by=0.25)
@case("extproc_requests_finished_total", priority="-1", reason="evicted")
@case("extproc_redone_tokens_total", by=100, priority="-1", kind="prompt")
@case("extproc_redone_tokens_total", by=7, priority="-1", kind="output")
@case("extproc_revocations_outstanding", by=-1)
def an_eviction_is_confirmed(bench: Bench) -> Iterator[None]:
    victims = bench.fill(-1)
    bench.arrive()
    yield
    bench.advance(0.25)
    bench.finish(victims[-1], EndReason.EVICTED, output_tokens=7)


@case("extproc_revocations_total", outcome="timed-out")
def an_eviction_is_not_confirmed_in_time(bench: Bench) -> Iterator[None]:
    bench.fill(-1)
    bench.arrive()
    yield
    bench.advance(10)
    bench.driver.post(ResponseStarted(RequestId(999)))


@case("extproc_ttft_seconds_sum", by=0.5, priority="10")
@case("extproc_itl_seconds_sum", by=0.25, priority="10")
@case("extproc_tpot_seconds_sum", by=0.25, priority="10")
@case("extproc_ttft_target_total", priority="10", result="missed")
def a_watched_answer_ends(bench: Bench) -> Iterator[None]:
    request = Request(id=RequestId(1), priority=10, ttft_target_s=0.1)
    times = OutputTimes()
    times.first_at, times.last_at, times.gaps_s = 1.5, 1.75, [0.25]
    yield
    bench.telemetry.observed(request, times, 2, arrived_at=1.0)


@case("extproc_queue_oldest_seconds", by=4, priority="10")
def time_passes(bench: Bench) -> Iterator[None]:
    bench.fill()
    bench.arrive()
    yield
    bench.advance(4)


@case("extproc_drain_requests_per_second", by=None, priority="10")
@case("extproc_wait_estimate_seconds", by=None, priority="10")
def a_queue_drains(bench: Bench) -> Iterator[None]:
    yield
    running = bench.fill()
    for _ in range(2):
        bench.arrive()
    bench.advance(10)
    bench.finish(running[0])


def status(
    health: HealthState = HealthState.HEALTHY, *, is_draining: bool = False, failures: int = 0
) -> EndpointStatus:
    sample = EndpointSample(endpoint_id=EndpointId("e"), sampled_at=0.0)
    sample = structs.replace(sample, running_requests=3, waiting_requests=2, kv_usage_fraction=0.5)
    scrape = ScrapeStatus(
        sample=sample, age_s=1.5, interval_s=0.2, failures_in_a_row=0, failures=failures, last_failure=None
    )
    return EndpointStatus(
        endpoint_id=EndpointId("e"),
        name="gpu",
        address="gpu:8000",
        is_draining=is_draining,
        health=health,
        scrape=scrape,
    )


@case("extproc_endpoints", by=-1, state="ready")
@case("extproc_endpoints", state="unhealthy")
def an_endpoint_fails(bench: Bench) -> Iterator[None]:
    bench.watch.members = [status()]
    yield
    bench.watch.members = [status(HealthState.EJECTED)]


@case("extproc_endpoints", state="draining")
def an_endpoint_leaves(bench: Bench) -> Iterator[None]:
    bench.watch.members = [status()]
    yield
    bench.watch.members = [status(is_draining=True)]


@case("extproc_endpoint_running_requests", by=3, endpoint="gpu:8000")
@case("extproc_endpoint_waiting_requests", by=2, endpoint="gpu:8000")
@case("extproc_endpoint_kv_usage_ratio", by=0.5, endpoint="gpu:8000")
@case("extproc_endpoint_sample_age_seconds", by=1.5, endpoint="gpu:8000")
def an_endpoint_is_sampled(bench: Bench) -> Iterator[None]:
    yield
    bench.watch.members = [status()]


@case("extproc_discovery_up", by=-1, source="file")
def discovery_fails(bench: Bench) -> Iterator[None]:
    yield
    bench.watch.problem = "no such file"


@case("extproc_stale_endpoints", by=1)
def measurements_grow_old(bench: Bench) -> Iterator[None]:
    detector = UtilizationDetectorConfig()
    bench.driver.reconfigure(replace(CONFIG, detector=detector))
    bench.driver.post(
        EndpointSampled(EndpointSample(endpoint_id=bench.endpoint.id, sampled_at=bench.clock.time))
    )
    yield
    bench.advance(3600)
    bench.driver.post(ResponseStarted(RequestId(999)))


@case("extproc_ignored_events_total")
def an_event_comes_twice(bench: Bench) -> Iterator[None]:
    running = bench.arrive()
    bench.finish(running)
    yield
    bench.finish(running)


@case("extproc_ceiling_ratio", by=-0.5, priority="10")
@case("extproc_reserve_ratio", by=0.5, priority="10", resource="requests")
@case("extproc_queue_limit_requests", by=4, priority="10")
def limits_are_changed(bench: Bench) -> Iterator[None]:
    bench.arrive()
    yield
    bands = tuple(replace(band, max_requests=7) for band in CONFIG.bands)
    bench.driver.reconfigure(replace(CONFIG, ceilings=StaticCeilingConfig(threshold=0.5), bands=bands))


@case("extproc_bypassed_requests_total", reason="bodyless")
def a_request_passes_by(bench: Bench) -> Iterator[None]:
    yield
    bench.telemetry.bypassed("bodyless")


@case("extproc_bad_requests_total", kind="bad-request")
def a_request_is_malformed(bench: Bench) -> Iterator[None]:
    yield
    bench.telemetry.refused(refuse_malformed("no model"))


@case("extproc_ignored_headers_total", header="x-priority")
def a_header_is_unreadable(bench: Bench) -> Iterator[None]:
    yield
    bench.telemetry.ignored_header("x-priority")


@case("extproc_request_notes_total", kind="count-fallback")
def a_prompt_cannot_be_counted(bench: Bench) -> Iterator[None]:
    yield
    bench.telemetry.noted("count-fallback")


@case("extproc_upstream_errors_total", status_class="5xx")
def a_model_server_fails(bench: Bench) -> Iterator[None]:
    yield
    bench.telemetry.upstream_error(503)


@case("extproc_streams_total", end="complete")
def a_stream_ends(bench: Bench) -> Iterator[None]:
    yield
    bench.telemetry.stream_ended("complete")


@case("extproc_replica_grants_total")
@case("extproc_replica_reclaims_total", by=2)
@case("extproc_replica_store_calls_total", by=3)
@case("extproc_replica_lease_seconds", by=0.5)
@case("extproc_replica_credits", by=-1, endpoint="gpu:8000", resource="requests")
@case("extproc_replica_credits", by=-100, endpoint="gpu:8000", resource="tokens")
@case("extproc_replica_members", by=1)
def credits_move_to_a_newcomer(bench: Bench) -> Iterator[None]:
    yield
    bench.group = replace(
        LEASED,
        credits={"gpu:8000": Credits(3, 400)},
        members=("r0", "r1", "r2"),
        grants_taken=2,
        reclaims_taken=2,
        store_calls=13,
        lease_left_s=2.5,
    )


@case("extproc_replica_leader")
@case("extproc_replica_allocation_rounds_total", by=5)
@case("extproc_replica_capacity", by=8, endpoint="gpu:8000", resource="requests")
def a_replica_allocates(bench: Bench) -> Iterator[None]:
    yield
    capacity = {"gpu:8000": Credits(16, 1000)}
    bench.group = replace(LEASED, is_leader=True, allocation_rounds=5, capacity=capacity)


@case("extproc_replica_state", by=-1, state="leased")
@case("extproc_replica_state", state="fallback")
@case("extproc_replica_store_errors_total", by=7)
def the_store_fails(bench: Bench) -> Iterator[None]:
    yield
    bench.group = replace(LEASED, state="fallback", store_errors=7)


@case("extproc_task_failures_total", task="scrape")
def a_task_fails(bench: Bench) -> Iterator[None]:
    yield
    bench.telemetry.task_failed("scrape")


@case("extproc_config_reloads_total", result="refused")
def a_configuration_is_refused(bench: Bench) -> Iterator[None]:
    yield
    bench.telemetry.config_reloaded("refused")


@case("extproc_scrape_errors_total", endpoint="gpu:8000")
def a_scrape_fails(bench: Bench) -> Iterator[None]:
    bench.watch.members = [status()]
    yield
    bench.watch.members = [status(failures=1)]


@case("extproc_streams_inflight", by=5)
@case("extproc_draining")
@case("extproc_config_generation")
def the_process_changes(bench: Bench) -> Iterator[None]:
    yield
    bench.process = [5, True, 2]


@case("extproc_build_info", by=0, version="0.1.0")
def nothing_happens(bench: Bench) -> Iterator[None]:
    yield


@case("extproc_event_loop_lag_seconds_sum", by=0.125)
def the_event_loop_is_late(bench: Bench) -> Iterator[None]:
    yield
    bench.meters.histogram("extproc_event_loop_lag_seconds").observe(0.125)


@case("extproc_decision_seconds_count", event="RequestArrived")
def the_core_is_asked_sixteen_times(bench: Bench) -> Iterator[None]:
    for _ in range(14):
        bench.arrive()
    yield
    bench.arrive()


@pytest.mark.parametrize("name", CASES)
def test_a_metric_moves_with_its_event(name: str) -> None:
    metric, steps, labels, by = CASES[name]
    bench = Bench()
    script = steps(bench)
    next(script)
    before = bench.series()
    next(script, None)
    after = bench.series()
    place = key(metric, **labels)
    assert place in after
    change = after[place] - before.get(place, 0.0)
    assert change > 0 if by is None else change == pytest.approx(by, abs=1e-6)


def test_the_series_of_known_bands_exist_at_zero_from_the_start() -> None:
    series = Bench().series()
    for priority in ("10", "-1"):
        assert series[key("extproc_queue_requests", priority=priority)] == 0
        assert series[key("extproc_ceiling_ratio", priority=priority)] == 1
        for outcome in ("dispatched", "expired-ttl", "rejected-capacity", "displaced", "cancelled"):
            assert series[key("extproc_requests_total", priority=priority, outcome=outcome)] == 0
        for reason in ("completed", "evicted", "failed", "client-gone"):
            assert series[key("extproc_requests_finished_total", priority=priority, reason=reason)] == 0


def test_an_empty_pool_and_an_empty_configuration_still_have_their_gauges() -> None:
    bench = Bench(FlowControlConfig())
    bench.driver.post(EndpointRemoved(bench.endpoint.id))
    series = bench.series()
    assert series[key("extproc_queue_requests", priority="0")] == 0
    assert series[key("extproc_inflight_requests", priority="0", endpoint="departed")] == 0
    assert series[key("extproc_saturation_ratio")] == 1
    assert series[key("extproc_endpoints", state="ready")] == 0


def test_the_series_of_a_flow_goes_with_it() -> None:
    bench = Bench()
    bench.fill()
    waiting = bench.arrive(fairness_id=FairnessId("sk-a-very-long-key-that-is-a-secret"))
    labels = [dict(labels) for name, labels in bench.series() if name == "extproc_flow_queue_requests"]
    assert [label["fairness_id"][:4] for label in labels] == ["sk-a"]
    assert "secret" not in bench.meters.expose().decode()
    bench.driver.post(RequestCancelled(waiting))
    assert not any(name == "extproc_flow_queue_requests" for name, _ in bench.series())


def test_field_bug_103_and_104_ten_thousand_clients_make_few_series() -> None:
    bench = Bench(replace(CONFIG, bands=(BandConfig(priority=10, max_requests=20_000),)))
    bench.fill()
    bench.arrive(fairness_id=FairnessId("first"))
    for number in range(3_000):
        bench.arrive(priority=1 + number % 500, fairness_id=FairnessId(f"f{number}"), model=f"m{number}")
    series = bench.series()
    assert len({labels for name, labels in series if name == "extproc_flow_queue_requests"}) <= 500
    assert len(series) < 20_000
    total = sum(n for (name, _), n in series.items() if name == "extproc_flow_queue_requests")
    queued = sum(n for (name, _), n in series.items() if name == "extproc_queue_requests")
    assert total == queued


def test_every_metric_of_the_catalogue_has_a_case() -> None:
    parts = ("_bucket", "_sum", "_count")
    covered = {"extproc_observe_only_total", "extproc_observe_only_wait_seconds_total"}  # test_observing.py
    for name, *_ in CASES.values():
        covered.add(next((name.removesuffix(part) for part in parts if name.endswith(part)), name))
    names = {metric.name for metric in all_metrics()}
    assert names - covered == set()
    assert {metric.name for metric in all_metrics() if metric.kind is Kind.HISTOGRAM} <= covered
