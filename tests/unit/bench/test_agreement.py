"""Local against virtual, on hand-made runs."""

from __future__ import annotations

import dataclasses

import pytest

from extproc.bench.agreement import COMPARISONS, Agreement, agreement_rows, probe_suite, with_path
from extproc.bench.outcome import RunOutcome
from extproc.bench.suite import Suite
from extproc.bench.suites.catalogue import SUITES
from extproc.bench.virtual import build_scenario, run_virtual
from extproc.workload.record import RequestOutcome, RequestRecord

SUITE = SUITES["holdback-requests"]
CELL = COMPARISONS[0].cell


def run(ttft_s: float, evictions: int) -> RunOutcome:
    rows = []
    for name, priority, first_s, cuts in (("interactive", 10, ttft_s, 0), ("batch", -1, 0.5, evictions)):
        rows.append(
            RequestRecord(
                traffic_class=name,
                index=0,
                priority=priority,
                fairness_id=name,
                intended_s=1.0,
                prompt_tokens=1,
                first_token_s=1.0 + first_s,
                end_s=50.0,
                outcome=RequestOutcome.COMPLETED,
                evictions=cuts,
            )
        )
    return RunOutcome(cell=CELL, seed=0, records=rows, duration_s=60.0)


def figures(local: RunOutcome, virtual: RunOutcome, *, suite: Suite = SUITE) -> dict[str, bool]:
    rows = agreement_rows(suite, local, virtual, virtual, within=0.2)
    return {row.figure: row.agrees for row in rows if row.is_judged}


def test_a_shared_network_cannot_hide_a_difference() -> None:
    found = figures(run(0.012, 85), run(0.023, 85))
    assert found["interactive TTFT p50 with the client's network, ms"]
    assert not found["interactive TTFT p50, ms"]


def test_evictions_need_agree_within_the_share_or_three() -> None:
    name = "evictions"
    assert figures(run(0.02, 80), run(0.02, 99))[name]
    assert not figures(run(0.02, 80), run(0.02, 120))[name]
    assert figures(run(0.02, 0), run(0.02, 3))[name]


def test_an_invalid_run_agrees_with_nothing() -> None:
    row = agreement_rows(SUITE, run(1, 1), run(1, 1), run(1, 1), within=0.2)
    good = Agreement(speed=1.0, path_s=0.0, rows=tuple(row), invalid="")
    assert good.agrees
    assert not dataclasses.replace(good, invalid="the generator lagged").agrees


def test_the_path_takes_the_place_of_the_assumed_one() -> None:
    delays = build_scenario(with_path(SUITE, 0.010), CELL, 0).delays
    assert delays.gateway_s == pytest.approx(0.005)
    assert delays.front_end_s == SUITE.latencies.front_end_s


@pytest.mark.parametrize("comparison", COMPARISONS, ids=lambda each: each.suite)
def test_probes_meet_an_idle_engine(comparison: object) -> None:
    what = next(each for each in COMPARISONS if each is comparison)
    suite = probe_suite(SUITES[what.suite], what.cell)
    cell = dataclasses.replace(what.cell, load="probes")
    near, far = (run_virtual(with_path(suite, path_s), cell, 0) for path_s in (0.0, 0.010))
    name = suite.measured[0]
    assert len(near.records) == 40
    for one, other in zip(near.ttfts(name), far.ttfts(name), strict=True):
        assert other - one == pytest.approx(0.010, abs=1e-6)
