"""The reply of a finished request, rebuilt from its generations in OpenAI's shape, and the result lines.
Pure.

The reply is what the server would have sent in one piece had nothing interrupted it: texts of the legs
joined, usage added up, log probabilities with their text offsets moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from extproc.batch.intake import COMPLETIONS
from extproc.batch.progress import Generation, Stats
from extproc.batch.resume import Part, parts_of
from extproc.batch.traits import Body, prompts_of

encode_json = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyHead:
    """What a reply says of itself. `created` is in epoch seconds."""

    id: str
    model: str
    created: int


class _PieceLogprobs(msgspec.Struct):
    """The arrays that vLLM sends with one piece of a completion."""

    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] | None = None


class TokenLogprob(msgspec.Struct, array_like=True):
    """One token's row: its text, log probability and alternatives."""

    token: str
    logprob: float | None
    top: dict[str, float] | None


def split_logprobs(raw: bytes, tokens: int) -> list[bytes]:
    """One encoded row per token of a piece; `ValueError` when the arrays don't fit its `tokens`."""
    piece = msgspec.json.decode(raw, type=_PieceLogprobs)
    tops = piece.top_logprobs or [None] * tokens
    if not len(piece.tokens) == len(piece.token_logprobs) == len(tops) == tokens:
        raise ValueError(f"log probabilities of {len(piece.tokens)} tokens came with {tokens} tokens")
    rows = zip(piece.tokens, piece.token_logprobs, tops, strict=True)
    return [msgspec.msgpack.encode(TokenLogprob(*row)) for row in rows]


def build_reply(endpoint: str, body: Body, generations: Sequence[Generation], head: ReplyHead) -> bytes:
    """The JSON of the unstreamed answer to `body`, given its finished generations in order."""
    parts = parts_of(endpoint, body)
    pairs = list(zip(parts, generations, strict=True))
    is_completion = endpoint == COMPLETIONS
    build = _completion_choice if is_completion else _chat_choice
    first_of_prompt = [generation for part, generation in pairs if part.choice == 0]
    reply: dict[str, object] = {
        "id": head.id,
        "object": "text_completion" if is_completion else "chat.completion",
        "created": head.created,
        "model": head.model,
        "choices": [build(body, part, generation) for part, generation in pairs],
        "usage": usage_of(first_of_prompt, generations),
    }
    if body.get("return_token_ids") and not is_completion:
        reply["prompt_token_ids"] = generations[0].prompt_ids
    return encode_json(reply)


def _counts(generation: Generation) -> tuple[int, int]:
    """Prompt and output tokens: the ids that were seen, else what the server reported."""
    if not generation.ids and generation.reported is not None:
        return generation.reported
    return len(generation.prompt_ids or ()), len(generation.ids)


def usage_of(first: Sequence[Generation], generations: Sequence[Generation]) -> dict[str, object]:
    """The usage block; `first` holds one generation of each prompt, since a prompt counts once."""
    prompt_tokens = sum(_counts(generation)[0] for generation in first)
    output_tokens = sum(_counts(generation)[1] for generation in generations)
    usage: dict[str, object] = {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": prompt_tokens + output_tokens,
    }
    cached = [generation.cached_tokens for generation in first if generation.cached_tokens is not None]
    if cached:
        usage["prompt_tokens_details"] = {"cached_tokens": sum(cached)}
    return usage


def _completion_choice(body: Body, part: Part, generation: Generation) -> dict[str, object]:
    prompt = prompts_of(body)[part.prompt]
    echoed = prompt if body.get("echo") and isinstance(prompt, str) else ""
    choice: dict[str, object] = {
        "index": part.index,
        "text": echoed + generation.text,
        "logprobs": _joined_logprobs(generation) if body.get("logprobs") is not None else None,
        "finish_reason": generation.finish_reason,
        "stop_reason": generation.stop_reason,
    }
    if body.get("return_token_ids"):
        choice["prompt_token_ids"] = generation.prompt_ids
        choice["token_ids"] = generation.ids
    return choice


def _chat_choice(body: Body, part: Part, generation: Generation) -> dict[str, object]:
    choice: dict[str, object] = {
        "index": part.index,
        "message": {"role": "assistant", "content": generation.text},
        "logprobs": None,
        "finish_reason": generation.finish_reason,
        "stop_reason": generation.stop_reason,
    }
    if body.get("return_token_ids"):
        choice["token_ids"] = generation.ids
    return choice


def _joined_logprobs(generation: Generation) -> dict[str, object]:
    rows = [msgspec.msgpack.decode(raw, type=TokenLogprob) for raw in generation.logprobs]
    offsets: list[int] = []
    position = 0
    for row in rows:
        offsets.append(position)
        position += len(row.token)
    return {
        "text_offset": offsets,
        "token_logprobs": [row.logprob for row in rows],
        "tokens": [row.token for row in rows],
        "top_logprobs": [row.top for row in rows],
    }


def result_line(
    *,
    request_id: str,
    custom_id: str,
    status: int,
    reply: bytes,
    stats: Stats,
    verdict: str,
) -> bytes:
    """One line of the output (2xx) or error file, with what the request went through under `extproc`."""
    return encode_json(
        {
            "id": f"batch_req_{request_id}",
            "custom_id": custom_id,
            "response": {"status_code": status, "request_id": request_id, "body": msgspec.Raw(reply)},
            "error": None,
            "extproc": _trail(stats, verdict),
        }
    )


def failure_line(
    *, request_id: str, custom_id: str, code: str, message: str, stats: Stats, verdict: str = ""
) -> bytes:
    """One line of the error file for a request that never got an answer."""
    return encode_json(
        {
            "id": f"batch_req_{request_id}",
            "custom_id": custom_id,
            "response": None,
            "error": {"code": code, "message": message},
            "extproc": _trail(stats, verdict),
        }
    )


def _trail(stats: Stats, verdict: str) -> dict[str, object]:
    return {
        "attempts": stats.attempts,
        "evictions": stats.evictions,
        "restarts": stats.restarts,
        "resumed_tokens": stats.resumed_tokens,
        "redone_tokens": stats.redone_tokens,
        "queue_s": round(stats.queue_s, 3),
        "resume": verdict,
    }
