"""From records to figures: TTFT, TPOT, ITL, goodput, outcomes and deadlines, by class or fairness id.

Definitions (the emulator and all reports share them): TTFT runs from the intended send time to the first
chunk with a token; TPOT = (end - first token) / (output tokens - 1) per request; ITL = each gap between
successive chunks with tokens, labelled per chunk since a chunk may carry several tokens. Goodput counts
completed requests that kept their TTFT target and deadline. It must not know where the records come from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from extproc.bench.statistics import mean, percentile_of_sorted
from extproc.workload.record import RequestOutcome, RequestRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Percentiles of one quantity in seconds; NaN where there were no values."""

    count: int
    mean_s: float
    p50_s: float
    p90_s: float
    p95_s: float
    p99_s: float
    max_s: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Distribution:
        ordered = sorted(values)
        return cls(
            count=len(ordered),
            mean_s=mean(ordered),
            p50_s=percentile_of_sorted(ordered, 0.50),
            p90_s=percentile_of_sorted(ordered, 0.90),
            p95_s=percentile_of_sorted(ordered, 0.95),
            p99_s=percentile_of_sorted(ordered, 0.99),
            max_s=ordered[-1] if ordered else math.nan,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassSummary:
    """What one class of traffic got.

    `duration_s` runs from its first intended send to its last end. `rejected` and `evicted` are final
    answers; `evictions` and `refused` count every event, also those that were followed by another attempt.
    `deadlines_met` and `deadlines` are counts.
    """

    name: str
    requests: int
    completed: int
    rejected: int
    evicted: int
    failed: int
    unfinished: int
    evictions: int
    refused: int
    redone_tokens: int
    refilled_tokens: int
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    duration_s: float
    ttft: Distribution
    tpot: Distribution
    itl: Distribution
    queued: Distribution
    lag: Distribution
    good_requests: int
    deadlines: int
    deadlines_met: int
    is_closed_loop: bool

    @property
    def output_tokens_per_s(self) -> float:
        return self.output_tokens / self.duration_s if self.duration_s > 0 else 0.0

    @property
    def requests_per_s(self) -> float:
        """Completed requests per second."""
        return self.completed / self.duration_s if self.duration_s > 0 else 0.0

    @property
    def goodput_per_s(self) -> float:
        """Requests per second that kept every promise."""
        return self.good_requests / self.duration_s if self.duration_s > 0 else 0.0


def summarize(records: Sequence[RequestRecord], *, name: str) -> ClassSummary:
    """The summary of the given records, whatever class they are of."""
    outcomes = [record.outcome for record in records]
    ends = [record.end_s for record in records if record.end_s is not None]
    starts = [record.intended_s for record in records]
    with_deadline = [record for record in records if record.deadline_s is not None]
    return ClassSummary(
        name=name,
        requests=len(records),
        completed=outcomes.count(RequestOutcome.COMPLETED),
        rejected=outcomes.count(RequestOutcome.REJECTED),
        evicted=outcomes.count(RequestOutcome.EVICTED),
        failed=outcomes.count(RequestOutcome.FAILED),
        unfinished=outcomes.count(RequestOutcome.UNFINISHED),
        evictions=sum(record.evictions for record in records),
        refused=sum(record.refused for record in records),
        redone_tokens=sum(record.redone_tokens for record in records),
        refilled_tokens=sum(record.refilled_tokens for record in records),
        prompt_tokens=sum(record.prompt_tokens for record in records),
        output_tokens=sum(record.output_tokens for record in records),
        cached_tokens=sum(record.cached_tokens for record in records),
        duration_s=max(ends) - min(starts) if ends else 0.0,
        ttft=Distribution.of(known(records, lambda record: record.ttft_s)),
        tpot=Distribution.of(known(records, lambda record: record.tpot_s)),
        itl=Distribution.of(gap for record in records for gap in record.chunk_gaps_s),
        queued=Distribution.of(known(records, _queued_s)),
        lag=Distribution.of(known(records, lambda record: record.lag_s)),
        good_requests=sum(is_good(record) for record in records),
        deadlines=len(with_deadline),
        deadlines_met=sum(record.has_met_deadline is True for record in with_deadline),
        is_closed_loop=any(record.is_closed_loop for record in records),
    )


def summarize_by(
    records: Iterable[RequestRecord], key: Callable[[RequestRecord], str]
) -> dict[str, ClassSummary]:
    """One summary per key, in order of first appearance; e.g. `lambda record: record.traffic_class`."""
    groups: dict[str, list[RequestRecord]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return {name: summarize(group, name=name) for name, group in groups.items()}


def known(records: Iterable[RequestRecord], value: Callable[[RequestRecord], float | None]) -> list[float]:
    """The values that are not None."""
    return [found for record in records if (found := value(record)) is not None]


def is_good(record: RequestRecord) -> bool:
    """Completed, within its TTFT target and its deadline where it has them."""
    if record.outcome is not RequestOutcome.COMPLETED or record.has_met_deadline is False:
        return False
    target = record.ttft_target_s
    ttft = record.ttft_s
    return target is None or (ttft is not None and ttft <= target)


def _queued_s(record: RequestRecord) -> float | None:
    if record.dispatched_s is None or record.sent_s is None:
        return None
    return record.dispatched_s - record.sent_s
