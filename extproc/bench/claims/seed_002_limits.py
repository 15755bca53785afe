"""The claims of seed 002 about the suites that chose its settings: engine limits and admission limits."""

from __future__ import annotations

from collections.abc import Callable

from extproc.bench.checks import Check, absolute, ordering
from extproc.bench.claims.readers import STEADY, below, both, median_p95, runs
from extproc.bench.claims.seed_002_readers import (
    UNKNOWN_LOAD,
    mean_rate,
    p95_ms,
    p95s,
    p99_ms,
    rate,
)
from extproc.bench.outcome import RunOutcome
from extproc.bench.results import SuiteResults
from extproc.bench.suites.calibration import ALL_SIZES
from extproc.workload.record import RequestOutcome

ENGINE_CAPACITY: tuple[Check, ...] = (
    absolute(
        "requests/s that 192 instead of 128 active requests add",
        1.4,
        lambda results: (
            mean_rate(results, "192 active", "8192 batched tokens")
            - mean_rate(results, "128 active", "8192 batched tokens")
        ),
        is_calibration=True,
    ),
    *(
        absolute(
            f"TTFT p99 with {active} active, ms",
            seed,
            p99_ms(f"{active} active", "8192 batched tokens", "load"),
            is_calibration=True,
        )
        for active, seed in ((128, 1888.0), (192, 2613.0))
    ),
    ordering(
        "8,192 batched tokens: highest throughput and lowest p95 of 2,048, 4,096 and 8,192",
        "highest throughput, lowest p95 of three",
        both(
            *(
                below(
                    runs(ALL_SIZES, f"{tokens} batched tokens", rate, STEADY),
                    runs(ALL_SIZES, "8192 batched tokens", rate, STEADY),
                )
                for tokens in (2048, 4096)
            ),
            *(
                below(
                    p95s(ALL_SIZES, "8192 batched tokens", "load"),
                    p95s(ALL_SIZES, f"{tokens} batched tokens", "load"),
                )
                for tokens in (2048, 4096)
            ),
        ),
        is_calibration=True,
    ),
)

_TWO, _MIXED, _QUEUE, _KV = "two tiers", "mixed sizes", "waiting queue", "KV pressure"
_TIERS = ("premium", "standard")
_SENDS_S = 75.0
"""How long the clients of the first two loads send."""


def _p95_change(
    load: str, first: str, second: str, names: str | tuple[str, ...]
) -> Callable[[SuiteResults], float]:
    one, other = median_p95(load, first, names, STEADY), median_p95(load, second, names, STEADY)
    return lambda results: (one(results) - other(results)) * 1000.0


def _completed_within(seconds: float) -> Callable[[RunOutcome], float]:
    """Requests/s completed while the clients of a closed loop kept sending: not how it ran dry."""

    def figure(run: RunOutcome) -> float:
        ends = [each.end_s for each in run.records if each.outcome is RequestOutcome.COMPLETED]
        return sum(end is not None and end < seconds for end in ends) / seconds

    return figure


_busy_rate = _completed_within(_SENDS_S)


def _sustained(results: SuiteResults, load: str, arm: str, seconds: float = _SENDS_S) -> float:
    return results.mean(load, arm, STEADY, _completed_within(seconds))


ADMISSION_LIMITS: tuple[Check, ...] = (
    ordering(
        "limit 128 has a lower premium p95 than 160",
        "-363 ms",
        below(p95s(_TWO, "requests 128", "premium"), p95s(_TWO, "requests 160", "premium")),
    ),
    absolute(
        "premium p95 of limit 128 less that of 160, ms",
        -363.0,
        _p95_change(_TWO, "requests 128", "requests 160", "premium"),
        band=(-1089.0, -1.0),
        is_calibration=True,
        miss_reason=UNKNOWN_LOAD,
    ),
    absolute(
        "throughput of limit 128 over 160, change",
        -0.029,
        lambda results: (
            _sustained(results, _TWO, "requests 128") / _sustained(results, _TWO, "requests 160") - 1.0
        ),
        band=(-0.06, 0.01),
        miss_reason=UNKNOWN_LOAD,
    ),
    ordering(
        "limit 48 has the lowest premium p95",
        "lowest",
        both(
            *(
                below(p95s(_TWO, "requests 48", "premium"), p95s(_TWO, f"requests {limit}", "premium"))
                for limit in (96, 128, 160)
            )
        ),
    ),
    ordering(
        "limit 48 makes standard wait longest",
        "standard waits",
        below(p95s(_TWO, "requests 128", "standard"), p95s(_TWO, "requests 48", "standard")),
    ),
    ordering(
        "queue depth 8 has a lower p95 than 5 over both tiers",
        "-256 ms",
        below(p95s(_QUEUE, "queue depth 8", _TIERS), p95s(_QUEUE, "queue depth 5", _TIERS)),
    ),
    absolute(
        "p95 of queue depth 8 less that of 5, ms",
        -256.0,
        _p95_change(_QUEUE, "queue depth 8", "queue depth 5", _TIERS),
        band=(-768.0, -1.0),
        miss_reason=UNKNOWN_LOAD,
    ),
    absolute(
        "throughput of queue depth 8 over 5, change",
        -0.016,
        lambda results: (
            _sustained(results, _QUEUE, "queue depth 8", 150.0)
            / _sustained(results, _QUEUE, "queue depth 5", 150.0)
            - 1.0
        ),
        band=(-0.03, 0.01),
        miss_reason=UNKNOWN_LOAD,
    ),
    ordering(
        "KV 0.8 has a lower p95 than 0.75 over both tiers, and without flow control it is lowest",
        "off < 0.8 < 0.75",
        both(
            below(p95s(_KV, "KV 0.8", _TIERS), p95s(_KV, "KV 0.75", _TIERS)),
            below(p95s(_KV, "off", _TIERS), p95s(_KV, "KV 0.8", _TIERS)),
        ),
    ),
    ordering(
        "exact input tokens serve more requests than counts, the output estimate fewer",
        "21.4 > 18.8 > 6.8 requests/s",
        both(
            below(
                runs(_MIXED, "requests 128", _busy_rate, STEADY),
                runs(_MIXED, "input tokens", _busy_rate, STEADY),
            ),
            below(
                runs(_MIXED, "input + output estimate", _busy_rate, STEADY),
                runs(_MIXED, "requests 128", _busy_rate, STEADY),
            ),
        ),
    ),
    absolute(
        "requests/s with request counts",
        18.8,
        lambda results: _sustained(results, _MIXED, "requests 128"),
        is_calibration=True,
        miss_reason=UNKNOWN_LOAD,
    ),
    absolute(
        "requests/s with input tokens",
        21.4,
        lambda results: _sustained(results, _MIXED, "input tokens"),
        is_calibration=True,
        miss_reason=UNKNOWN_LOAD,
    ),
    absolute(
        "requests/s with input + output estimate",
        6.8,
        lambda results: _sustained(results, _MIXED, "input + output estimate"),
        is_calibration=True,
        miss_reason=UNKNOWN_LOAD,
    ),
    *(
        absolute(
            f"TTFT p95 of {name} prompts, {arm}, ms",
            seed,
            p95_ms(_MIXED, arm, name),
            is_calibration=True,
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
