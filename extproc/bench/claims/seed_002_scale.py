"""The claims of seed 002 about workload shapes, scale, recovery and routing."""

from __future__ import annotations

import math
from collections.abc import Callable

from extproc.bench.checks import Check, absolute, ordering
from extproc.bench.claims.readers import STEADY, above, below, both, runs
from extproc.bench.claims.seed_002_readers import (
    LOAD,
    mean_rate,
    p95s,
    realtime_p95_between,
    surge_p95,
)
from extproc.bench.outcome import RunOutcome
from extproc.bench.results import SuiteResults
from extproc.workload.record import RequestOutcome

MIXED_PRODUCTION: tuple[Check, ...] = (
    ordering(
        "request counts give premium the lower p95",
        "lowered premium p95",
        below(p95s(LOAD, "requests 128", "premium"), p95s(LOAD, "input tokens", "premium")),
    ),
    ordering(
        "input tokens spread the wait more evenly",
        "more even latency across tiers",
        below(
            lambda results: _spread(results, "input tokens"), lambda results: _spread(results, "requests 128")
        ),
    ),
    *(
        surge_p95(f"surge TTFT p95 of {name}, {arm}", seed, LOAD, arm, name, is_calibration=True)
        for arm, figures in (
            ("requests 128", (1994.0, 2745.0, 5150.0, 8654.0)),
            ("input tokens", (2914.0, 2836.0, 3076.0, 2832.0)),
        )
        for name, seed in zip(("premium", "standard", "economy", "batch"), figures, strict=True)
    ),
)


def _spread(results: SuiteResults, arm: str) -> list[float]:
    """Batch p95 over premium p95, per repeat."""
    pairs = zip(p95s(LOAD, arm, "batch")(results), p95s(LOAD, arm, "premium")(results), strict=True)
    return [batch / premium for batch, premium in pairs]


def _neither(results: SuiteResults) -> list[bool]:
    """Does each signal win at least one of the paired seeds?"""
    counts = p95s(LOAD, "requests 128", "realtime")(results)
    tokens = p95s(LOAD, "input tokens", "realtime")(results)
    wins = [a < b for a, b in zip(counts, tokens, strict=False)]
    return [any(wins) and not all(wins)] if wins else []


LONG_CONTEXT: tuple[Check, ...] = (
    ordering(
        "neither signal is consistently faster across eight paired seeds",
        "neither",
        _neither,
        miss_reason="one signal wins all seeds here: with these sizes it lets less work in",
    ),
)


def _refused(run: RunOutcome) -> float:
    return float(sum(record.outcome is RequestOutcome.REJECTED for record in run.records))


def _mean_refused(replicas: int) -> Callable[[SuiteResults], float]:
    return lambda results: results.mean(f"{replicas} replicas", f"pool of {replicas}", STEADY, _refused)


def _per_replica(results: SuiteResults, replicas: int) -> float:
    return mean_rate(results, f"{replicas} replicas", f"pool of {replicas}") / replicas


def _scaling_spread(results: SuiteResults) -> float:
    rates = [_per_replica(results, replicas) for replicas in (1, 2, 4)]
    return math.nan if any(math.isnan(rate) for rate in rates) else max(rates) / min(rates) - 1.0


POOL_SCALING: tuple[Check, ...] = (
    absolute(
        "requests/s per GPU, spread over 1, 2, 4 replicas",
        0.006,
        _scaling_spread,
        band=(0.0, 0.03),
        miss_reason="a larger pool pools its bursts: per-GPU rates differ by what a queue at the end leaves",
    ),
    *(
        absolute(
            f"429 answers with {replicas} replicas",
            seed,
            _mean_refused(replicas),
            band=(0.0, 10.0),
        )
        for replicas, seed in ((1, 5.0), (2, 1.0), (4, 0.0))
    ),
)


def _preemptions(run: RunOutcome) -> float:
    return float(run.preemptions)


_LONG = (LOAD, "requests 128")
LONG_STABILITY: tuple[Check, ...] = (
    absolute(
        "KV preemptions", 0.0, lambda results: results.mean(*_LONG, STEADY, _preemptions), band=(0.0, 0.0)
    ),
    absolute(
        "final p95 over the baseline's",
        290.0 / 299.0,
        lambda results: (
            results.mean(*_LONG, STEADY, realtime_p95_between(720.0, 840.0))
            / results.mean(*_LONG, STEADY, realtime_p95_between(0.0, 120.0))
        ),
    ),
    ordering(
        "both surges raise p95, and it comes back",
        "299 ms to 290 ms",
        both(
            below(
                runs(*_LONG, realtime_p95_between(720.0, 840.0), STEADY),
                runs(*_LONG, realtime_p95_between(120.0, 270.0), STEADY),
            ),
            below(
                runs(*_LONG, realtime_p95_between(0.0, 120.0), STEADY),
                runs(*_LONG, realtime_p95_between(420.0, 570.0), STEADY),
            ),
        ),
    ),
)

PREFIX_ROUTING: tuple[Check, ...] = (
    *(
        ordering(
            f"prefix-aware routing helps {name}",
            text,
            below(p95s(LOAD, "prefix-aware", name), p95s(LOAD, "random", name)),
        )
        for name, text in (("realtime", "1,195 to 936 ms"), ("batch", "49,763 to 44,462 ms"))
    ),
    ordering(
        "prefix-aware routing slows standard long-context traffic",
        "10,324 to 12,635 ms",
        below(p95s(LOAD, "random", "standard"), p95s(LOAD, "prefix-aware", "standard")),
        miss_reason="which replica the long prompts share with whom changes from run to run; the seed calls "
        "its own runs highly variable",
    ),
    ordering(
        "prefixes are found more often",
        "cache on",
        above(lambda results: runs(LOAD, "prefix-aware", _cached, STEADY)(results), 0.0),
    ),
)


def _cached(run: RunOutcome) -> float:
    return float(sum(record.cached_tokens for record in run.records))
