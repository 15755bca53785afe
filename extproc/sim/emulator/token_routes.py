"""vLLM's routes beside generation: tokenize, detokenize and render. Pure: values in, values out."""

from __future__ import annotations

import msgspec

from extproc.sim import tokenizer
from extproc.sim.emulator.chunks import usage
from extproc.sim.emulator.parsing import derendered_message
from extproc.sim.emulator.request import (
    ApiError,
    ChatBody,
    ChatMessage,
    Generation,
    ServedModel,
    chat_prompt_ids,
    check_model,
    tool_name,
)


class TokenizeBody(msgspec.Struct, kw_only=True):
    """Either a prompt or chat messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_generation_prompt: bool = True
    tools: list[dict[str, object]] | None = None
    return_token_strs: bool | None = False


class DerenderedChoice(msgspec.Struct, kw_only=True):
    index: int
    finish_reason: str | None = "stop"
    token_ids: list[int] | None = None


class GenerateResponse(msgspec.Struct, kw_only=True):
    request_id: str = ""
    choices: list[DerenderedChoice]


class DerenderBody(msgspec.Struct, kw_only=True):
    """The answer of a token-only generation, and the chat request that it belongs to."""

    model: str | None = None
    generate_response: GenerateResponse
    prompt_tokens: int | None = None
    chat_request: ChatBody | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    tokens: list[int]


def tokenize(body: TokenizeBody, served: ServedModel) -> dict[str, object]:
    check_model(body.model, served)
    if body.messages is not None:
        ids = chat_prompt_ids(body.messages, body.add_generation_prompt, body.tools)
    elif body.prompt is not None:
        ids = tokenizer.encode(body.prompt)
    else:
        raise ApiError(400, "either prompt or messages is required", kind="Bad Request", param="body")
    strings = [tokenizer.decode([token_id]) for token_id in ids] if body.return_token_strs else None
    return {
        "count": len(ids),
        "max_model_len": served.max_model_len,
        "tokens": ids,
        "token_strs": strings,
    }


def detokenize(body: DetokenizeBody, served: ServedModel) -> dict[str, object]:
    """The text of ids, special tokens included: it is not the text that an answer would show."""
    check_model(body.model, served)
    for token_id in body.tokens:
        if not 0 <= token_id < tokenizer.VOCABULARY_SIZE:
            raise ApiError(400, f"Token id {token_id} is out of vocabulary")
    return {"prompt": tokenizer.decode(body.tokens)}


def derendered(body: DerenderBody, served: ServedModel, created: int) -> dict[str, object]:
    """The chat answer that the ids of a generation make: the parser sees all of them, special ones too.

    As in vLLM 0.30: the finish reason is passed through also with tool calls, and of a character that is cut
    in two U+FFFD is left.
    """
    check_model(body.model, served)
    tool = tool_name(body.chat_request.tools) if body.chat_request else None
    choices = []
    for choice in body.generate_response.choices:
        if not choice.token_ids:
            raise ApiError(400, f"choice {choice.index} has empty or null token_ids")
        message = derendered_message(choice.token_ids, tool, parses=served.parses_output)
        choices.append(
            {
                "index": choice.index,
                "message": message,
                "logprobs": None,
                "finish_reason": choice.finish_reason,
                "stop_reason": None,
                "token_ids": None,
            }
        )
    output_tokens = sum(len(choice.token_ids or ()) for choice in body.generate_response.choices)
    return {
        "id": body.generate_response.request_id,
        "object": "chat.completion",
        "created": created,
        "model": served.name,
        "choices": choices,
        "usage": usage(body.prompt_tokens or 0, output_tokens),
    }


def rendered(generation: Generation, request_id: str) -> list[dict[str, object]]:
    """What the engine would be given for each prompt of a request, with every default resolved."""
    return [
        {
            "request_id": request_id,
            "token_ids": prompt,
            "assistant_tokens_mask": None,
            "token_offsets": None,
            "features": None,
            "content_parts": None,
            "sampling_params": {
                "n": generation.n,
                "temperature": generation.temperature,
                "seed": generation.seed,
                "stop": list(generation.stop),
                "stop_token_ids": sorted(generation.stop_token_ids),
                "ignore_eos": generation.ignores_eos,
                "max_tokens": limit,
                "min_tokens": generation.min_tokens,
                "logprobs": generation.logprobs,
                "include_stop_str_in_output": generation.includes_stop,
                "skip_special_tokens": not generation.parses,
                "output_kind": 1 if generation.is_streaming else 2,
            },
            "model": generation.model,
            "return_token_ids": generation.returns_token_ids or None,
            "stream": generation.is_streaming,
            "stream_options": {"include_usage": True} if generation.includes_usage else None,
            "cache_salt": generation.cache_salt or None,
            "priority": generation.priority,
        }
        for prompt, limit in zip(generation.prompts, generation.max_tokens, strict=True)
    ]
