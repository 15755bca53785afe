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

from extproc.batch.features import classify
from extproc.batch.gateway import Gateway, Route
from extproc.batch.intake import Line
from extproc.batch.job import ItemState, Job
from extproc.batch.journal import Journal, Lease
from extproc.batch.meters import BatchMeters
from extproc.batch.planner import Disruption, RetryPolicy, interpret_end, is_nobody_there
from extproc.batch.progress import Generation, Progress
from extproc.batch.reply import ReplyHead, build_reply, failure_line, result_line, split_logprobs
from extproc.batch.resume import Leg, Part, continue_leg, find_cut, first_leg, parts_of, token_limit
from extproc.batch.stores.contract import Finish, Return
from extproc.client.answers import EndKind, Piece, StreamEnd
from extproc.clock import Clock
from extproc.config.batch import ResumeMode
from extproc.exchange import names

_LATE_RETURN_S = 1.0
"""An item past its deadline goes back for so long; its job is closed meanwhile."""

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


class _ShapeError(Exception):
    """The answer can't be rebuilt or trusted as streamed; the message is the feature to be counted."""


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
        self._classification = classify(job.endpoint, self._body)
        lease.progress = self._progress = Progress.replay(entries, len(self._parts))
        self._output_tokens = 0
        self._told = self._amounts()
        lease.take_amounts = self._take_amounts

    async def run(self, route: Route) -> TurnEnd:
        """Work on the item until it is finished or has to be returned."""
        is_whole = self._classification.is_whole or self._progress.stats.needs_whole
        end, disruption = await (self._ask_whole(route) if is_whole else self._ask_parts(route))
        self._tools.on_ended(self._lease)
        self._tools.meters.legs.labels(disruption.value).inc()
        if disruption is Disruption.NONE:
            reply = end.body if is_whole else self._reply()
            await self._finish(ItemState.SUCCEEDED, self._result(end.status, reply))
        elif disruption is Disruption.REFUSED:
            await self._finish(ItemState.FAILED, self._result(end.status, _json_or_error(end)))
        else:
            await self._return_or_give_up(disruption, end)
        return TurnEnd(disruption, end.retry_after_s)

    def give_back(self) -> None:
        """The worker stops: return the item with all it has, to be taken at once."""
        if self._lease.progress is self._progress:
            self._settle_return(0.0)

    async def fail(self, error: Exception) -> None:
        """An error of ours: count it like a failure of the server, so that the item ends some time."""
        message = f"internal error ({type(error).__name__})"
        end = StreamEnd(kind=EndKind.ERROR_EVENT, at=self._tools.clock.now(), message=message)
        await self._return_or_give_up(Disruption.FAILED, end)

    def _take_amounts(self) -> dict[str, int]:
        """What has happened since the last call, for the job's totals."""
        now = self._amounts()
        news = {name: value - self._told[name] for name, value in now.items() if value != self._told[name]}
        self._told = now
        return news

    def _amounts(self) -> dict[str, int]:
        stats = self._progress.stats
        return {
            "output_tokens": self._output_tokens,
            "resumed_tokens": stats.resumed_tokens,
            "redone_tokens": stats.redone_tokens,
            "evictions": stats.evictions,
            "restarts": stats.restarts,
            "attempts": stats.attempts,
        }

    # Streamed requests

    async def _ask_parts(self, route: Route) -> tuple[StreamEnd, Disruption]:
        end = StreamEnd(kind=EndKind.FINISHED, at=self._tools.clock.now(), status=200)
        for part, generation in zip(self._parts, self._progress.generations, strict=True):
            if generation.is_finished:
                continue
            self._lease.part = part.index
            held = len(generation.ids)
            leg = await self._plan_leg(route, part, generation)
            held_after_cut = len(generation.ids)
            try:
                end = await self._stream(route, leg, generation)
            except _ShapeError as error:
                self._progress.stats.needs_whole = True
                self._restart(str(error))
                return end, Disruption.MISSHAPEN
            gained = len(generation.ids) - held_after_cut
            disruption = self._interpret(route, end, gained)
            if disruption is not Disruption.NONE:
                self._note_progress(len(generation.ids) > held)
                return end, disruption
        return end, Disruption.NONE

    async def _plan_leg(self, route: Route, part: Part, generation: Generation) -> Leg:
        """A continuation where there is something to continue from, else the client's own request."""
        endpoint, stats = self._job.endpoint, self._progress.stats
        if generation.ids and self._can_resume:
            if generation.prompt_ids is None:
                generation.prompt_ids = await self._tools.gateway.fetch_prompt_ids(
                    route, endpoint, self._body
                )
            limit = await self._token_limit(route, generation)
            if limit is not None:
                cut = find_cut(generation, self._body, limit)
                self._count_redone(generation.rewind(cut.tokens, cut.chars))
                leg = continue_leg(endpoint, self._body, part, generation, limit)
                if leg is not None:
                    stats.resumed_tokens += leg.resumed_tokens
                    self._tools.meters.resumed_tokens.inc(leg.resumed_tokens)
                    return leg
        if generation.ids or generation.chars:
            self._count_redone(generation.rewind(0, 0))
            self._count_restart("no safe point to continue from")
        return first_leg(endpoint, self._body, part)

    async def _token_limit(self, route: Route, generation: Generation) -> int | None:
        prompt_tokens = len(generation.prompt_ids or ())
        limit = token_limit(self._job.endpoint, self._body, prompt_tokens, None)
        if limit is None:
            length = await self._tools.gateway.max_model_len(route, str(self._body.get("model")))
            limit = token_limit(self._job.endpoint, self._body, prompt_tokens, length)
        return limit

    async def _stream(self, route: Route, leg: Leg, generation: Generation) -> StreamEnd:
        self._progress.stats.attempts += 1
        certain = leg.body.get("max_tokens") if leg.body.get("ignore_eos") else None
        headers = self._headers(certain if isinstance(certain, int) else None)
        stream = self._tools.gateway.stream(route, leg.path, leg.body, headers, self._timeout_s())
        async with stream as answer:
            if answer.headers_at is not None:
                self._note_headers(answer.headers_at - answer.sent_at)
            async for piece in answer:
                self._take(piece, leg, generation)
                self._tools.journal.mark(self._lease)
            end = answer.end
        self._tools.gateway.note_end(route, end)
        if end.kind is EndKind.FINISHED and end.usage is not None:
            if leg.resumed_tokens == 0:
                generation.cached_tokens = end.usage.cached_tokens
            if not generation.ids:
                generation.reported = (end.usage.prompt_tokens or 0, end.usage.output_tokens or 0)
        return end

    def _take(self, piece: Piece, leg: Leg, generation: Generation) -> None:
        if piece.reasoning or piece.tool_calls is not None:
            raise _ShapeError("the server parses its output")
        if piece.prompt_token_ids is not None:
            if leg.resumed_tokens == 0:
                generation.prompt_ids = piece.prompt_token_ids
            elif list(piece.prompt_token_ids) != leg.body["prompt"]:
                raise _ShapeError("the server changed the prompt's token ids")
        rows: list[bytes] = []
        if piece.logprobs is not None and piece.token_ids:
            try:
                rows = split_logprobs(piece.logprobs, len(piece.token_ids))
            except (ValueError, msgspec.DecodeError) as error:
                raise _ShapeError("log probabilities of another shape") from error
        generation.append(piece.token_ids, piece.text, rows)
        self._output_tokens += len(piece.token_ids)
        self._tools.meters.output_tokens.inc(len(piece.token_ids))
        if piece.finish_reason is not None and piece.finish_reason != "abort":
            generation.finish_reason, generation.stop_reason = piece.finish_reason, piece.stop_reason

    # Unstreamed requests

    async def _ask_whole(self, route: Route) -> tuple[StreamEnd, Disruption]:
        body = {name: value for name, value in self._body.items() if name not in ("stream", "stream_options")}
        self._progress.stats.attempts += 1
        self._note_headers(0.0)
        raw = msgspec.json.encode(body)
        end = await self._tools.gateway.call(
            route, self._job.endpoint, raw, self._headers(), self._timeout_s()
        )
        self._tools.gateway.note_end(route, end)
        if end.kind is EndKind.FINISHED and not _is_json(end.body):
            return end, Disruption.FAILED
        return end, self._interpret(route, end, 0)

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
        repeats = self._count(disruption)
        if not self._can_resume and self._progress.saved_tokens:
            self._restart(", ".join(self._classification.features) or self._tools.mode.value)
        delay_s = self._tools.policy.delay_s(
            disruption, repeats, end.retry_after_s, self._tools.rng, resumes=self._can_resume
        )
        if delay_s is not None:
            await self._settle_return(delay_s)
            return
        last = end.message or end.kind.value
        message = f"gave up after {repeats} attempts in a row without progress; the last: {last}"
        await self._finish(ItemState.FAILED, self._failure("attempts_exhausted", message))

    def _count(self, disruption: Disruption) -> int:
        """Count the end; return how many such there were in a row."""
        stats = self._progress.stats
        match disruption:
            case Disruption.EVICTED:
                stats.evictions += 1
                self._tools.meters.evictions.inc()
                return stats.evictions
            case Disruption.BROKEN:
                stats.breaks += 1
                return stats.breaks
            case Disruption.FAILED:
                stats.failures += 1
                return stats.failures
            case _:
                stats.waits += 1
                return stats.waits

    def _note_progress(self, has_new_tokens: bool) -> None:
        stats = self._progress.stats
        if has_new_tokens and self._can_resume:
            stats.failures = stats.breaks = stats.waits = 0

    def _restart(self, feature: str) -> None:
        self._count_redone(self._progress.discard())
        self._count_restart(feature)

    def _count_redone(self, tokens: int) -> None:
        self._progress.stats.redone_tokens += tokens
        self._tools.meters.redone_tokens.inc(tokens)

    def _count_restart(self, feature: str) -> None:
        self._progress.stats.restarts += 1
        self._tools.meters.restarts.labels(feature).inc()

    def _note_headers(self, queue_s: float) -> None:
        self._progress.stats.queue_s += queue_s
        self._tools.on_headers(self._lease, queue_s)

    async def _finish(self, state: ItemState, result: bytes) -> None:
        change = Finish(self._lease.key, self._lease.token, state, result, self._take_amounts())
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
            self._take_amounts(),
        )
        return self._tools.journal.settle(self._lease, change)

    @property
    def _can_resume(self) -> bool:
        return self._classification.can_resume(self._tools.mode) and not self._progress.stats.needs_whole

    @property
    def _request_id(self) -> str:
        return f"{self._job.id}-{self._lease.key.line}"

    def _headers(self, output_tokens: int | None = None) -> Mapping[str, str]:
        """What the gateway orders and evicts by; `output_tokens` when their number is certain."""
        headers = {
            names.REQUEST_ID: self._request_id,
            names.DEADLINE_MS: str(int(self._job.deadline * 1000)),
            names.TTL_MS: str(int(self._tools.queue_timeout_s * 1000)),
            names.RESUMABLE: "true" if self._can_resume else "false",
        }
        if output_tokens is not None:
            headers[names.EXPECTED_OUTPUT_TOKENS] = str(output_tokens)
        return headers

    def _timeout_s(self) -> float:
        left_s = self._job.deadline - self._tools.clock.wall_time()
        return max(0.001, min(left_s, self._tools.request_timeout_s))

    def _reply(self) -> bytes:
        prefix = "cmpl" if self._job.endpoint == "/v1/completions" else "chatcmpl"
        head = ReplyHead(
            id=f"{prefix}-{self._request_id}",
            model=str(self._body.get("model")),
            created=int(self._tools.clock.wall_time()),
        )
        return build_reply(self._job.endpoint, self._body, self._progress.generations, head)

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
