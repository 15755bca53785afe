"""The claims of seed 002 about its production scenarios and about batch that runs already."""

from __future__ import annotations

from extproc.bench.checks import Check, absolute, ordering
from extproc.bench.claims.readers import STEADY, below, both, runs
from extproc.bench.claims.seed_002_readers import (
    LOAD,
    UNKNOWN_LOAD,
    p95s,
    realtime_p95_between,
    rising,
    surge_p95,
)

_TIERS = ("platinum", "gold", "silver", "bronze")
PRIORITY_TIERS: tuple[Check, ...] = (
    *(
        surge_p95(f"surge TTFT p95 of {name}", seed, LOAD, "requests 128", name)
        for name, seed in zip(_TIERS, (404.0, 511.0, 656.0, 13264.0), strict=True)
    ),
    ordering("higher tiers wait less", "404 < 511 < 656 < 13,264 ms", rising(LOAD, "requests 128", _TIERS)),
)

_ISOLATION = ("realtime", "standard", "batch")
BATCH_ISOLATION: tuple[Check, ...] = (
    *(
        surge_p95(f"surge TTFT p95 of {name}", seed, LOAD, "requests 128", name)
        for name, seed in zip(_ISOLATION, (442.0, 515.0, 13077.0), strict=True)
    ),
    ordering("batch absorbs the wait", "442 < 515 < 13,077 ms", rising(LOAD, "requests 128", _ISOLATION)),
)

CONSOLIDATION: tuple[Check, ...] = (
    *(
        surge_p95(f"surge TTFT p95 of {name}, {arm}", seed, LOAD, arm, name, is_calibration=True)
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
                    below(p95s(LOAD, "requests 128", name), p95s(LOAD, f"queue depth {depth}", name))
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
        surge_p95(f"surge TTFT p95 of {name}", seed, LOAD, _FAIR, name)
        for name, seed in (("burster-a", 12097.0), ("peer-b", 527.0), ("peer-c", 570.0))
    ),
    *(
        surge_p95(f"surge TTFT p95 of {name}, queue depth 2", seed, LOAD, "queue depth 2", name)
        for name, seed in (("peer-b", 5023.0), ("peer-c", 4519.0))
    ),
    ordering(
        "round robin keeps peers moving while one tenant bursts",
        "527 and 570 against 12,097 ms",
        both(
            *(below(p95s(LOAD, _FAIR, peer), p95s(LOAD, _FAIR, "burster-a")) for peer in ("peer-b", "peer-c"))
        ),
    ),
    ordering(
        "the engine's queue as a signal protects the peers worse",
        "5,023 and 4,519 ms",
        both(
            *(
                below(p95s(LOAD, _FAIR, peer), p95s(LOAD, "queue depth 2", peer))
                for peer in ("peer-b", "peer-c")
            )
        ),
    ),
)


_AT = ("batch at 30 s", "requests 128")
BATCH_INTERFERENCE: tuple[Check, ...] = (
    absolute(
        "realtime TTFT p95 before batch, ms",
        133.0,
        lambda results: results.mean(*_AT, STEADY, realtime_p95_between(0.0, 30.0)),
        band=(133.0 / 3, 133.0 * 3),
        miss_reason=UNKNOWN_LOAD,
    ),
    absolute(
        "realtime TTFT p95 after batch occupied the engine, ms",
        15378.0,
        lambda results: results.mean(*_AT, STEADY, realtime_p95_between(30.0, 60.0)),
        band=(15378.0 / 3, 15378.0 * 3),
        miss_reason=UNKNOWN_LOAD,
    ),
    ordering(
        "admission control cannot reclaim what runs: over 20 times worse",
        "133 to 15,378 ms",
        below(
            runs(*_AT, realtime_p95_between(0.0, 30.0), STEADY),
            runs(*_AT, realtime_p95_between(30.0, 60.0), STEADY),
            factor=20.0,
        ),
    ),
)
