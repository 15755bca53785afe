"""The experiment's results as JSON, as a chart and as prose; pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import msgspec

from extproc.bench.idle_reuse.pattern import Pattern
from extproc.bench.idle_reuse.refusals import Refusal
from extproc.bench.idle_reuse.results import ArmResult, wilson
from extproc.bench.svg import COLOURS, Marks, RangeRow, Series, range_plot, timeline

_BINS = 20
SEED_REQUESTS = 1_440
"""Interactive requests of the seed's cell with the one 503."""


class ArmFigures(TypedDict):
    """`by_offset` holds [start of the bin in ms, failed share]."""

    probes: int
    failed: int
    failed_share: float
    interval: list[float]
    lost_ms: float
    codes: list[str]
    by_offset: list[list[float]]


class PatternFigures(TypedDict):
    setting: str
    requests: int
    reuses: int
    reuses_per_idle_s: float
    expected_503: float
    """Among as many requests as the seed's cell had, with the bare arm's window."""


class SuspectFigures(TypedDict):
    suspect: str
    status: int
    code: str
    reason: str


class IdleReuseFigures(TypedDict):
    """The file that the command writes."""

    keep_alive_s: float
    arms: dict[str, ArmFigures]
    patterns: list[PatternFigures]
    suspects: list[SuspectFigures]


def figures(
    keep_alive_s: float,
    arms: Sequence[ArmResult],
    patterns: Sequence[Pattern],
    suspects: Sequence[Refusal],
) -> IdleReuseFigures:
    """Everything measured; the first arm is the bare one."""
    lost_s = arms[0].lost_s
    return {
        "keep_alive_s": keep_alive_s,
        "arms": {arm.name: _arm(arm) for arm in arms},
        "patterns": [
            {
                "setting": each.setting,
                "requests": each.requests,
                "reuses": each.reuses,
                "reuses_per_idle_s": each.per_idle_s,
                "expected_503": round(each.expected(lost_s, SEED_REQUESTS), 5),
            }
            for each in patterns
        ],
        "suspects": [
            {"suspect": each.suspect, "status": each.status, "code": each.code, "reason": each.reason}
            for each in suspects
        ],
    }


def _arm(arm: ArmResult) -> ArmFigures:
    low, high = wilson(arm.failures, len(arm.probes))
    return {
        "probes": len(arm.probes),
        "failed": arm.failures,
        "failed_share": round(arm.share, 5),
        "interval": [round(low, 5), round(high, 5)],
        "lost_ms": round(arm.lost_s * 1000, 3),
        "codes": sorted({f"{probe.status} {probe.code}" for probe in arm.probes if probe.has_failed}),
        "by_offset": [[round(at * 1000, 3), round(share, 4)] for at, share in arm.by_offset(_BINS)],
    }


def charts(measured: IdleReuseFigures) -> list[str]:
    """Failed shares by arm with their intervals, and the bare arm's by the moment of the probe."""
    rows = [
        RangeRow(name, arm["interval"][0] * 100, arm["failed_share"] * 100, arm["interval"][1] * 100)
        for name, arm in measured["arms"].items()
    ]
    bare = next(iter(measured["arms"].values()))
    curve = [(at / 1000, share) for at, share in bare["by_offset"]]
    series = Series("share of 503", curve, COLOURS[1])
    return [
        range_plot("503 among requests at the moment of closing", rows, unit="%", is_log=False),
        timeline(
            "no precautions: share of 503 by idle time beyond the server's keep-alive",
            [series],
            Marks("", ()),
            y_label="share",
        ),
    ]


def load_figures(text: str) -> IdleReuseFigures:
    """What `figures` made, from JSON. Raises msgspec.ValidationError when it is something else."""
    return msgspec.json.decode(text, type=IdleReuseFigures)
