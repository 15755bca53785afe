"""The claims of seed 002. Its report fixes neither model nor request sizes nor rates, so most absolute
figures have a stated band of a factor of three; the orderings must hold in every repeat.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

from extproc.bench.checks import Check, absolute, ordering
from extproc.bench.claims.readers import (
    STEADY,
    PerRun,
    above,
    below,
    both,
    median_p95,
    p95_runs,
    runs,
)
from extproc.bench.outcome import RunOutcome
from extproc.bench.results import SuiteResults
from extproc.bench.statistics import percentile
from extproc.workload.record import RequestOutcome

LOAD = "surge"
_UNKNOWN_LOAD = "the seed names neither the request sizes nor how far its surge exceeds the engine"


def _p95(figure: str, seed_ms: float, load: str, arm: str, name: str) -> Check:
    """A p95 in milliseconds, within a factor of three."""
    read = median_p95(load, arm, name, STEADY)
    return absolute(
        f"{figure}, ms",
        seed_ms,
        lambda results: read(results) * 1000.0,
        band=(seed_ms / 3, seed_ms * 3),
        miss_reason=_UNKNOWN_LOAD,
    )


def _p95_ms(load: str, arm: str, name: str) -> Callable[[SuiteResults], float]:
    return lambda results: median_p95(load, arm, name, STEADY)(results) * 1000.0


def _p95s(load: str, arm: str, name: str) -> PerRun:
    return p95_runs(load, arm, name, STEADY)


def _rising(load: str, arm: str, names: Sequence[str]) -> Callable[[SuiteResults], list[bool]]:
    """Per repeat: p95 rises along the classes."""
    return both(
        *(
            below(_p95s(load, arm, first), _p95s(load, arm, second))
            for first, second in itertools.pairwise(names)
        )
    )


def _rate(run: RunOutcome) -> float:
    return run.completed_per_s()


def _p99(load: str, arm: str, name: str) -> Callable[[SuiteResults], float]:
    return lambda results: results.ttft(load, arm, STEADY, 0.99, name) * 1000.0


def _mean_rate(results: SuiteResults, load: str, arm: str) -> float:
    return results.mean(load, arm, STEADY, _rate)


ENGINE_CAPACITY: tuple[Check, ...] = (
    absolute(
        "requests/s that 192 instead of 128 active requests add",
        1.4,
        lambda results: (
            _mean_rate(results, "192 active", "8192 batched tokens")
            - _mean_rate(results, "128 active", "8192 batched tokens")
        ),
        is_calibration=True,
    ),
    *(
        absolute(
            f"TTFT p99 with {active} active, ms",
            seed,
            _p99(f"{active} active", "8192 batched tokens", "load"),
            is_calibration=True,
        )
        for active, seed in ((128, 1888.0), (192, 2613.0))
    ),
    ordering(
        "8,192 batched tokens: highest throughput of the three settings",
        "highest throughput, lowest p95",
        both(
            *(
                below(
                    runs("192 active", f"{tokens} batched tokens", _rate, STEADY),
                    runs("192 active", "8192 batched tokens", _rate, STEADY),
                )
                for tokens in (2048, 16384)
            )
        ),
        miss_reason="a step's cost is linear in its tokens in this model: what makes small or very large "
        "steps "
        "inefficient on a GPU is not in it, and the three settings differ by less than 1%",
    ),
)

_TWO, _MIXED = "two tiers", "mixed sizes"


def _p95_change(first: str, second: str, name: str) -> Callable[[SuiteResults], float]:
    one, other = median_p95(_TWO, first, name, STEADY), median_p95(_TWO, second, name, STEADY)
    return lambda results: (one(results) - other(results)) * 1000.0


def _rate_change(first: str, second: str) -> Callable[[SuiteResults], float]:
    return lambda results: _mean_rate(results, _TWO, first) / _mean_rate(results, _TWO, second) - 1.0


ADMISSION_LIMITS: tuple[Check, ...] = (
    ordering(
        "limit 128 has a lower premium p95 than 160",
        "-363 ms",
        below(_p95s(_TWO, "requests 128", "premium"), _p95s(_TWO, "requests 160", "premium")),
    ),
    absolute(
        "premium p95 of limit 128 less that of 160, ms",
        -363.0,
        _p95_change("requests 128", "requests 160", "premium"),
        band=(-1089.0, -1.0),
        miss_reason=_UNKNOWN_LOAD,
    ),
    absolute(
        "throughput of limit 128 over 160, change",
        -0.029,
        _rate_change("requests 128", "requests 160"),
        band=(-0.06, 0.01),
        miss_reason=_UNKNOWN_LOAD,
    ),
    ordering(
        "limit 48 has the lowest premium p95",
        "lowest",
        both(
            *(
                below(_p95s(_TWO, "requests 48", "premium"), _p95s(_TWO, f"requests {limit}", "premium"))
                for limit in (96, 128, 160)
            )
        ),
        miss_reason="its p50 is the lowest (0.12 s against 0.13 to 0.14); its p95 is a tenth higher, since "
        "with 48 in flight a place becomes free less often",
    ),
    ordering(
        "limit 48 makes standard wait longest",
        "standard waits",
        below(_p95s(_TWO, "requests 128", "standard"), _p95s(_TWO, "requests 48", "standard")),
    ),
    ordering(
        "queue depth 8 has a lower p95 than 5",
        "-256 ms, throughput -1.6%",
        below(_p95s(_TWO, "queue depth 8", "premium"), _p95s(_TWO, "queue depth 5", "premium")),
        miss_reason="a deeper engine queue can only add waiting in this model; the seed's own figure goes "
        "against "
        "its other finding that a reactive signal adds latency, and rests on calibration runs",
    ),
    ordering(
        "KV 0.8 has a lower p95 than 0.75",
        "lower p95",
        below(_p95s(_TWO, "KV 0.8", "standard"), _p95s(_TWO, "KV 0.75", "standard")),
        miss_reason="KV does not fill to these thresholds with the sizes assumed here",
    ),
    ordering(
        "exact input tokens serve more requests than counts, the output estimate fewer",
        "21.4 > 18.8 > 6.8 requests/s",
        both(
            below(runs(_MIXED, "requests 128", _rate, STEADY), runs(_MIXED, "input tokens", _rate, STEADY)),
            below(
                runs(_MIXED, "input + output estimate", _rate, STEADY),
                runs(_MIXED, "requests 128", _rate, STEADY),
            ),
        ),
        miss_reason="the engine runs 128 sequences whatever the signal, so token counts cannot exceed a "
        "request "
        "limit of 128 here; the seed's request limit in this test is not named",
    ),
    absolute(
        "requests/s with request counts",
        18.8,
        lambda results: _mean_rate(results, _MIXED, "requests 128"),
        miss_reason=_UNKNOWN_LOAD,
    ),
    absolute(
        "requests/s with input tokens",
        21.4,
        lambda results: _mean_rate(results, _MIXED, "input tokens"),
        miss_reason=_UNKNOWN_LOAD,
    ),
    absolute(
        "requests/s with input + output estimate",
        6.8,
        lambda results: _mean_rate(results, _MIXED, "input + output estimate"),
        miss_reason=_UNKNOWN_LOAD,
    ),
    *(
        absolute(
            f"TTFT p95 of {name} prompts, {arm}, ms",
            seed,
            _p95_ms(_MIXED, arm, name),
            miss_reason="the seed names neither the sizes, shares nor concurrency of the three classes",
        )
        for arm, figures in (
            ("requests 128", (8419.0, 5659.0, 4163.0)),
            ("input tokens", (6621.0, 5213.0, 6352.0)),
            ("input + output estimate", (41909.0, 27952.0, 13962.0)),
        )
        for name, seed in zip(("short", "medium", "long"), figures, strict=True)
    ),
)

_TIERS = ("platinum", "gold", "silver", "bronze")
PRIORITY_TIERS: tuple[Check, ...] = (
    *(
        _p95(f"surge TTFT p95 of {name}", seed, LOAD, "requests 128", name)
        for name, seed in zip(_TIERS, (404.0, 511.0, 656.0, 13264.0), strict=True)
    ),
    ordering("higher tiers wait less", "404 < 511 < 656 < 13,264 ms", _rising(LOAD, "requests 128", _TIERS)),
)

_ISOLATION = ("realtime", "standard", "batch")
BATCH_ISOLATION: tuple[Check, ...] = (
    *(
        _p95(f"surge TTFT p95 of {name}", seed, LOAD, "requests 128", name)
        for name, seed in zip(_ISOLATION, (442.0, 515.0, 13077.0), strict=True)
    ),
    ordering("batch absorbs the wait", "442 < 515 < 13,077 ms", _rising(LOAD, "requests 128", _ISOLATION)),
)

CONSOLIDATION: tuple[Check, ...] = (
    *(
        _p95(f"surge TTFT p95 of {name}, {arm}", seed, LOAD, arm, name)
        for arm, figures in (
            ("requests 128", (509.0, 556.0)),
            ("queue depth 2", (4711.0, 4567.0)),
            ("queue depth 5", (5117.0, 4906.0)),
        )
        for name, seed in zip(("realtime-a", "realtime-b"), figures, strict=True)
    ),
    *(
        ordering(
            f"the request limit protects {name} sooner than the engine's queue",
            "0.5 s against 4.5 to 5.1 s",
            both(
                *(
                    below(_p95s(LOAD, "requests 128", name), _p95s(LOAD, f"queue depth {depth}", name))
                    for depth in (2, 5)
                )
            ),
        )
        for name in ("realtime-a", "realtime-b")
    ),
)

_FAIR = "requests 128"
SAME_PRIORITY_FAIRNESS: tuple[Check, ...] = (
    *(
        _p95(f"surge TTFT p95 of {name}", seed, LOAD, _FAIR, name)
        for name, seed in (("burster-a", 12097.0), ("peer-b", 527.0), ("peer-c", 570.0))
    ),
    *(
        _p95(f"surge TTFT p95 of {name}, queue depth 2", seed, LOAD, "queue depth 2", name)
        for name, seed in (("peer-b", 5023.0), ("peer-c", 4519.0))
    ),
    ordering(
        "round robin keeps peers moving while one tenant bursts",
        "527 and 570 against 12,097 ms",
        both(
            *(
                below(_p95s(LOAD, _FAIR, peer), _p95s(LOAD, _FAIR, "burster-a"))
                for peer in ("peer-b", "peer-c")
            )
        ),
    ),
    ordering(
        "the engine's queue as a signal protects the peers worse",
        "5,023 and 4,519 ms",
        both(
            *(
                below(_p95s(LOAD, _FAIR, peer), _p95s(LOAD, "queue depth 2", peer))
                for peer in ("peer-b", "peer-c")
            )
        ),
    ),
)


def _p95_between(start_s: float, end_s: float) -> Callable[[RunOutcome], float]:
    return lambda run: percentile(run.ttfts("realtime", window_s=(start_s, end_s)), 0.95) * 1000.0


_AT = ("batch at 30 s", "requests 128")
BATCH_INTERFERENCE: tuple[Check, ...] = (
    absolute(
        "realtime TTFT p95 before batch, ms",
        133.0,
        lambda results: results.mean(*_AT, STEADY, _p95_between(0.0, 30.0)),
        band=(133.0 / 3, 133.0 * 3),
        miss_reason=_UNKNOWN_LOAD,
    ),
    absolute(
        "realtime TTFT p95 after batch occupied the engine, ms",
        15378.0,
        lambda results: results.mean(*_AT, STEADY, _p95_between(30.0, 60.0)),
        band=(15378.0 / 3, 15378.0 * 3),
        miss_reason=_UNKNOWN_LOAD,
    ),
    ordering(
        "admission control cannot reclaim what runs: over 20 times worse",
        "133 to 15,378 ms",
        below(
            runs(*_AT, _p95_between(0.0, 30.0), STEADY),
            runs(*_AT, _p95_between(30.0, 60.0), STEADY),
            factor=20.0,
        ),
    ),
)

MIXED_PRODUCTION: tuple[Check, ...] = (
    ordering(
        "request counts give premium the lower p95",
        "lowered premium p95",
        below(_p95s(LOAD, "requests 128", "premium"), _p95s(LOAD, "input tokens", "premium")),
        miss_reason="a limit of 128 mean prompts lets in about what a limit of 128 requests does",
    ),
    ordering(
        "input tokens spread the wait more evenly",
        "more even latency across tiers",
        below(
            lambda results: _spread(results, "input tokens"), lambda results: _spread(results, "requests 128")
        ),
        miss_reason="a limit of 128 mean prompts lets in about what a limit of 128 requests does",
    ),
)


def _spread(results: SuiteResults, arm: str) -> list[float]:
    """Batch p95 over premium p95, per repeat."""
    pairs = zip(_p95s(LOAD, arm, "batch")(results), _p95s(LOAD, arm, "premium")(results), strict=True)
    return [batch / premium for batch, premium in pairs]


def _neither(results: SuiteResults) -> list[bool]:
    """Does each signal win at least one of the paired seeds?"""
    counts = _p95s(LOAD, "requests 128", "realtime")(results)
    tokens = _p95s(LOAD, "input tokens", "realtime")(results)
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
    return _mean_rate(results, f"{replicas} replicas", f"pool of {replicas}") / replicas


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
            results.mean(*_LONG, STEADY, _p95_between(720.0, 840.0))
            / results.mean(*_LONG, STEADY, _p95_between(0.0, 120.0))
        ),
    ),
    ordering(
        "both surges raise p95, and it comes back",
        "299 ms to 290 ms",
        both(
            below(
                runs(*_LONG, _p95_between(720.0, 840.0), STEADY),
                runs(*_LONG, _p95_between(120.0, 270.0), STEADY),
            ),
            below(
                runs(*_LONG, _p95_between(0.0, 120.0), STEADY),
                runs(*_LONG, _p95_between(420.0, 570.0), STEADY),
            ),
        ),
    ),
)

PREFIX_ROUTING: tuple[Check, ...] = (
    *(
        ordering(
            f"prefix-aware routing helps {name}",
            text,
            below(_p95s(LOAD, "prefix-aware", name), _p95s(LOAD, "random", name)),
        )
        for name, text in (("realtime", "1,195 to 936 ms"), ("batch", "49,763 to 44,462 ms"))
    ),
    ordering(
        "prefix-aware routing slows standard long-context traffic",
        "10,324 to 12,635 ms",
        below(_p95s(LOAD, "random", "standard"), _p95s(LOAD, "prefix-aware", "standard")),
        miss_reason="the seed saw it in runs that it calls highly variable; with the prefixes assumed here "
        "long prompts gain most from their cache",
    ),
    ordering(
        "prefixes are found more often",
        "cache on",
        above(lambda results: runs(LOAD, "prefix-aware", _cached, STEADY)(results), 0.0),
    ),
)


def _cached(run: RunOutcome) -> float:
    return float(sum(record.cached_tokens for record in run.records))


CLAIMS_002: dict[str, tuple[Check, ...]] = {
    "engine-capacity": ENGINE_CAPACITY,
    "admission-limits": ADMISSION_LIMITS,
    "priority-tiers": PRIORITY_TIERS,
    "batch-isolation": BATCH_ISOLATION,
    "consolidation": CONSOLIDATION,
    "same-priority-fairness": SAME_PRIORITY_FAIRNESS,
    "batch-interference": BATCH_INTERFERENCE,
    "mixed-production": MIXED_PRODUCTION,
    "long-context": LONG_CONTEXT,
    "pool-scaling": POOL_SCALING,
    "long-stability": LONG_STABILITY,
    "prefix-routing": PREFIX_ROUTING,
}
