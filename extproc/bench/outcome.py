"""One run of one cell: its records and what the server side knew, and the figures that follow; pure.

The measured window of a run opens with its first interactive arrival and closes when the batch work has
ended: later arrivals meet an idle pool and would flatter every arm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from extproc.bench.suite import Cell
from extproc.workload.record import RequestOutcome, RequestRecord
from extproc.workload.rng import random_stream


@dataclass(frozen=True, slots=True)
class TimelinePoint:
    """The gateway's view at one moment: saturation, the ceiling of each band, queued and in-flight
    requests.
    """

    at_s: float
    saturation: float
    ceilings: dict[int, float]
    queued: dict[int, int]
    inflight: dict[int, int]
    evictions: int


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """`preemptions` and `prompt_tokens_computed` are the engines' counts; `invalid` is empty for a good
    run.
    """

    cell: Cell
    seed: int
    records: Sequence[RequestRecord]
    duration_s: float
    preemptions: int = 0
    prompt_tokens_computed: int = 0
    timeline: Sequence[TimelinePoint] = field(default_factory=tuple)
    invalid: str = ""
    unconfirmed: int = 0
    """Revocations counted as confirmed by time-out."""

    @property
    def batch(self) -> list[RequestRecord]:
        """Records of sheddable classes."""
        return [record for record in self.records if record.priority < 0]

    @cached_property
    def batch_time_s(self) -> float:
        """First batch submission to last batch end; NaN without batch, infinite when some never finished."""
        batch = self.batch
        if not batch:
            return math.nan
        ends = [record.end_s for record in batch if record.outcome is RequestOutcome.COMPLETED]
        if len(ends) < len(batch):
            return math.inf
        return max(end for end in ends if end is not None) - min(record.intended_s for record in batch)

    @property
    def batch_end_s(self) -> float:
        """When the last batch request ended; infinite without batch or when some never finished."""
        time_s = self.batch_time_s
        if math.isnan(time_s) or math.isinf(time_s):
            return math.inf
        return min(record.intended_s for record in self.batch) + time_s

    @property
    def evictions(self) -> int:
        return sum(record.evictions for record in self.records)

    @property
    def tokens_redone(self) -> int:
        return sum(record.redone_tokens for record in self.records)

    @property
    def tokens_refilled(self) -> int:
        """Prompt tokens computed again for resumed requests."""
        return sum(record.refilled_tokens for record in self.records)

    @property
    def deadlines_met_fraction(self) -> float:
        """NaN when nothing has a deadline."""
        kept = [record.has_met_deadline for record in self.records if record.deadline_s is not None]
        return sum(met is True for met in kept) / len(kept) if kept else math.nan

    def rejected(self, measured: Sequence[str]) -> int:
        """Measured requests that got a 429 or 503 for good."""
        return sum(
            record.outcome is RequestOutcome.REJECTED
            for record in self.records
            if record.traffic_class in measured
        )

    def ttfts(
        self,
        traffic_class: str | Sequence[str],
        *,
        until_s: float | None = None,
        window_s: tuple[float, float] | None = None,
        network_s: tuple[float, float] = (0.0, 0.0),
    ) -> list[float]:
        """TTFT of the window's requests of the class(es); `until_s` closes the window earlier or later,
        `window_s` replaces it (a surge).

        `network_s` is the range of what a client outside the cluster sees on top (drawn per request, the
        same in every arm).

        A request that never got a token within the run counts as infinite: leaving it out would reward
        starvation.
        """
        wanted = (traffic_class,) if isinstance(traffic_class, str) else tuple(traffic_class)
        start_s, end_s = window_s or (0.0, self.batch_end_s if until_s is None else until_s)
        values: list[float] = []
        for record in self.records:
            if record.traffic_class not in wanted or not start_s <= record.intended_s < end_s:
                continue
            if record.outcome is RequestOutcome.REJECTED:
                continue
            ttft = record.ttft_s
            values.append(math.inf if ttft is None else ttft + self._network_s(record, network_s))
        return values

    def _network_s(self, record: RequestRecord, network_s: tuple[float, float]) -> float:
        low, high = network_s
        if high <= 0:
            return 0.0
        return random_stream(self.seed, f"network/{record.traffic_class}/{record.index}").uniform(low, high)

    def completed_per_s(self) -> float:
        """Completed requests of all classes per second of the run."""
        done = sum(record.outcome is RequestOutcome.COMPLETED for record in self.records)
        return done / self.duration_s if self.duration_s > 0 else math.nan
