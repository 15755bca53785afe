"""Ejection for growing times, one probe back, and what counts as evidence."""

from extproc.config.endpoints import HealthConfig
from extproc.core.types import EndpointId
from extproc.runtime.health import Evidence, HealthState, HealthTracker

A, B = EndpointId("a"), EndpointId("b")
START = 1000.25


def tracker(*ids: EndpointId, **settings: float) -> HealthTracker:
    config = HealthConfig(**{"base_ejection_s": 5.0, "max_ejection_s": 20.0, **settings})  # type: ignore[arg-type]
    made = HealthTracker(config)
    for endpoint_id in ids:
        made.add(endpoint_id)
    return made


def eject(health: HealthTracker, endpoint_id: EndpointId, now: float) -> None:
    for _ in range(3):
        health.fail(endpoint_id, Evidence.UNREACHABLE, now)
    assert health.state(endpoint_id) is HealthState.EJECTED


def test_three_failures_in_a_row_eject_and_a_success_between_them_does_not() -> None:
    health = tracker(A)
    health.fail(A, Evidence.UNREACHABLE, START)
    health.fail(A, Evidence.UNREACHABLE, START)
    health.succeed(A, START, is_request=True)
    health.fail(A, Evidence.UNREACHABLE, START)
    health.fail(A, Evidence.UNREACHABLE, START)
    assert health.state(A) is HealthState.HEALTHY
    change = health.fail(A, Evidence.UNREACHABLE, START)
    assert change is not None
    assert (change.state, change.reason) == (
        HealthState.EJECTED,
        "3 failures in a row (unreachable): out for 5 s",
    )


def test_the_time_grows_with_each_failed_probe_up_to_the_limit() -> None:
    health, now, times = tracker(A), START, []
    eject(health, A, now)
    for _ in range(4):
        wakeup = health.next_wakeup()
        assert wakeup is not None
        times.append(wakeup - now)
        assert health.tick(wakeup - 0.001) == []
        now = wakeup
        assert [change.state for change in health.tick(now)] == [HealthState.PROBING]
        assert health.next_wakeup() is None
        health.fail(A, Evidence.UNREACHABLE, now)
    assert times == [5.0, 10.0, 20.0, 20.0]


def test_a_good_probe_brings_it_back_and_time_forgives() -> None:
    health = tracker(A)
    eject(health, A, START)
    health.tick(START + 5)
    change = health.succeed(A, START + 6, is_request=True)
    assert change is not None
    assert change.state is HealthState.HEALTHY
    health.succeed(A, START + 11, is_request=True)
    eject(health, A, START + 12)
    assert health.next_wakeup() == START + 12 + 5.0


def test_a_relapse_at_once_counts_as_the_next_ejection() -> None:
    health = tracker(A)
    eject(health, A, START)
    health.tick(START + 5)
    health.succeed(A, START + 6, is_request=True)
    eject(health, A, START + 7)
    assert health.next_wakeup() == START + 7 + 10.0


def test_what_the_scraper_cannot_reach_is_out_until_it_can() -> None:
    health = tracker(A)
    changes = [health.fail(A, Evidence.UNSCRAPABLE, START) for _ in range(3)]
    assert changes[2] is not None
    assert changes[2].reason.endswith("out until it is reached again, at most 20 s")
    assert health.next_wakeup() == START + 20.0
    change = health.succeed(A, START + 1, is_request=False)
    assert change is not None
    assert change.state is HealthState.PROBING


def test_a_scrape_does_not_bring_back_what_envoy_cannot_reach() -> None:
    health = tracker(A)
    eject(health, A, START)
    assert health.succeed(A, START + 1, is_request=False) is None
    assert health.state(A) is HealthState.EJECTED


def test_a_scrape_forgives_no_5xx() -> None:
    health = tracker(A, B)
    for _ in range(2):
        health.fail(A, Evidence.SERVER_ERROR, START)
        assert health.succeed(A, START, is_request=False) is None
    health.fail(A, Evidence.SERVER_ERROR, START)
    assert health.state(A) is HealthState.EJECTED
    assert health.succeed(A, START + 1, is_request=False) is None
    assert health.state(A) is HealthState.EJECTED


def test_a_poisonous_request_ejects_at_most_half_of_the_pool() -> None:
    health = tracker(A, B)
    for endpoint_id in (A, B):
        for _ in range(5):
            health.fail(endpoint_id, Evidence.SERVER_ERROR, START)
    assert health.state(A) is HealthState.EJECTED
    assert health.state(B) is HealthState.HEALTHY
    assert health.withheld() == [B]
    health.succeed(B, START, is_request=True)
    assert health.withheld() == []


def test_everyone_may_be_unreachable() -> None:
    health = tracker(A, B)
    eject(health, A, START)
    eject(health, B, START)


def test_late_answers_of_a_removed_endpoint_change_nothing() -> None:
    health = tracker(A)
    eject(health, A, START)
    health.remove(A)
    assert health.next_wakeup() is None
    assert health.fail(A, Evidence.UNREACHABLE, START) is None
    assert health.succeed(A, START, is_request=True) is None
    assert health.state(A) is None


def test_zero_failures_switches_ejection_off() -> None:
    health = tracker(A, consecutive_failures=0)
    for _ in range(10):
        health.fail(A, Evidence.UNREACHABLE, START)
    assert health.state(A) is HealthState.HEALTHY
