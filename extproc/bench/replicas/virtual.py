"""The suites with several replicas in virtual time: interactive TTFT and batch time against one replica."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from extproc.bench.outcome import RunOutcome
from extproc.bench.results import BEST
from extproc.bench.statistics import percentile
from extproc.bench.suite import Cell, Setting, Suite
from extproc.bench.suites.holdback import HOLDBACK_REQUESTS
from extproc.bench.suites.kv_bound import KV_BOUND_32B
from extproc.bench.virtual import build_scenario
from extproc.sim.runner import Simulation
from extproc.sim.scenario import Sharing

SUITES: Mapping[str, Suite] = {suite.name: suite for suite in (HOLDBACK_REQUESTS, KV_BOUND_32B)}
SharingMode = Literal["leased", "none"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VirtualRow:
    """One number of replicas: figures pooled over the loads and seeds of a suite, ratios to one replica."""

    suite: str
    replicas: int
    sharing: SharingMode
    ttft_p50_s: float
    ttft_p95_s: float
    batch_time_s: float
    evictions: int
    ttft_p95_ratio: float
    batch_time_ratio: float
    reports_per_s: float
    """Per replica."""
    p95_by_load_s: Mapping[str, float]


def run_suite(
    suite: Suite,
    counts: Sequence[int],
    seeds: Sequence[int],
    on_cell: Callable[[str], None],
    *,
    sharing: SharingMode = "leased",
) -> list[VirtualRow]:
    """One row per number of replicas; the first count is what the others are compared with."""
    rows: list[VirtualRow] = []
    for count in counts:
        by_load: dict[str, list[float]] = {}
        times, reports, evictions = [], [], 0
        for load in suite.loads:
            for seed in seeds:
                on_cell(f"{suite.name}, {count} replicas: {load.name}, seed {seed}")
                outcome, rate = _run(suite, load.name, count, seed, sharing)
                by_load.setdefault(load.name, []).extend(outcome.ttfts(suite.measured))
                times.append(outcome.batch_time_s)
                reports.append(rate)
                evictions += outcome.evictions
        pooled = [ttft for ttfts in by_load.values() for ttft in ttfts]
        p95, batch = percentile(pooled, 0.95), statistics.mean(times)
        rows.append(
            VirtualRow(
                suite=suite.name,
                replicas=count,
                sharing=sharing,
                ttft_p50_s=percentile(pooled, 0.5),
                ttft_p95_s=p95,
                batch_time_s=batch,
                evictions=evictions,
                ttft_p95_ratio=p95 / rows[0].ttft_p95_s if rows else 1.0,
                batch_time_ratio=batch / rows[0].batch_time_s if rows else 1.0,
                reports_per_s=statistics.mean(reports),
                p95_by_load_s={name: percentile(ttfts, 0.95) for name, ttfts in by_load.items()},
            )
        )
    return rows


def _run(suite: Suite, load: str, count: int, seed: int, sharing: SharingMode) -> tuple[RunOutcome, float]:
    cell = Cell(suite=suite.name, load=load, arm=BEST, setting=Setting.STEADY)
    scenario = dataclasses.replace(
        build_scenario(suite, cell, seed), replicas=count, sharing=Sharing(mode=sharing)
    )
    simulation = Simulation(scenario)
    result = simulation.run()
    outcome = RunOutcome(cell=cell, seed=seed, records=result.records, duration_s=result.ended_at_s)
    group = simulation.group
    reports = math.nan if group is None else group.reports_sent / count / result.ended_at_s
    return outcome, reports
