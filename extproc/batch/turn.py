"""One turn of one item: send what is missing, save what comes, and say what became of it.

A turn sends one request per answer that is still missing. It ends with exactly one change for the journal: a
result, or the item's return with everything received so far. Which turn is next, and when, is decided by the
store's claim order and the worker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

import msgspec

from extproc.batch.answer_streamer import AnswerStreamer, ParsedOutputError, RendererError, ShapeError
from extproc.batch.features import classify
from extproc.batch.gateway import Gateway, Route
from extproc.batch.intake import Line
from extproc.batch.job import ItemState, Job
from extproc.batch.journal import Journal, Lease
from extproc.batch.meters import BatchMeters
from extproc.batch.parsed import derender_question, parsed_reply
from extproc.batch.planner import (
    Disruption,
    RetryPolicy,
    interpret_end,
    is_away,
    is_nobody_there,
    line_deadline,
)
from extproc.batch.progress import Progress
from extproc.batch.reply import ReplyHead, build_reply, failure_line, result_line
from extproc.batch.resume import parts_of
from extproc.batch.stores.contract import Finish, Return
from extproc.batch.trail import Trail
from extproc.client.answers import EndKind, StreamEnd
from extproc.clock import Clock
from extproc.config.batch import ResumeMode
from extproc.exchange import names

_LATE_RETURN_S = 1.0
"""An item past its deadline goes back for so long; its job is closed meanwhile, if that was the job's."""

decode_line = msgspec.json.Decoder(Line).decode
_decode_body = msgspec.json.Decoder(dict[str, object]).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What all turns of a worker share.

    `on_headers(lease, queue_s)`: the gateway let the request through; `on_ended(lease)`: nothing more is
    sent.
    """

    gateway: Gateway
    journal: Journal
    policy: RetryPolicy
    rng: Random
    clock: Clock
    meters: BatchMeters
    mode: ResumeMode
    queue_timeout_s: float
    request_timeout_s: float
    on_headers: Callable[[Lease, float], None]
    on_ended: Callable[[Lease], None]


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """What the worker learns from a turn."""

    disruption: Disruption
    retry_after_s: float | None = None


class Turn:
    """Raises nothing but cancellation; the lease is settled when `run` returns."""

    def __init__(
        self, tools: Tools, lease: Lease, job: Job, raw_line: bytes, entries: tuple[bytes, ...]
    ) -> None:
        self._tools = tools
        self._lease = lease
        self._job = job
        self._line = decode_line(raw_line)
        self._body = _decode_body(self._line.body)
        self._parts = parts_of(job.endpoint, self._body)
        self._classification = classify(job.endpoint, self._body, has_renderer=tools.gateway.has_renderer)
        lease.progress = self._progress = Progress.replay(entries, len(self._parts))
        self._trail = Trail(self._progress.stats, tools.meters)
        lease.take_amounts = self._trail.take_amounts

    async def run(self, route: Route) -> TurnEnd:
        """Work on the item until it is finished or has to be returned."""
        is_whole = self._classification.is_whole or self._progress.stats.needs_whole
        end, disruption = await (self._ask_whole(route) if is_whole else self._ask_parts(route))
        self._tools.on_ended(self._lease)
        self._trail.ended(disruption)
        reply = end.body
        if disruption is Disruption.NONE and not is_whole:
            reply, end, disruption = await self._make_reply(end)
        if disruption is Disruption.NONE:
            await self._finish(ItemState.SUCCEEDED, self._result(end.status, reply))
        elif disruption is Disruption.REFUSED:
            await self._finish(ItemState.FAILED, self._result(end.status, _json_or_error(end)))
        else:
            await self._return_or_give_up(disruption, end)
        return TurnEnd(disruption, end.retry_after_s)

    def give_back(self) -> None:
        """The worker stops: return the item with all it has, to be taken at once."""
        self._settle_return(0.0)

    async def fail(self, error: Exception) -> None:
        """An error of ours: count it like a failure of the server, so that the item ends some time."""
        message = f"internal error ({type(error).__name__})"
        end = StreamEnd(kind=EndKind.ERROR_EVENT, at=self._tools.clock.now(), message=message)
        await self._return_or_give_up(Disruption.FAILED, end)

    async def _ask_parts(self, route: Route) -> tuple[StreamEnd, Disruption]:
        """Stream what is missing, answer by answer, until one is interrupted."""
        streamer = self._streamer(route)
        if self._progress.is_finished:
            route.circuit.on_unused()
        end = StreamEnd(kind=EndKind.FINISHED, at=self._tools.clock.now(), status=200)
        for part, generation in zip(self._parts, self._progress.generations, strict=True):
            if generation.is_finished:
                continue
            self._lease.part = part.index
            held = len(generation.ids)
            try:
                end, gained = await streamer.run_leg(part, generation)
            except ShapeError as error:
                return end, self._ask_otherwise(error)
            except RendererError as error:
                route.circuit.on_unused()
                return error.end, Disruption.UNREACHABLE
            disruption = self._interpret(route, end, gained)
            if disruption is not Disruption.NONE:
                if len(generation.ids) > held and self._can_resume:
                    self._trail.progressed()
                return end, disruption
        return end, Disruption.NONE

    def _ask_otherwise(self, error: ShapeError) -> Disruption:
        """What was streamed is of no use: have the message made from token ids, or ask for it whole."""
        stats = self._progress.stats
        if isinstance(error, ParsedOutputError) and self._classification.can_be_parsed:
            stats.needs_parser = True
        else:
            stats.needs_whole = True
        self._restart(str(error))
        return Disruption.MISSHAPEN

    async def _make_reply(self, end: StreamEnd) -> tuple[bytes, StreamEnd, Disruption]:
        """The reply of finished generations; a render server that is away is waited for."""
        endpoint, body, generations = self._job.endpoint, self._body, self._progress.generations
        if not self._is_parsed:
            return build_reply(endpoint, body, generations, self._head()), end, Disruption.NONE
        derendered = await self._tools.gateway.derender(endpoint, derender_question(body, generations))
        if is_away(derendered):
            return b"", derendered, Disruption.UNREACHABLE
        if derendered.kind is EndKind.FINISHED:
            reply = parsed_reply(derendered.body, body, generations, self._head())
            if reply is not None:
                return reply, end, Disruption.NONE
        no_message = ShapeError("the render server makes no message of it")
        return b"", derendered, self._ask_otherwise(no_message)

    def _streamer(self, route: Route) -> AnswerStreamer:
        return AnswerStreamer(
            gateway=self._tools.gateway,
            route=route,
            journal=self._tools.journal,
            lease=self._lease,
            trail=self._trail,
            endpoint=self._job.endpoint,
            body=self._body,
            can_resume=self._can_resume,
            is_parsed=self._is_parsed,
            headers=self._headers(),
            timeout_s=self._timeout_s,
            on_headers=self._on_headers,
        )

    async def _ask_whole(self, route: Route) -> tuple[StreamEnd, Disruption]:
        """Ask for the server's own, unstreamed answer."""
        body = {name: value for name, value in self._body.items() if name not in ("stream", "stream_options")}
        self._trail.sent()
        self._on_headers(0.0)
        raw = msgspec.json.encode(body)
        end = await self._tools.gateway.call(
            route, self._job.endpoint, raw, self._headers(), self._timeout_s()
        )
        self._tools.gateway.note_end(route, end)
        if end.kind is EndKind.FINISHED and not _is_json(end.body):
            return end, Disruption.FAILED
        return end, self._interpret(route, end, 0)

    def _on_headers(self, queue_s: float) -> None:
        self._trail.let_through(queue_s)
        self._tools.on_headers(self._lease, queue_s)

    # The end of a turn

    def _interpret(self, route: Route, end: StreamEnd, gained: int) -> Disruption:
        disruption = interpret_end(end, gained)
        if disruption is Disruption.FAILED and is_nobody_there(end) and not route.circuit.is_closed:
            # The servers are away for everyone: not this request's fault.
            return Disruption.UNREACHABLE
        is_early = self._tools.clock.wall_time() < self._job.deadline
        if disruption is Disruption.LATE and end.kind is EndKind.TIMED_OUT and is_early:
            return Disruption.FAILED
        return disruption

    async def _return_or_give_up(self, disruption: Disruption, end: StreamEnd) -> None:
        if disruption is Disruption.LATE:
            await self._settle_return(_LATE_RETURN_S)
            return
        repeats = self._trail.disrupted(disruption)
        if not self._can_resume and self._progress.saved_tokens and not self._progress.is_finished:
            is_off = self._tools.mode is ResumeMode.OFF
            self._restart("resume is off" if is_off else self._classification.features[0])
        delay_s = self._tools.policy.delay_s(
            disruption, repeats, end.retry_after_s, self._tools.rng, resumes=self._can_resume
        )
        if delay_s is not None:
            await self._settle_return(delay_s)
            return
        last = end.message or end.kind.value
        message = f"gave up after {repeats} attempts in a row without progress; the last: {last}"
        await self._finish(ItemState.FAILED, self._failure("attempts_exhausted", message))

    def _restart(self, feature: str) -> None:
        self._trail.redone(self._progress.discard())
        self._trail.restarted(feature)

    async def _finish(self, state: ItemState, result: bytes) -> None:
        change = Finish(self._lease.key, self._lease.token, state, result, self._trail.take_amounts())
        if await self._tools.journal.settle(self._lease, change):
            self._tools.meters.results.labels(state.value).inc()

    def _settle_return(self, delay_s: float) -> asyncio.Future[bool]:
        progress = self._progress
        change = Return(
            self._lease.key,
            self._lease.token,
            delay_s,
            progress.saved_tokens > 0,
            progress.take_entry(),
            self._trail.take_amounts(),
        )
        return self._tools.journal.settle(self._lease, change)

    @property
    def _can_resume(self) -> bool:
        return self._classification.can_resume(self._tools.mode) and not self._progress.stats.needs_whole

    @property
    def _is_parsed(self) -> bool:
        return self._classification.is_parsed or self._progress.stats.needs_parser

    @property
    def _request_id(self) -> str:
        return f"{self._job.id}-{self._lease.key.line}"

    def _headers(self) -> Mapping[str, str]:
        """What the gateway orders and evicts by."""
        return {
            # Unique per attempt: an engine that still ends the one before must not confuse the two.
            names.REQUEST_ID: f"{self._request_id}-{self._lease.token}",
            names.DEADLINE_MS: str(int(self._line_deadline() * 1000)),
            names.TTL_MS: str(int(self._tools.queue_timeout_s * 1000)),
            names.RESUMABLE: "true" if self._can_resume else "false",
        }

    def _line_deadline(self) -> float:
        job = self._job
        now = self._tools.clock.wall_time()
        return line_deadline(
            job.deadline, job.deadline - job.created_at, self._lease.key.line, job.total, now
        )

    def _timeout_s(self) -> float:
        left_s = self._job.deadline - self._tools.clock.wall_time()
        return max(0.001, min(left_s, self._tools.request_timeout_s))

    def _head(self) -> ReplyHead:
        prefix = "cmpl" if self._job.endpoint == "/v1/completions" else "chatcmpl"
        return ReplyHead(
            id=f"{prefix}-{self._request_id}",
            model=str(self._body.get("model")),
            created=int(self._tools.clock.wall_time()),
        )

    def _result(self, status: int, reply: bytes) -> bytes:
        return result_line(
            request_id=self._request_id,
            custom_id=self._line.custom_id,
            status=status,
            reply=reply,
            stats=self._progress.stats,
            verdict=self._classification.verdict.value,
        )

    def _failure(self, code: str, message: str) -> bytes:
        return failure_line(
            request_id=self._request_id,
            custom_id=self._line.custom_id,
            code=code,
            message=message,
            stats=self._progress.stats,
            verdict=self._classification.verdict.value,
        )


def _is_json(raw: bytes) -> bool:
    try:
        msgspec.json.decode(raw, type=msgspec.Raw)
    except msgspec.DecodeError:
        return False
    return bool(raw)


def _json_or_error(end: StreamEnd) -> bytes:
    if _is_json(end.body):
        return end.body
    return msgspec.json.encode(
        {"error": {"message": end.message, "type": "upstream_error", "code": end.status}}
    )
