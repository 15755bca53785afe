"""The claims of seed 000, section by section."""

from __future__ import annotations

from extproc.bench.checks import Check, absolute, ordering
from extproc.bench.claims.readers import (
    above,
    alike,
    arrivals_per_eviction,
    average,
    batch_time,
    below,
    both,
    evictions,
    evictions_per_arrival,
    p50,
    p50_runs,
    p95,
    p95_runs,
    redone,
    runs,
)
from extproc.bench.results import SuiteResults

BURSTS = "bursts of 32"

_NO_TARGET = "the seed gives neither the interactive lengths nor the exact arrivals of its runs"


def _extra_batch(load: str, arm: str) -> Check:
    def extra(results: SuiteResults) -> float:
        return average(load, arm, batch_time)(results) - average(load, "eviction", batch_time)(results)

    return absolute(
        f"extra batch time of holdback 0.8 at {load}, s",
        3.0,
        extra,
        band=(0.0, 3.75),
        is_calibration=load == "1/s",
        miss_reason="six of 32 slots idle for the whole run cost what the step-time model says",
    )


HOLDBACK_REQUESTS: tuple[Check, ...] = (
    *(
        absolute(
            f"evictions per interactive request under eviction alone, {load}",
            0.9,
            average(load, "eviction", evictions_per_arrival),
        )
        for load in ("1/s", "2/s", "4/s")
    ),
    *(
        absolute(
            f"evictions with holdback 0.8 at {load}",
            0.0,
            average(load, "holdback 0.8", evictions),
            band=(0.0, 1.0),
        )
        for load in ("1/s", "2/s")
    ),
    absolute("evictions under eviction alone at 4/s", 219.0, average("4/s", "eviction", evictions)),
    absolute(
        "evictions with holdback 0.8 at 4/s",
        18.0,
        average("4/s", "holdback 0.8", evictions),
        miss_reason="with six free slots an eviction needs seven requests at once; how often that is depends "
        "on how long an interactive answer stays, which the seed does not state (192 tokens assumed)",
    ),
    absolute("TTFT p95 floor with holdback 0.8 at 1/s, s", 0.13, p95("1/s", "holdback 0.8")),
    absolute(
        "TTFT p50 under bursts, 40% reserve without eviction, s",
        1.05,
        p50(BURSTS, "holdback 0.6, no eviction"),
    ),
    absolute(
        "TTFT p50 under bursts, 40% reserve with eviction, s",
        0.22,
        p50(BURSTS, "holdback 0.6"),
        miss_reason="the requests beyond the reserve wait for evictions two at a time; how long one takes to "
        "be confirmed in the seed's setup is not stated (3 ms and the 10 ms grace here)",
    ),
    *(_extra_batch(load, "holdback 0.8") for load in ("1/s", "2/s", "4/s")),
    ordering(
        "holdback 0.8 evicts less than eviction alone at every rate",
        "0, 0, 18 against 219",
        both(
            *(
                below(runs(load, "holdback 0.8", evictions), runs(load, "eviction", evictions))
                for load in ("1/s", "2/s", "4/s")
            )
        ),
    ),
    ordering(
        "holdback lowers TTFT p95 at 1/s, where waiting on an eviction showed",
        "to the floor",
        below(p95_runs("1/s", "holdback 0.8"), p95_runs("1/s", "eviction")),
    ),
    ordering(
        "bursts of 32 overwhelm any reserve: all of 0.9, 0.8, 0.6 evict",
        "evictions > 0",
        both(
            *(
                above(runs(BURSTS, arm, evictions), 0.0)
                for arm in ("holdback 0.9", "holdback 0.8", "holdback 0.6")
            )
        ),
    ),
    ordering(
        "without eviction a reserve never gets burst TTFT near the floor",
        "p50 1.05 s against 0.22 s",
        both(
            *(
                below(
                    p50_runs(BURSTS, f"holdback {level}"), p50_runs(BURSTS, f"holdback {level}, no eviction")
                )
                for level in ("0.9", "0.8", "0.6")
            )
        ),
    ),
    ordering(
        "a reserve costs batch time",
        "1 to 6% more",
        both(
            *(
                below(runs(load, "eviction", batch_time), runs(load, "holdback 0.8", batch_time))
                for load in ("1/s", "2/s", "4/s")
            )
        ),
    ),
)

HOLDBACK_TOKENS: tuple[Check, ...] = (
    absolute(
        "interactive requests let in per eviction under bursts",
        8.0,
        average(BURSTS, "eviction", arrivals_per_eviction),
    ),
    *(
        ordering(
            f"holdback {level} fixes steady load at {load}",
            "keeps real slots free",
            below(p50_runs(load, f"holdback {level}"), p50_runs(load, "eviction")),
        )
        for load in ("1/s", "2/s", "4/s")
        for level in ("0.9", "0.8")
    ),
    ordering(
        "under bursts holdback does not help: p50 stays over 5 times the floor",
        "no help",
        both(
            *(
                below(p50_runs(BURSTS, "floor-shared"), p50_runs(BURSTS, arm), factor=5.0)
                for arm in ("eviction", "holdback 0.9", "holdback 0.8")
            )
        ),
    ),
)

HOLDBACK_HYBRID: tuple[Check, ...] = (
    *(
        ordering(
            f"hybrid: holdback {level} makes bursts worse than eviction alone{where}",
            "it hurts",
            below(p50_runs(BURSTS, f"{prefix}eviction"), p50_runs(BURSTS, f"{prefix}holdback {level}")),
            is_calibration=True,
            miss_reason="a threshold effect: the sign hangs on a few per cent of the token estimate, which "
            "the seed does not state",
        )
        for prefix, where in (
            ("cap 215,040: ", ", estimate 5% under its share"),
            ("cap 194,560: ", ", estimate 5% over its share"),
        )
        for level in ("0.9", "0.8")
    ),
    ordering(
        "hybrid: holdback 0.8 helps steady load",
        "keeps real slots free",
        below(p50_runs("2/s", "holdback 0.8"), p50_runs("2/s", "eviction")),
    ),
)

NO_RESUME: tuple[Check, ...] = (
    absolute(
        "tokens redone under bursts without resume",
        288_000.0,
        average(BURSTS, "eviction, no resume", redone),
        miss_reason="chaotic in the gap between bursts, which the seed does not state (see the gap scan)",
    ),
    absolute(
        "batch time without resume over with it, bursts",
        1.74,
        lambda results: (
            average(BURSTS, "eviction, no resume", batch_time)(results)
            / average(BURSTS, "eviction", batch_time)(results)
        ),
    ),
    ordering(
        "under steady load resume barely matters (batch time within 10%)",
        "barely matters",
        alike(
            runs("1/s", "eviction, no resume", batch_time), runs("1/s", "eviction", batch_time), within=0.10
        ),
    ),
    ordering(
        "interactive TTFT p50 does not change without resume (within 25%)",
        "does not change",
        alike(p50_runs(BURSTS, "eviction, no resume"), p50_runs(BURSTS, "eviction"), within=0.25),
    ),
    ordering(
        "holdback does not rescue it: work is still redone under bursts",
        "trims redone work by 8%",
        above(runs(BURSTS, "holdback 0.8, no resume", redone), 0.0),
    ),
)

HOLDBACK_14B: tuple[Check, ...] = (
    absolute("evictions under eviction alone", 166.0, average("1/s", "eviction", evictions)),
    absolute(
        "evictions with holdback 0.9",
        11.0,
        average("1/s", "holdback 0.9", evictions),
        band=(2.0, 30.0),
        miss_reason=_NO_TARGET,
    ),
    absolute(
        "evictions with holdback 0.8",
        2.0,
        average("1/s", "holdback 0.8", evictions),
        band=(0.0, 6.0),
        miss_reason=_NO_TARGET,
    ),
    *(
        absolute(
            f"TTFT p95, {arm}, s",
            0.92,
            p95("1/s", arm),
            is_calibration=arm == "eviction",
            miss_reason="with equal output lengths the batch runs in waves of prompts; with varied lengths "
            "the figure is lower, and the seed states neither its lengths nor when interactive traffic began",
        )
        for arm in ("eviction", "holdback 0.9", "holdback 0.8")
    ),
    ordering(
        "holdback removes evictions",
        "166 > 11 > 2",
        both(
            below(runs("1/s", "holdback 0.8", evictions), runs("1/s", "holdback 0.9", evictions)),
            below(runs("1/s", "holdback 0.9", evictions), runs("1/s", "eviction", evictions)),
        ),
    ),
    ordering(
        "holdback does not lower TTFT p95: it stays above ten times what the load sees alone",
        "~0.92 s in every arm",
        both(
            *(
                below(p95_runs("1/s", "floor-alone"), p95_runs("1/s", arm), factor=5.0)
                for arm in ("eviction", "holdback 0.9", "holdback 0.8")
            )
        ),
    ),
)
