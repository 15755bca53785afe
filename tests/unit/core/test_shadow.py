"""What mode observe says that enforcing would have done, against enforcing with the same arrivals."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from msgspec import structs

from extproc.core.band import BandConfig
from extproc.core.concurrency import ConcurrencyDetectorConfig
from extproc.core.config import FlowControlConfig
from extproc.core.controller import FlowController
from extproc.core.events import (
    EndpointAdded,
    EndpointSampled,
    Event,
    RequestArrived,
    RequestCancelled,
    RequestFinished,
    TimerFired,
)
from extproc.core.eviction import EvictionConfig
from extproc.core.shadow import Shadow, WouldHave
from extproc.core.types import EndpointSample, Request, RequestId
from tests.support.core import START_S, Script, endpoint
from tests.support.shadow import Job, Rehearsal, both, played

SLOTS = 4
CONFIG = FlowControlConfig(detector=ConcurrencyDetectorConfig(mode="requests", max_concurrency=SLOTS))
OBSERVE = replace(CONFIG, mode="observe")


class ShadowScript:
    """A controller that observes, one endpoint, and its shadow."""

    def __init__(self, config: FlowControlConfig) -> None:
        self.controller = FlowController(config, random.Random(1))
        self.counts: dict[int, WouldHave] = {}
        self.shadow = Shadow.beside(self.controller, self.counts, START_S)
        self.now = START_S
        self.send(EndpointAdded(endpoint()))

    def send(self, event: Event) -> None:
        self.shadow.follow(event, self.controller.handle(event, self.now), self.now)

    def arrive(self, number: int, **attributes: object) -> None:
        request = Request(id=RequestId(number))
        self.send(RequestArrived(structs.replace(request, **attributes)))


def jobs(count: int, per_s: float, seed: int = 3, service_s: float | None = None) -> list[Job]:
    """Poisson arrivals; service times are exponential around 1 s, or all the same."""
    rng, at_s, found = random.Random(seed), 0.0, []
    for _ in range(count):
        at_s += rng.expovariate(per_s)
        found.append(Job(at_s, service_s or rng.expovariate(1.0)))
    return found


def total(rehearsal: Rehearsal, name: str) -> float:
    return sum(getattr(counts, name) for counts in rehearsal.counts.values())


NAMES = ("passed", "held", "rejected", "expired", "displaced", "evicted")


@pytest.mark.parametrize("per_s", [1.0, 3.0])
def test_where_nobody_is_refused_it_counts_and_times_exactly_what_enforcing_does(per_s: float) -> None:
    observed, enforced = both(CONFIG, SLOTS, jobs(500, per_s))
    assert {name: total(observed, name) for name in NAMES} == {name: enforced.said[name] for name in NAMES}
    assert total(observed, "held") > 0
    assert total(observed, "held_s") == pytest.approx(enforced.queued_s)
    assert observed.said == {"passed": 500}


def test_an_overload_of_equal_requests_is_refused_exactly_as_in_earnest() -> None:
    config = replace(CONFIG, default_band=BandConfig(max_requests=10))
    observed, enforced = both(config, SLOTS, jobs(800, 6.0, service_s=1.0))
    assert total(observed, "rejected") == enforced.said["rejected"] > 100
    assert total(observed, "held_s") == pytest.approx(enforced.queued_s)


@pytest.mark.parametrize(
    ("change", "name"),
    [({"default_band": BandConfig(max_requests=10)}, "rejected"), ({"default_ttl_s": 2.0}, "expired")],
)
def test_a_mixed_overload_is_refused_about_as_in_earnest(change: dict[str, object], name: str) -> None:
    observed, enforced = both(replace(CONFIG, **change), SLOTS, jobs(2000, 5.0))  # type: ignore[arg-type]
    assert enforced.said[name] > 100
    assert total(observed, name) == pytest.approx(enforced.said[name], rel=0.2)


@pytest.mark.parametrize(("per_s", "engine_slots"), [(3.75, SLOTS), (3.75, 4 * SLOTS), (5.0, SLOTS)])
def test_evictions_are_foreseen_in_the_right_order_of_size(per_s: float, engine_slots: int) -> None:
    config = replace(CONFIG, eviction=EvictionConfig(enabled=True), default_band=BandConfig(max_requests=20))
    rng = random.Random(5)
    mixed = [replace(job, priority=rng.choice((10, -1, -1))) for job in jobs(2000, per_s)]
    observed, enforced = both(config, engine_slots, mixed)
    assert enforced.said["evicted"] > 100
    assert 0.6 <= total(observed, "evicted") / enforced.said["evicted"] <= 1.8


def test_displacing_counts_for_the_lower_one() -> None:
    low = [Job(0.0, 9.0, -1) for _ in range(SLOTS + 2)]
    observed = played(replace(OBSERVE, max_requests=2), SLOTS, [*low, Job(1.0, 9.0, 10)])
    assert (observed.counts[-1].passed, observed.counts[-1].held, observed.counts[-1].displaced) == (4, 2, 1)
    assert (observed.counts[10].held, observed.counts[10].rejected) == (1, 0)


def test_an_eviction_counts_for_the_victim_and_its_successor_passes() -> None:
    config = replace(OBSERVE, eviction=EvictionConfig(enabled=True))
    observed = played(config, SLOTS, [*(Job(0.0, 9.0, -1) for _ in range(SLOTS)), Job(1.0, 9.0, 10)])
    assert observed.counts[-1] == WouldHave(passed=SLOTS, evicted=1)
    assert observed.counts[10] == WouldHave(passed=1)
    assert observed.said == {"passed": SLOTS + 1}  # for real nothing was ended


def test_a_client_that_leaves_is_held_no_longer() -> None:
    script = ShadowScript(OBSERVE)
    for number in range(SLOTS + 1):
        script.arrive(number)
    script.now += 2.0
    script.send(RequestCancelled(RequestId(SLOTS)))
    assert script.counts[0] == WouldHave(passed=SLOTS, held=1, held_s=2.0)
    script.arrive(99)
    assert script.counts[0].held == 2


def test_what_is_answered_while_it_would_wait_changes_roles_with_what_runs_longest() -> None:
    script = ShadowScript(OBSERVE)
    for number in range(SLOTS + 2):
        script.arrive(number)
    script.now += 1.0
    script.send(RequestFinished(RequestId(SLOTS + 1)))  # the last one, by a server that serves it first
    assert script.counts[0] == WouldHave(passed=SLOTS, held=2, held_s=1.0)  # one more may go
    script.now += 1.0
    script.send(RequestFinished(RequestId(0)))  # in whose place that one went: now the last one ends
    assert script.counts[0].held_s == 1.0 + 2.0
    script.arrive(99)
    assert script.counts[0] == WouldHave(passed=SLOTS, held=3, held_s=3.0)
    for number in (*range(1, SLOTS + 1), 99):
        script.send(RequestFinished(RequestId(number)))
    assert script.shadow.is_idle


@pytest.mark.parametrize(("waiting", "is_held"), [(2, False), (5, True)])
def test_servers_are_measured_without_the_queue_that_enforcing_would_prevent(
    waiting: int, is_held: bool
) -> None:
    """Pacing holds sheddable work where requests have been waiting for a second: two are ours, not five."""
    script = ShadowScript(OBSERVE)
    for number in range(SLOTS + 2):
        script.arrive(number, priority=10)
    for _ in range(2):
        script.now += 1.0
        where = endpoint().id
        sample = EndpointSample(endpoint_id=where, sampled_at=script.now, waiting_requests=waiting)
        script.send(EndpointSampled(sample))
    for number in range(SLOTS + 2):
        script.send(RequestCancelled(RequestId(number)))
    assert script.shadow.is_idle
    script.arrive(99, priority=-1)
    assert script.counts[-1] == (WouldHave(held=1) if is_held else WouldHave(passed=1))


def test_what_servers_do_for_refused_requests_they_would_do_for_those_that_wait() -> None:
    script = ShadowScript(replace(OBSERVE, default_band=BandConfig(max_requests=1)))
    for number in range(SLOTS + 2):
        script.arrive(number)
    assert script.counts[0] == WouldHave(passed=SLOTS, held=1, rejected=1)
    script.now += 1.0
    script.send(RequestFinished(RequestId(SLOTS + 1)))
    assert script.counts[0].held_s == 1.0
    script.arrive(99)
    assert (script.counts[0].held, script.counts[0].rejected) == (2, 1)


def test_time_alone_expires_what_would_be_held() -> None:
    script = ShadowScript(replace(OBSERVE, default_ttl_s=5.0))
    for number in range(SLOTS + 1):
        script.arrive(number)
    due = script.shadow.next_wakeup()
    assert due == pytest.approx(script.now + 5.0)
    script.now += 5.0
    script.send(TimerFired())
    assert script.counts[0] == WouldHave(passed=SLOTS, held=1, expired=1, held_s=5.0)


def test_other_limits_may_be_tried_on_the_same_traffic() -> None:
    script = ShadowScript(OBSERVE)
    for number in range(SLOTS + 3):
        script.arrive(number)
    wider = replace(OBSERVE, detector=ConcurrencyDetectorConfig(mode="requests", max_concurrency=SLOTS + 2))
    script.now += 1.0
    script.controller.reconfigure(wider, script.now)
    script.shadow.reconfigure(wider, script.now)
    assert script.counts[0] == WouldHave(passed=SLOTS, held=3, held_s=2.0)


def test_a_shadow_of_a_busy_controller_knows_what_runs_and_counts_only_what_comes() -> None:
    script = Script(OBSERVE)
    for _ in range(SLOTS + 1):
        script.arrive()
    counts = {0: WouldHave(held=7)}  # of an earlier time in this mode
    shadow = Shadow.beside(script.controller, counts, script.now)
    assert counts == {0: WouldHave(held=7)}
    request = Request(id=RequestId(99))
    shadow.follow(RequestArrived(request), script.send(RequestArrived(request)), script.now)
    assert counts == {0: WouldHave(held=8)}


def test_what_is_refused_for_real_is_no_matter_of_observing() -> None:
    script = ShadowScript(OBSERVE)
    script.arrive(1, deadline_s=START_S - 1.0)
    script.arrive(2, endpoint_subset=frozenset())
    assert script.counts[0] == WouldHave()
