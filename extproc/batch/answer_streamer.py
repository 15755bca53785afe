"""Getting one answer of an item from the server: plan the leg, stream it, keep what comes. One leg per call.

It saves through the journal and counts in the trail; what the end of a leg means is the turn's business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import msgspec

from extproc.batch.gateway import Gateway, Route
from extproc.batch.journal import Journal, Lease
from extproc.batch.parsed import rendered_prompt
from extproc.batch.planner import is_away
from extproc.batch.progress import Generation
from extproc.batch.reply import split_logprobs
from extproc.batch.resume import Leg, Part, continue_leg, find_cut, first_leg, token_leg, token_limit
from extproc.batch.trail import Trail
from extproc.batch.traits import Body
from extproc.client.answers import EndKind, Piece, StreamEnd
from extproc.exchange import names


class ShapeError(Exception):
    """The answer can't be rebuilt or trusted as streamed; the message is the feature to be counted."""


class ParsedOutputError(ShapeError):
    """The server's stream holds what its parser made of the output, not the output."""


class RendererError(Exception):
    """The render server did not answer; `end` says how."""

    def __init__(self, end: StreamEnd) -> None:
        super().__init__(end.message)
        self.end = end


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerStreamer:
    """Streams the answers of one item. `headers` go with every leg; `on_headers(queue_s)` when they are
    answered.

    `timeout_s()` is what is left of the item's time.
    """

    gateway: Gateway
    route: Route
    journal: Journal
    lease: Lease
    trail: Trail
    endpoint: str
    body: Body
    can_resume: bool
    is_parsed: bool
    headers: Mapping[str, str]
    timeout_s: Callable[[], float]
    on_headers: Callable[[float], None]

    async def run_leg(self, part: Part, generation: Generation) -> tuple[StreamEnd, int]:
        """Send one request for what is missing of `generation`; how it ended, and the tokens it brought.

        Raises ShapeError when the stream can't be used, RendererError when its prompt can't be rendered now.
        """
        leg = await self._plan(part, generation)
        held = len(generation.ids)
        end = await self._stream(leg, generation)
        self.gateway.note_end(self.route, end)
        if end.kind is EndKind.FINISHED and end.usage is not None:
            if leg.resumed_tokens == 0:
                generation.cached_tokens = end.usage.cached_tokens
            if not generation.ids:
                generation.reported = (end.usage.prompt_tokens or 0, end.usage.output_tokens or 0)
        return end, len(generation.ids) - held

    async def _plan(self, part: Part, generation: Generation) -> Leg:
        """A continuation where there is something to continue from, else the client's own request.

        With `is_parsed` that request is sent as a completion over its rendered prompt.
        """
        first = first_leg(self.endpoint, self.body, part)
        if self.is_parsed and generation.prompt_ids is None:
            generation.prompt_ids = await self._rendered_prompt(first)
        if generation.ids and self.can_resume:
            if generation.prompt_ids is None:
                ids = await self.gateway.fetch_prompt_ids(self.route, self.endpoint, first.body)
                generation.prompt_ids = ids
            limit = await self._token_limit(generation)
            if limit is not None:
                cut = find_cut(generation, self.body, limit)
                self.trail.redone(generation.rewind(cut.tokens, cut.chars))
                leg = continue_leg(self.endpoint, self.body, part, generation, limit)
                if leg is not None:
                    self.trail.resumed(leg.resumed_tokens)
                    return self._showing_all(leg)
        if generation.ids or generation.chars:
            self.trail.redone(generation.rewind(0, 0))
            self.trail.restarted("no safe point to continue from")
        return await self._first_over_ids(part, generation) if self.is_parsed else first

    async def _rendered_prompt(self, first: Leg) -> tuple[int, ...]:
        end = await self.gateway.render(self.endpoint, first.body)
        if is_away(end):
            raise RendererError(end)
        prompt_ids = rendered_prompt(end.body) if end.kind is EndKind.FINISHED else None
        if prompt_ids is None:
            raise ShapeError("the render server makes no token ids of the prompt")
        return prompt_ids

    async def _first_over_ids(self, part: Part, generation: Generation) -> Leg:
        limit = await self._token_limit(generation)
        leg = None if limit is None else token_leg(self.endpoint, self.body, part, generation, limit)
        if leg is None:
            raise ShapeError("the context length is unknown")
        return self._showing_all(leg)

    def _showing_all(self, leg: Leg) -> Leg:
        """A parser looks at special tokens, so a parsed answer's text must have them."""
        return replace(leg, body={**leg.body, "skip_special_tokens": False}) if self.is_parsed else leg

    async def _token_limit(self, generation: Generation) -> int | None:
        prompt_tokens = len(generation.prompt_ids or ())
        limit = token_limit(self.endpoint, self.body, prompt_tokens, None)
        if limit is None:
            length = await self.gateway.max_model_len(self.route, str(self.body.get("model")))
            limit = token_limit(self.endpoint, self.body, prompt_tokens, length)
        return limit

    async def _stream(self, leg: Leg, generation: Generation) -> StreamEnd:
        self.trail.sent()
        headers = dict(self.headers)
        if leg.body.get("ignore_eos") and "max_tokens" in leg.body:
            headers[names.EXPECTED_OUTPUT_TOKENS] = str(leg.body["max_tokens"])
        async with self.gateway.stream(self.route, leg.path, leg.body, headers, self.timeout_s()) as answer:
            if answer.headers_at is not None:
                self.on_headers(answer.headers_at - answer.sent_at)
            async for piece in answer:
                self._take(piece, leg, generation)
                self.journal.mark(self.lease)
            return answer.end

    def _take(self, piece: Piece, leg: Leg, generation: Generation) -> None:
        if piece.reasoning or piece.tool_calls is not None:
            raise ParsedOutputError("the server parses its output")
        if piece.prompt_token_ids is not None:
            if leg.resumed_tokens == 0:
                generation.prompt_ids = piece.prompt_token_ids
            elif list(piece.prompt_token_ids) != leg.body["prompt"]:
                raise ShapeError("the server changed the prompt's token ids")
        rows: list[bytes] = []
        if piece.logprobs is not None and piece.token_ids:
            try:
                rows = split_logprobs(piece.logprobs, len(piece.token_ids))
            except (ValueError, msgspec.DecodeError) as error:
                raise ShapeError("log probabilities of another shape") from error
        generation.append(piece.token_ids, piece.text, rows)
        self.trail.received(len(piece.token_ids))
        if piece.finish_reason is not None and piece.finish_reason != "abort":
            generation.finish_reason, generation.stop_reason = piece.finish_reason, piece.stop_reason
