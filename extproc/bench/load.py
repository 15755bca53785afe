"""The load generator: sends planned requests over real sockets at their intended times and records the
answers.

Open-loop classes are sent when their time has come, however slow the answers are, and latency counts from
the intended time, so that neither a stalled server nor a slow generator flatters the result. A generator
that fell behind marks its own run invalid. Closed-loop classes keep a number of requests running. Nothing
is retried unless the class says so, and then every attempt is counted. It knows nothing of suites and
reports.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from extproc.bench.load_options import LoadOptions, LoadProgress
from extproc.bench.prompts import PromptFactory
from extproc.bench.sender import Sender
from extproc.bench.statistics import percentile
from extproc.client.inference import InferenceClient
from extproc.clock import Clock
from extproc.workload.arrivals import ClosedLoop
from extproc.workload.record import RequestOutcome, RequestRecord
from extproc.workload.traffic import PlannedRequest, TrafficClass, plan_class, plan_open

_GAP_S, _FEW_OPEN, _COLLECT_EVERY_S = 0.05, 100, 10.0
_PAUSE_AFTER_FAILURE_S = 0.1
"""Real seconds; else a closed loop would send thousands a second to a server that isn't there."""


@dataclass(frozen=True, slots=True)
class LoadResult:
    """Records in order of their intended times. `lag_p99_s` and `lag_max_s` are real seconds of the
    generator.

    `invalid` says why the run must not be used (empty: it is valid).
    """

    records: tuple[RequestRecord, ...]
    duration_s: float
    most_open: int
    lag_p99_s: float
    lag_max_s: float
    invalid: str


class LoadGenerator:
    """Drives the given classes, and replayed rows, against one gateway; one run per object."""

    def __init__(
        self,
        options: LoadOptions,
        prompts: PromptFactory,
        clock: Clock,
        *,
        classes: Sequence[TrafficClass] = (),
        rows: Sequence[PlannedRequest] = (),
        seed: int = 0,
    ) -> None:
        self._options = options
        self._prompts = prompts
        self._clock = clock
        self._classes = tuple(classes)
        self._rows = tuple(rows)
        self._seed = seed
        self._records: list[RequestRecord] = []
        self._collected_at = clock.now()
        self.progress = LoadProgress()

    async def run(self) -> LoadResult:
        """Send everything; returns when all of it has ended or the horizon is reached."""
        options = self._options
        client = InferenceClient(options.base_url, clock=self._clock, concurrency=options.max_open)
        with _no_collections():
            async with client:
                duration_s = await self._drive(client)
        self._records.sort(key=lambda record: record.intended_s)
        return self._result(duration_s)

    async def _drive(self, client: InferenceClient) -> float:
        options = self._options
        started_at = self._clock.now()
        sender = Sender(options, self._prompts, client, self._clock, started_at, self.progress)
        horizon_s = None if options.horizon_s is None else options.horizon_s / options.speedup
        try:
            async with asyncio.timeout(horizon_s), asyncio.TaskGroup() as group:
                group.create_task(self._send_open(sender, group, started_at))
                for traffic in self._classes:
                    if isinstance(traffic.arrivals, ClosedLoop):
                        self._start_closed(traffic, traffic.arrivals, sender, group)
        except TimeoutError:
            pass  # the horizon: open requests are cut and stay UNFINISHED
        return (self._clock.now() - started_at) * options.speedup

    async def _send_open(self, sender: Sender, group: asyncio.TaskGroup, started_at: float) -> None:
        for row in self._open_rows():
            due_at = started_at + row.at_s / self._options.speedup
            if self._clock.now() < due_at:
                self._collect_in_a_gap(due_at - self._clock.now())
                await self._clock.sleep_until(due_at)
            group.create_task(sender.send(row, self._open_record(row)))

    def _collect_in_a_gap(self, gap_s: float) -> None:
        """A collection while little is open takes a millisecond or two."""
        now = self._clock.now()
        is_quiet = gap_s > _GAP_S and self.progress.open <= _FEW_OPEN
        if is_quiet and now - self._collected_at > _COLLECT_EVERY_S:
            gc.collect()
            self._collected_at = now

    def _open_rows(self) -> Iterator[PlannedRequest]:
        if self._rows:
            return iter(self._rows)
        return plan_open(self._classes, self._seed)

    def _start_closed(
        self, traffic: TrafficClass, arrivals: ClosedLoop, sender: Sender, group: asyncio.TaskGroup
    ) -> None:
        """Workers that share one iterator of rows: it is asked between awaits only, so no row is sent
        twice.
        """
        rows = plan_class(traffic, self._seed)
        for _ in range(arrivals.concurrency):
            group.create_task(self._send_closed(rows, arrivals, sender))

    async def _send_closed(
        self, rows: Iterator[PlannedRequest], arrivals: ClosedLoop, sender: Sender
    ) -> None:
        await self._clock.sleep_until(sender.real_time(arrivals.start_s))
        for row in rows:
            if arrivals.end_s is not None and sender.model_time() >= arrivals.end_s:
                return
            record = self._open_record(row)
            record.intended_s = sender.model_time()
            record.is_closed_loop = True
            await sender.send(row, record)
            if record.outcome is RequestOutcome.FAILED:
                await self._clock.sleep_until(self._clock.now() + _PAUSE_AFTER_FAILURE_S)

    def _open_record(self, row: PlannedRequest) -> RequestRecord:
        record = RequestRecord(
            traffic_class=row.traffic_class,
            index=row.index,
            priority=row.priority,
            fairness_id=row.fairness_id,
            intended_s=row.at_s,
            prompt_tokens=row.prompt_tokens,
            deadline_s=row.deadline_s,
            ttft_target_s=row.ttft_target_s,
        )
        self._records.append(record)
        return record

    def _result(self, duration_s: float) -> LoadResult:
        speedup, limit_s = self._options.speedup, self._options.lag_limit_s
        lags = [
            record.lag_s / speedup
            for record in self._records
            if record.lag_s is not None and not record.is_closed_loop
        ]
        late = sum(lag > limit_s for lag in lags)
        invalid = ""
        if late > 0.01 * len(lags):
            invalid = f"the generator lagged: {late} of {len(lags)} requests left over {limit_s:g} s late"
        return LoadResult(
            records=tuple(self._records),
            duration_s=duration_s,
            most_open=self.progress.most_open,
            lag_p99_s=percentile(lags, 0.99) if lags else 0.0,
            lag_max_s=max(lags, default=0.0),
            invalid=invalid,
        )


@contextmanager
def _no_collections() -> Iterator[None]:
    """With thousands of open streams a collection stops the sending for 0.1 to 0.4 s, also one of the
    youngest generation: all that lives is young. Streams leave no cycles behind (a test counts them);
    `_collect_in_a_gap` is for what else may.
    """
    gc.collect()
    gc.freeze()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
        gc.unfreeze()
