"""All runs of a suite, and the figures over its repeats: pooled percentiles, means, paired ratios; pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from extproc.bench.outcome import RunOutcome
from extproc.bench.statistics import Interval, mean, paired_ratio_interval, percentile, percentile_of_sorted
from extproc.bench.suite import Cell, Setting, Suite
from extproc.workload.rng import random_stream

FLOOR_ALONE = "floor-alone"
FLOOR_SHARED = "floor-shared"
FLOOR_SHARED_PACED = "floor-shared-paced"
BEST = "best"


class SuiteResults:
    """Runs by cell and seed. Figures of cells that were not run are NaN, so that partial runs report too."""

    def __init__(self, suite: Suite, runs: Iterable[RunOutcome]) -> None:
        self.suite = suite
        self._runs: dict[Cell, dict[int, RunOutcome]] = defaultdict(dict)
        self._ratios: dict[tuple[object, ...], Interval] = {}
        self._ttfts: dict[tuple[object, ...], list[float]] = {}
        """Sorted; a report asks for the same ones again and again."""
        for run in runs:
            self._runs[run.cell][run.seed] = run

    def cells(self) -> list[Cell]:
        """Cells with at least one run, in the suite's order."""
        return [cell for cell in self.suite.cells() if self._runs.get(cell)]

    def runs(self, load: str, arm: str, setting: Setting) -> list[RunOutcome]:
        """The repeats of a cell by ascending seed."""
        by_seed = self._runs.get(Cell(suite=self.suite.name, load=load, arm=arm, setting=setting), {})
        return [by_seed[seed] for seed in sorted(by_seed)]

    def mean(self, load: str, arm: str, setting: Setting, figure: Callable[[RunOutcome], float]) -> float:
        """The mean over repeats; NaN when the cell was not run."""
        return mean([figure(run) for run in self.runs(load, arm, setting)])

    def per_run(
        self, load: str, arm: str, setting: Setting, figure: Callable[[RunOutcome], float]
    ) -> list[float]:
        return [figure(run) for run in self.runs(load, arm, setting)]

    def ttft(
        self, load: str, arm: str, setting: Setting, fraction: float, traffic_class: str | Sequence[str] = ()
    ) -> float:
        """The percentile of the window's TTFTs of all repeats together."""
        wanted = traffic_class or self.suite.measured
        runs = self.runs(load, arm, setting)
        pooled = [value for run in runs for value in self._seen_ttfts(run, wanted)]
        return percentile(pooled, fraction)

    def ttft_per_run(
        self, load: str, arm: str, setting: Setting, fraction: float, traffic_class: str | Sequence[str] = ()
    ) -> list[float]:
        """The percentile in each repeat."""
        wanted = traffic_class or self.suite.measured
        runs = self.runs(load, arm, setting)
        return [percentile_of_sorted(self._seen_ttfts(run, wanted), fraction) for run in runs]

    def _seen_ttfts(self, run: RunOutcome, wanted: str | Sequence[str]) -> list[float]:
        """What the clients saw, their network included; sorted."""
        key = (run.cell, run.seed, wanted)
        if key not in self._ttfts:
            network_s = self.suite.latencies.network_s
            seen = run.ttfts(wanted, window_s=self.suite.window_s, network_s=network_s)
            self._ttfts[key] = sorted(seen)
        return self._ttfts[key]

    def ttft_ratio(
        self,
        load: str,
        arm: str,
        reference: str,
        setting: Setting,
        fraction: float,
        traffic_class: str | Sequence[str] = (),
    ) -> Interval:
        """Pooled percentile of `arm` over that of `reference`, over paired seeds and one common window.

        Without the client's network, which would make any two arms look alike.

        The window of a seed closes when the first of the two arms has finished its batch; an arm without
        batch takes the other's.
        """
        wanted = traffic_class or self.suite.measured
        key = (load, arm, reference, setting, fraction, wanted)
        if key not in self._ratios:
            self._ratios[key] = self._ttft_ratio(load, arm, reference, setting, fraction, wanted)
        return self._ratios[key]

    def _ttft_ratio(
        self,
        load: str,
        arm: str,
        reference: str,
        setting: Setting,
        fraction: float,
        wanted: str | Sequence[str],
    ) -> Interval:
        ours = {run.seed: run for run in self.runs(load, arm, setting)}
        theirs = {run.seed: run for run in self.runs(load, reference, setting)}
        seeds = sorted(ours.keys() & theirs.keys())
        if not seeds:
            return Interval(math.nan, math.nan, math.nan)
        our_values, their_values = [], []
        for seed in seeds:
            until_s = min(ours[seed].batch_end_s, theirs[seed].batch_end_s)
            window_s = self.suite.window_s
            # Sorted runs make each resample's sort a cheap merge.
            our_values.append(sorted(ours[seed].ttfts(wanted, until_s=until_s, window_s=window_s)))
            their_values.append(sorted(theirs[seed].ttfts(wanted, until_s=until_s, window_s=window_s)))
        rng = random_stream(0, f"bootstrap/{load}/{arm}/{reference}/{setting.value}/{fraction}")
        return paired_ratio_interval(our_values, their_values, fraction, rng)

    def ratio(
        self, load: str, arm: str, reference: str, setting: Setting, figure: Callable[[RunOutcome], float]
    ) -> float:
        """Mean figure of `arm` over that of `reference` on the seeds that both have; NaN over nothing and
        over what never ended.
        """
        ours = {run.seed: figure(run) for run in self.runs(load, arm, setting)}
        theirs = {run.seed: figure(run) for run in self.runs(load, reference, setting)}
        seeds = sorted(ours.keys() & theirs.keys())
        below = sum(theirs[seed] for seed in seeds)
        return sum(ours[seed] for seed in seeds) / below if below and math.isfinite(below) else math.nan
