"""Figures of runs and over repeats, computed by hand."""

from __future__ import annotations

import math

import pytest

from extproc.bench.checks import absolute, ordering
from extproc.bench.claims.readers import alike, below, both, p95_runs, runs
from extproc.bench.compare import compare_summaries
from extproc.bench.results import BEST, FLOOR_ALONE, FLOOR_SHARED, SuiteResults
from extproc.bench.suite import Setting
from extproc.bench.summary_file import summarize_suite
from extproc.bench.targets import evaluate_targets
from extproc.workload.record import RequestOutcome
from tests.unit.bench.runs import batch, interactive, outcome, toy_suite

WAVE = Setting.WAVE


def test_the_window_closes_with_the_batch() -> None:
    run = outcome(
        "eviction", 0, [batch(0, 9.0), batch(1, 11.0), interactive(0, 5.0, 0.2), interactive(1, 12.0, 0.1)]
    )
    assert run.batch_time_s == 10.0
    assert run.ttfts("interactive") == pytest.approx([0.2])
    assert run.ttfts("interactive", until_s=20.0) == pytest.approx([0.2, 0.1])


def test_what_never_got_a_token_counts_and_what_was_refused_does_not() -> None:
    refused = interactive(2, 3.0, None, outcome=RequestOutcome.REJECTED, status=503)
    run = outcome(
        "eviction", 0, [batch(0, 9.0), interactive(0, 2.0, 0.5), interactive(1, 2.5, None), refused]
    )
    assert run.ttfts("interactive") == [0.5, math.inf]
    assert run.rejected(("interactive",)) == 1


def test_an_unfinished_batch_takes_for_ever() -> None:
    run = outcome("eviction", 0, [batch(0, 9.0), batch(1, None)])
    assert run.batch_time_s == math.inf
    assert math.isnan(outcome("floor-alone", 0, [interactive(0, 2.0, 0.5)]).batch_time_s)


def test_deadlines_evictions_and_redone_tokens() -> None:
    records = [
        batch(0, 9.0, deadline_s=10.0, evictions=2, redone_tokens=5, refilled_tokens=7),
        batch(1, 12.0, deadline_s=10.0),
    ]
    run = outcome("eviction", 0, records)
    assert run.deadlines_met_fraction == 0.5
    assert (run.evictions, run.tokens_redone, run.tokens_refilled) == (2, 5, 7)


def test_the_network_is_the_same_in_every_arm() -> None:
    records = [batch(0, 9.0), interactive(0, 2.0, 0.5)]
    first, second = outcome("a", 3, records), outcome("b", 3, records)
    seen = first.ttfts("interactive", network_s=(0.06, 0.11))
    assert seen == second.ttfts("interactive", network_s=(0.06, 0.11))
    assert 0.56 <= seen[0] <= 0.61


def _paired() -> SuiteResults:
    suite = toy_suite(FLOOR_ALONE, FLOOR_SHARED, "eviction", BEST)
    made = []
    for seed in range(3):
        base = 0.1 * (seed + 1)
        alone = [interactive(index, 2.0 + index, base) for index in range(4)]
        made.append(outcome(FLOOR_ALONE, seed, alone))
        for arm, factor, end_s in ((FLOOR_SHARED, 1.0, 10.0), ("eviction", 2.0, 10.0), (BEST, 1.02, 10.2)):
            taken = [interactive(index, 2.0 + index, base * factor) for index in range(4)]
            made.append(outcome(arm, seed, [batch(0, end_s), *taken]))
    return SuiteResults(suite, made)


def test_pooled_and_paired_figures() -> None:
    results = _paired()
    assert results.ttft("1/s", "eviction", WAVE, 0.5) == pytest.approx(0.4)
    ratio = results.ttft_ratio("1/s", BEST, FLOOR_SHARED, WAVE, 0.95)
    assert ratio.value == pytest.approx(1.02)
    assert ratio.high - ratio.low < 1e-9
    assert results.ratio("1/s", BEST, "eviction", WAVE, lambda run: run.batch_time_s) == pytest.approx(
        9.2 / 9.0
    )
    assert math.isnan(results.ttft("1/s", "unknown", WAVE, 0.5))


def test_targets_name_what_is_met_and_what_is_not() -> None:
    rows = {row.what: row for row in evaluate_targets(_paired())}
    assert rows["interactive TTFT p50 over floor-shared"].holds
    assert rows["batch time over eviction"].holds
    assert rows["tokens redone"].holds
    assert rows["KV preemptions"].holds
    assert "evictions over eviction" not in rows  # nobody evicted anything


def test_checks() -> None:
    results = _paired()
    exact = absolute("p50", 0.4, lambda given: given.ttft("1/s", "eviction", WAVE, 0.5))(results)
    assert exact.holds
    assert exact.ratio == pytest.approx(1.0)
    far = absolute("p50", 4.0, lambda given: given.ttft("1/s", "eviction", WAVE, 0.5), miss_reason="why")(
        results
    )
    assert not far.holds
    assert far.reason == "why"
    missing = absolute("p50", 4.0, lambda given: math.nan)(results)
    assert missing.reason == "the cell was not run"


def test_an_ordering_must_hold_in_every_repeat_and_in_one_at_least() -> None:
    results = _paired()
    faster = below(p95_runs("1/s", BEST), p95_runs("1/s", "eviction"))
    assert ordering("best is faster", "yes", faster)(results).holds
    slower = below(p95_runs("1/s", "eviction"), p95_runs("1/s", BEST))
    assert ordering("eviction is faster", "no", slower)(results).ours == "0 of 3 repeats"
    never_run = below(p95_runs("1/s", "unknown"), p95_runs("1/s", BEST))
    assert not ordering("nothing", "no", never_run)(results).holds
    same = alike(p95_runs("1/s", BEST), p95_runs("1/s", FLOOR_SHARED), within=0.05)
    assert both(faster, same)(results) == [True, True, True]
    times = runs("1/s", BEST, lambda run: run.batch_time_s)
    assert times(results) == pytest.approx([9.2, 9.2, 9.2])


def test_summary_and_comparison() -> None:
    summary = summarize_suite(_paired(), [])
    cell = summary["arms"]["best @ 1/s (wave)"]  # type: ignore[index]
    assert cell["setting"] == "wave"
    assert cell["floor_shared"]["ttft_p95_s"] is not None
    assert cell["batch_time_s"] == pytest.approx(9.2)
    assert cell["deadlines_met"] is None
    assert all(row.agrees for row in compare_summaries(summary, summary, within=0.0))
    other = summarize_suite(_paired(), [])
    other["arms"]["best @ 1/s (wave)"]["batch_time_s"] = 20.0  # type: ignore[index]
    disagreeing = [row for row in compare_summaries(summary, other, within=0.2) if not row.agrees]
    assert [(row.cell, row.figure) for row in disagreeing] == [("best @ 1/s (wave)", "batch_time_s")]
