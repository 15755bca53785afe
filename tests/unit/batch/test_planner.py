"""Window, retries and circuit under literal times."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.batch.planner import (
    Circuit,
    Disruption,
    RetryPolicy,
    Window,
    interpret_end,
    is_away,
    line_deadline,
)
from extproc.client.answers import EndKind, StreamEnd
from extproc.config.batch import RetryConfig, WindowConfig


def end(kind: EndKind, status: int = 200, **headers: str) -> StreamEnd:
    return StreamEnd(
        kind=kind,
        at=0.0,
        status=status,
        headers={name.replace("_", "-"): value for name, value in headers.items()},
    )


@pytest.mark.parametrize(
    ("ended", "tokens", "expected"),
    [
        (end(EndKind.FINISHED), 5, Disruption.NONE),
        (end(EndKind.RESET), 5, Disruption.EVICTED),
        (end(EndKind.RESET), 0, Disruption.BROKEN),
        (end(EndKind.TRUNCATED), 5, Disruption.EVICTED),
        (end(EndKind.ABORTED), 5, Disruption.EVICTED),
        (end(EndKind.ERROR_EVENT), 5, Disruption.FAILED),
        (end(EndKind.STALLED), 5, Disruption.FAILED),
        (end(EndKind.UNREACHABLE, 0), 0, Disruption.UNREACHABLE),
        (end(EndKind.TIMED_OUT), 5, Disruption.LATE),
        (end(EndKind.REFUSED, 429, x_llm_d_request_dropped_reason="evicted"), 0, Disruption.EVICTED),
        (
            end(EndKind.REFUSED, 429, x_llm_d_request_dropped_reason="rejected-saturated"),
            0,
            Disruption.BACKPRESSURE,
        ),
        (end(EndKind.REFUSED, 504, x_llm_d_request_dropped_reason="rejected-deadline"), 0, Disruption.LATE),
        (end(EndKind.REFUSED, 503, retry_after="2"), 0, Disruption.BACKPRESSURE),
        (end(EndKind.REFUSED, 503), 0, Disruption.FAILED),
        (end(EndKind.REFUSED, 500), 0, Disruption.FAILED),
        (end(EndKind.REFUSED, 400), 0, Disruption.REFUSED),
        (end(EndKind.REFUSED, 404), 0, Disruption.REFUSED),
        (end(EndKind.REFUSED, 408), 0, Disruption.FAILED),
    ],
)
def test_what_an_end_means(ended: StreamEnd, tokens: int, expected: Disruption) -> None:
    assert interpret_end(ended, tokens) is expected


def delays(
    disruption: Disruption, repeats: int, after: float | None = None, *, resumes: bool = True
) -> list[float]:
    rng, policy = Random(7), RetryPolicy(RetryConfig(base_s=1.0, cap_s=20.0))
    drawn = [policy.delay_s(disruption, repeats, after, rng, resumes=resumes) for _ in range(300)]
    return [delay for delay in drawn if delay is not None]


def test_field_bug_131_backoff_doubles_up_to_its_cap_with_full_jitter() -> None:
    for repeats, most in ((1, 1.0), (2, 2.0), (4, 8.0), (7, 20.0)):
        drawn = delays(Disruption.FAILED, repeats)
        assert 0.0 <= min(drawn) < 0.1 * most
        assert 0.9 * most < max(drawn) <= most


def test_an_eviction_goes_on_at_once_only_where_tokens_are_kept() -> None:
    assert set(delays(Disruption.EVICTED, 9)) == {0.0}
    assert max(delays(Disruption.EVICTED, 4, resumes=False)) > 7.0


def test_field_bug_142_backpressure_waits_as_told_and_never_gives_up() -> None:
    drawn = delays(Disruption.BACKPRESSURE, 10_000, after=4.0)
    assert len(drawn) == 300
    assert 4.0 <= min(drawn) <= max(drawn) <= 5.0


def test_failures_and_breaks_are_limited_and_an_absent_server_is_not() -> None:
    assert delays(Disruption.FAILED, 8) == []
    assert len(delays(Disruption.FAILED, 7)) == 300
    assert set(delays(Disruption.BROKEN, 1)) == {0.0}
    assert len(delays(Disruption.BROKEN, 99)) == 300
    assert delays(Disruption.BROKEN, 100) == []
    assert len(delays(Disruption.UNREACHABLE, 10_000)) == 300
    assert delays(Disruption.REFUSED, 1) == []
    assert delays(Disruption.LATE, 1) == []


def test_window_never_lets_more_than_max_queued_wait_at_the_gateway() -> None:
    window = Window(WindowConfig(initial=64, max_queued=4), now=0.0)
    assert window.room(in_flight=0, queued=0, now=0.0) == 4
    assert window.room(in_flight=30, queued=3, now=0.0) == 1
    assert window.room(in_flight=30, queued=4, now=0.0) == 0


def test_window_doubles_until_the_first_pushback_then_grows_slowly() -> None:
    window = Window(WindowConfig(initial=4, max_queued=100), now=0.0)
    for _ in range(4):
        window.on_dispatched(0.01)
    assert window.limit == 8
    window.on_pushback(in_flight=8, now=1.0)
    assert window.limit == 6
    for _ in range(10):
        window.on_dispatched(0.01)
    assert window.limit == 6
    assert window.room(in_flight=6, queued=0, now=1.2) == 0
    assert window.room(in_flight=6, queued=0, now=1.6) == 1


def test_window_shrinks_once_per_interval_however_many_are_evicted_at_once() -> None:
    window = Window(WindowConfig(initial=100), now=0.0)
    for _ in range(32):
        window.on_pushback(in_flight=40, now=5.0)
    assert window.limit == 34
    window.on_pushback(in_flight=1, now=9.0)
    window.on_pushback(in_flight=0, now=15.0)
    assert window.limit == 1


def test_long_waits_stop_the_growth() -> None:
    window = Window(WindowConfig(initial=4, max_queued=100), now=0.0)
    window.on_dispatched(3.0)
    assert window.room(in_flight=4, queued=0, now=10.0) == 0
    window.on_dispatched(0.0)
    assert window.room(in_flight=5, queued=0, now=20.0) == 1


def test_unused_window_does_not_grow() -> None:
    window = Window(WindowConfig(initial=4, max_queued=100), now=0.0)
    for now in range(1, 50):
        window.room(in_flight=2, queued=0, now=float(now))
    assert window.limit == 4


def test_circuit_opens_probes_once_and_closes() -> None:
    circuit = Circuit(RetryPolicy(RetryConfig(base_s=10.0)), Random(3), threshold=2)
    circuit.on_unreachable(0.0)
    assert circuit.admits(0.0)
    circuit.on_unreachable(0.0)
    pause_ends = circuit.open_until
    assert 0.0 < pause_ends <= 10.0
    assert not circuit.admits(pause_ends - 0.01)
    assert circuit.admits(pause_ends)
    assert not circuit.admits(pause_ends)
    circuit.on_answer()
    assert circuit.is_closed
    assert circuit.admits(0.0)


def test_lines_of_a_job_follow_each_other_by_a_millisecond_and_end_at_its_deadline() -> None:
    deadlines = [line_deadline(1_000.0, 100.0, line, 5, wall_time=0.0) for line in range(1, 6)]
    assert deadlines == pytest.approx([999.996, 999.997, 999.998, 999.999, 1_000.0], abs=1e-9)
    assert deadlines[-1] == 1_000.0


@given(
    st.integers(1, 2_000_000),
    st.floats(0.001, 366 * 86_400.0),
    st.data(),
    st.floats(1_700_000_000, 1_900_000_000),
)
def test_a_line_is_never_due_after_its_job_nor_much_before(
    total: int, window_s: float, data: st.DataObject, created_at: float
) -> None:
    deadline = created_at + window_s
    line = data.draw(st.integers(1, total))
    wall_time = data.draw(st.floats(created_at, deadline))
    own = line_deadline(deadline, window_s, line, total, created_at)
    assert deadline - min(60.0, 0.01 * window_s) - 1e-6 <= own <= deadline
    assert line_deadline(deadline, window_s, line + 1, total + 1, created_at) >= own - 1e-6
    assert line_deadline(deadline, window_s, line, total, wall_time) in (own, deadline)
    assert line_deadline(deadline, window_s, total, total, created_at) == deadline
    if line < total:
        assert own <= line_deadline(deadline, window_s, line + 1, total, created_at)


def test_a_line_whose_own_deadline_has_passed_has_what_is_left_of_its_job() -> None:
    assert line_deadline(1_000.0, 100.0, 1, 500, wall_time=999.4) == pytest.approx(999.501)
    assert line_deadline(1_000.0, 100.0, 1, 500, wall_time=999.6) == 1_000.0


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        (end(EndKind.FINISHED), False),
        (end(EndKind.REFUSED, 503), True),
        (end(EndKind.REFUSED, 429), True),
        (end(EndKind.REFUSED, 404), False),
        (end(EndKind.REFUSED, 500), False),
        (end(EndKind.UNREACHABLE, 0), True),
        (end(EndKind.TIMED_OUT), True),
    ],
)
def test_a_server_that_may_answer_later_is_away(ended: StreamEnd, expected: bool) -> None:
    assert is_away(ended) is expected


def test_a_probe_that_was_not_sent_leaves_the_place_to_another() -> None:
    circuit = Circuit(RetryPolicy(RetryConfig(base_s=1.0, cap_s=1.0)), Random(1), threshold=1)
    circuit.on_unreachable(0.0)
    assert circuit.admits(5.0)
    assert not circuit.admits(5.0)
    circuit.on_unused()
    assert circuit.admits(5.0)
