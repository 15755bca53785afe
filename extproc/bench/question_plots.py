"""The plots beside the open questions of seed 000: one SVG each, drawn from the cells that the text quotes.

Medians of the repeats with their minimum and maximum. It must not say what the figures mean: that is the
business of `questions`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from extproc.bench.claims.readers import WAVE
from extproc.bench.results import BEST, FLOOR_ALONE, SuiteResults
from extproc.bench.suites.kv_bound import BURSTS_OF_64, reserve_arm
from extproc.bench.svg import COLOURS, RangeRow, range_plot

BURSTS = "bursts of 32"


def hybrid(results: SuiteResults) -> str:
    """TTFT p50 by holdback, for each way to set the hybrid count's two limits."""
    settings = {
        "": "limit 100, cap 204,800",
        "cap 184,320: ": "limit 100, cap 10% lower",
        "cap 194,560: ": "limit 100, cap 5% lower",
        "cap 215,040: ": "limit 100, cap 5% higher",
        "cap 225,280: ": "limit 100, cap 10% higher",
        "requests 32: ": "limit 32, cap 204,800",
    }
    rows = [
        _ttft(results, BURSTS, f"{prefix}{arm}", 0.5, f"{what}: {arm}", number)
        for number, (prefix, what) in enumerate(settings.items())
        for arm in ("eviction", "holdback 0.9", "holdback 0.8")
    ]
    return _plot("Hybrid counting, bursts of 32: interactive TTFT p50", rows, "s")


def deadlines(results: SuiteResults) -> str:
    """Share of batch deadlines met, by arm and interactive load."""
    rows = [
        _row(
            f"{load}: {arm}",
            results.per_run(load, arm, WAVE, lambda run: run.deadlines_met_fraction),
            COLOURS[number],
        )
        for load in ("1/s", "2/s", "4/s")
        for number, arm in enumerate(("none", "eviction", "eviction, by deadline", BEST))
    ]
    return _plot("Share of all batch deadlines met", rows, "", is_log=False)


def token_cap(results: SuiteResults) -> str:
    """TTFT p50 under three token caps, steady and in bursts."""
    caps = {"cap 153,600: ": "153,600", "": "204,800", "cap 256,000: ": "256,000"}
    rows = [
        _ttft(results, load, f"{prefix}{arm}", 0.5, f"{load}, cap {cap}: {arm}", number)
        for load in ("2/s", BURSTS)
        for number, (prefix, cap) in enumerate(caps.items())
        for arm in ("eviction", "holdback 0.8")
    ]
    return _plot("Token counting: interactive TTFT p50 by token cap", rows, "s")


def lost_work(results: SuiteResults) -> str:
    """Tokens redone without resume, by the gap between bursts."""
    loads = ("bursts every 10 s", "bursts every 15 s", BURSTS, "bursts every 30 s")
    rows = [
        _row(
            f"{load} (every 20 s)" if load == BURSTS else load,
            results.per_run(load, "eviction, no resume", WAVE, lambda run: float(run.tokens_redone)),
            COLOURS[1],
        )
        for load in loads
    ]
    return _plot("Tokens redone without resume, by the gap between bursts", rows, "tokens")


def bursts_of_64(results: SuiteResults) -> str:
    """TTFT p95 of the load alone and of `best`, by how much of the KV cache it may keep free."""
    arms = {
        FLOOR_ALONE: FLOOR_ALONE,
        **{reserve_arm(bound): f"reserve up to {bound:g}" for bound in (0.25, 0.4)},
        BEST: "reserve up to 0.5 (best)",
        reserve_arm(0.75): "reserve up to 0.75",
    }
    rows = [
        _ttft(results, BURSTS_OF_64, arm, 0.95, label, number)
        for number, (arm, label) in enumerate(arms.items())
    ]
    return _plot("32B, bursts of 64: interactive TTFT p95", rows, "s")


def _ttft(
    results: SuiteResults, load: str, arm: str, fraction: float, label: str, colour: int
) -> RangeRow | None:
    values = results.ttft_per_run(load, arm, WAVE, fraction, results.suite.measured[0])
    return _row(label, values, COLOURS[colour])


def _row(label: str, values: Sequence[float], colour: str) -> RangeRow | None:
    if not values:
        return None
    ordered = sorted(values)
    return RangeRow(label, ordered[0], ordered[len(ordered) // 2], ordered[-1], colour)


def _plot(title: str, rows: Iterable[RangeRow | None], unit: str, *, is_log: bool = True) -> str:
    """Empty when none of its cells was run."""
    return range_plot(title, [row for row in rows if row is not None], unit=unit, is_log=is_log)
