"""One planned request over a real socket: its legs, what its client does after an eviction, and its record.

Internal to the load generator. A stream that the gateway cuts looks like a broken connection; it counts as an
eviction when the request is sheddable (negative priority) or the answer says so, else as a failure.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from extproc.bench.leg import LegLog
from extproc.bench.load_options import LoadOptions, LoadProgress, PriorityPlace
from extproc.bench.prompts import PromptFactory, PromptStyle
from extproc.client.answers import EndKind, StreamEnd, UsageCounts, decode_usage
from extproc.client.inference import InferenceClient
from extproc.clock import Clock
from extproc.workload.record import RequestOutcome, RequestRecord
from extproc.workload.traffic import AfterEviction, PlannedRequest

_REFUSALS = (429, 503)


class Sender:
    """Sends rows of one run; times handed out and recorded are model seconds since `started_at`."""

    def __init__(
        self,
        options: LoadOptions,
        prompts: PromptFactory,
        client: InferenceClient,
        clock: Clock,
        started_at: float,
        progress: LoadProgress,
    ) -> None:
        self._options = options
        self._prompts = prompts
        self._client = client
        self._clock = clock
        self._started_at = started_at
        self._progress = progress

    def model_time(self, at: float | None = None) -> float:
        """Model seconds since the start, now or at a stamp of the clock."""
        real_s = (self._clock.now() if at is None else at) - self._started_at
        return real_s * self._options.speedup

    def real_time(self, model_s: float) -> float:
        """The clock's time at which so many model seconds have passed."""
        return self._started_at + model_s / self._options.speedup

    async def send(self, row: PlannedRequest, record: RequestRecord) -> None:
        """Send the row until it has its final outcome and fill in its record."""
        progress = self._progress
        progress.sent += 1
        progress.open += 1
        progress.most_open = max(progress.most_open, progress.open)
        try:
            if row.streams:
                await self._send_legs(row, record)
            else:
                await self._send_whole(row, record)
        finally:
            progress.open -= 1
        if record.outcome is RequestOutcome.COMPLETED:
            progress.completed += 1
        else:
            progress.failed += 1

    async def _send_legs(self, row: PlannedRequest, record: RequestRecord) -> None:
        generated: list[int] = []
        attempt = 0
        while True:
            log = LegLog(keeps_gaps=self._options.keeps_gaps)
            end = await self._stream(row, record, log, generated)
            is_over = self._account(row, record, log, end, generated)
            if is_over:
                record.end_s = self.model_time(end.at)
                return
            await self._pause(row, end, attempt)
            attempt += 1

    async def _stream(
        self, row: PlannedRequest, record: RequestRecord, log: LegLog, generated: list[int]
    ) -> StreamEnd:
        body = self._body(row, generated)
        stream = self._client.stream(
            self._prompts.style.path,
            body,
            headers=self._headers(row),
            stall_timeout_s=self._options.stall_timeout_s,
        )
        async with stream as answer:
            if record.sent_s is None:
                record.sent_s = self.model_time(answer.sent_at)
            async for piece in answer:
                log.take(piece)
                if record.first_token_s is None and log.first_at is not None:
                    record.first_token_s = self.model_time(log.first_at)
            return answer.end

    def _account(
        self,
        row: PlannedRequest,
        record: RequestRecord,
        log: LegLog,
        end: StreamEnd,
        generated: list[int],
    ) -> bool:
        """Take one leg's end into the record; True when the request has its outcome."""
        tokens = log.output_tokens(end)
        self._progress.output_tokens += tokens
        record.status = end.status or record.status
        record.reason = end.dropped_reason or (end.kind.value if end.kind is not EndKind.FINISHED else None)
        record.chunk_gaps_s += tuple(gap * self._options.speedup for gap in log.gaps_s)
        if end.usage is not None:
            record.cached_tokens += end.usage.cached_tokens or 0
        if end.kind is EndKind.FINISHED:
            record.output_tokens += tokens
            record.outcome = RequestOutcome.COMPLETED
            return True
        if self._is_eviction(row, end):
            return self._account_eviction(row, record, log, generated)
        record.output_tokens += tokens
        if end.status in _REFUSALS:
            if row.after_eviction is not AfterEviction.FAIL:
                record.refused += 1
                self._progress.refused += 1
                return False
            record.outcome = RequestOutcome.REJECTED
            self._progress.refused += 1
            return True
        record.outcome = RequestOutcome.FAILED
        return True

    def _account_eviction(
        self, row: PlannedRequest, record: RequestRecord, log: LegLog, generated: list[int]
    ) -> bool:
        record.evictions += 1
        self._progress.evictions += 1
        can_resume = self._prompts.style is PromptStyle.TOKEN_IDS and len(log.token_ids) == log.tokens
        match row.after_eviction:
            case AfterEviction.FAIL:
                record.output_tokens += log.tokens
                record.outcome = RequestOutcome.EVICTED
                return True
            case AfterEviction.RESUME if can_resume:
                record.output_tokens += log.tokens
                generated += log.token_ids
                if len(generated) >= row.output_tokens:
                    # Every token had arrived; only the closing chunk was lost.
                    record.outcome = RequestOutcome.COMPLETED
                    return True
            case _:
                record.redone_tokens += log.tokens + len(generated)
                record.output_tokens = 0
                generated.clear()
        return False

    def _is_eviction(self, row: PlannedRequest, end: StreamEnd) -> bool:
        if end.dropped_reason == "evicted":
            return True
        return end.kind is EndKind.RESET and end.status == 200 and row.priority < 0

    async def _pause(self, row: PlannedRequest, end: StreamEnd, attempt: int) -> None:
        options = self._options
        wait_s = options.resume_delay_s
        if row.after_eviction is AfterEviction.RESTART:
            wait_s = min(options.restart_backoff_limit_s, options.restart_backoff_s * 2.0**attempt)
        elif end.status in _REFUSALS and end.dropped_reason != "evicted":
            wait_s = max(wait_s, end.retry_after_s or 1.0)
        await self._clock.sleep_until(self._clock.now() + wait_s / options.speedup)

    async def _send_whole(self, row: PlannedRequest, record: RequestRecord) -> None:
        """An unstreamed request: its first token is only known to have come by its end."""
        record.sent_s = self.model_time()
        answer = await self._client.call(
            self._prompts.style.path,
            self._body(row),
            headers=self._headers(row),
            timeout_s=self._options.stall_timeout_s or 3600.0,
        )
        record.end_s = self.model_time()
        record.status = answer.status or None
        record.reason = answer.headers.get("x-llm-d-request-dropped-reason")
        if answer.status == 200:
            record.outcome = RequestOutcome.COMPLETED
            usage = _whole_usage(answer.body)
            record.output_tokens = usage.output_tokens or 0
            record.cached_tokens = usage.cached_tokens or 0
            self._progress.output_tokens += record.output_tokens
        elif record.reason == "evicted":
            record.outcome = RequestOutcome.EVICTED
            record.evictions += 1
        elif answer.status in _REFUSALS:
            record.outcome = RequestOutcome.REJECTED
        else:
            record.outcome = RequestOutcome.FAILED

    def _body(self, row: PlannedRequest, generated: Sequence[int] = ()) -> dict[str, object]:
        body = self._prompts.body(row, generated=generated)
        if row.priority and self._options.priority_in is PriorityPlace.BODY:
            body["priority"] = row.priority
        return body

    def _headers(self, row: PlannedRequest) -> dict[str, str]:
        speedup = self._options.speedup
        headers = dict(self._options.headers)
        headers["x-llm-d-inference-fairness-id"] = row.fairness_id
        objective = self._options.objectives.get(row.traffic_class)
        if objective is not None:
            headers["x-llm-d-inference-objective"] = objective
        if row.priority and self._options.priority_in is PriorityPlace.HEADER:
            headers["x-priority"] = str(row.priority)
        if row.ttft_target_s is not None:
            headers["x-llm-d-slo-ttft-ms"] = str(round(row.ttft_target_s / speedup * 1000))
        if row.ttl_s is not None:
            headers["x-request-ttl-ms"] = str(round(row.ttl_s / speedup * 1000))
        if row.deadline_s is not None:
            in_s = self.real_time(row.deadline_s) - self._clock.now()
            headers["x-request-deadline-ms"] = str(round((self._clock.wall_time() + in_s) * 1000))
        return headers


class _WholeAnswer(msgspec.Struct):
    usage: msgspec.Raw = msgspec.Raw(b"null")


def _whole_usage(body: bytes) -> UsageCounts:
    """The usage block of an unstreamed answer; empty when it has none."""
    try:
        answer = msgspec.json.decode(body, type=_WholeAnswer)
    except msgspec.DecodeError:
        return UsageCounts()
    return decode_usage(bytes(answer.usage)) or UsageCounts()
