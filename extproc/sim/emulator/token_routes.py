"""vLLM's routes beside generation: tokenize, detokenize and render. Pure: values in, values out."""

from __future__ import annotations

import msgspec

from extproc.sim import tokenizer
from extproc.sim.emulator.request import (
    ApiError,
    ChatMessage,
    Generation,
    ServedModel,
    chat_prompt_ids,
    check_model,
)


class TokenizeBody(msgspec.Struct, kw_only=True):
    """Either a prompt or chat messages."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_generation_prompt: bool = True
    return_token_strs: bool | None = False


class DetokenizeBody(msgspec.Struct, kw_only=True):
    model: str | None = None
    tokens: list[int]


def tokenize(body: TokenizeBody, served: ServedModel) -> dict[str, object]:
    check_model(body.model, served)
    if body.messages is not None:
        ids = chat_prompt_ids(body.messages, body.add_generation_prompt)
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
                "skip_special_tokens": True,
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
