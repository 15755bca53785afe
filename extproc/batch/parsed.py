"""Chat answers that the server's parser splits up (reasoning, tool calls), made from token ids. Pure.

Such an answer can't be joined from the texts of its legs: the parser must see all of it. So its prompt is
rendered to token ids first, its legs are completions over ids, and a render server makes the message from all
ids in the end. It knows nothing of HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from extproc.batch.intake import CHAT
from extproc.batch.progress import Generation
from extproc.batch.reply import ReplyHead, encode_json, usage_of
from extproc.batch.traits import Body, is_set, stop_strings

_REPLACEMENT = "\ufffd"


def can_be_parsed(endpoint: str, body: Body) -> bool:
    """Whether the message can be made from token ids alone.

    Not with stop strings, which cut the text inside a token, nor with log probabilities, which the legs have
    in another shape.
    """
    return endpoint == CHAT and not stop_strings(body) and not is_set(body, "logprobs")


class _SamplingParams(msgspec.Struct):
    structured_outputs: object = None


class _Rendered(msgspec.Struct):
    token_ids: list[int]
    features: object = None
    sampling_params: _SamplingParams = msgspec.field(default_factory=_SamplingParams)


def rendered_prompt(raw: bytes) -> tuple[int, ...] | None:
    """The prompt's ids of a render answer; None where ids alone would not give the same answer.

    That is with media, and with a grammar that the server's tool parser adds.
    """
    try:
        rendered = msgspec.json.decode(raw, type=_Rendered)
    except msgspec.DecodeError:
        return None
    if rendered.features or rendered.sampling_params.structured_outputs or not rendered.token_ids:
        return None
    return tuple(rendered.token_ids)


def derender_question(body: Body, generations: Sequence[Generation]) -> dict[str, object]:
    """What to ask the render server for the message of finished `generations`."""
    request = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
    choices = [
        {"index": index, "finish_reason": one.finish_reason, "token_ids": _shown_ids(one)}
        for index, one in enumerate(generations)
    ]
    return {
        "model": body.get("model"),
        "generate_response": {"request_id": "batch", "choices": choices},
        "prompt_tokens": len(generations[0].prompt_ids or ()),
        "chat_request": request,
    }


def _shown_ids(generation: Generation) -> list[int]:
    """Without the token that ended the answer: the engine leaves it out of the text, a render server not."""
    ended_by_token = generation.finish_reason == "stop" and not isinstance(generation.stop_reason, str)
    if ended_by_token and len(generation.ids) > 1:
        return generation.ids[:-1]
    return generation.ids


def parsed_reply(raw: bytes, body: Body, generations: Sequence[Generation], head: ReplyHead) -> bytes | None:
    """The reply from the render server's answer, in the shape of the server's own; None: it is not one."""
    try:
        reply = msgspec.json.decode(raw, type=dict[str, object])
        choices = msgspec.convert(reply["choices"], list[dict[str, object]])
        for choice, generation in zip(choices, generations, strict=True):
            _complete(choice, body, generation)
    except (msgspec.DecodeError, KeyError, ValueError, TypeError):
        return None
    reply |= {"id": head.id, "created": head.created, "model": head.model, "choices": choices}
    reply["usage"] = usage_of(generations[:1], generations)
    if body.get("return_token_ids"):
        reply["prompt_token_ids"] = generations[0].prompt_ids
    return encode_json(reply)


def _complete(choice: dict[str, object], body: Body, generation: Generation) -> None:
    message = msgspec.convert(choice["message"], dict[str, object])
    calls = message.get("tool_calls")
    choice["finish_reason"] = "tool_calls" if calls else generation.finish_reason
    choice["stop_reason"] = generation.stop_reason
    if body.get("return_token_ids"):
        choice["token_ids"] = generation.ids
    if not calls and not generation.text.endswith(_REPLACEMENT):
        # Of a character that the limit cut in two the engine shows nothing, the render server this mark.
        last = "content" if message.get("content") else "reasoning"
        text = message.get(last)
        if isinstance(text, str):
            message[last] = text.rstrip(_REPLACEMENT) or None
    choice["message"] = message
