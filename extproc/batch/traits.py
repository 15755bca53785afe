"""What a request body asks for: the predicates of the resume table and the figures its rules need. Pure.

Bodies are the client's JSON and have not been checked: every accessor copes with wrong types, since a request
that the engine will refuse must reach the engine, which says why.
"""

from __future__ import annotations

from collections.abc import Mapping

Body = Mapping[str, object]


def is_set(body: Body, *names: str) -> bool:
    return any(body.get(name) not in (None, False, 0, "", [], {}) for name in names)


def is_greedy(body: Body) -> bool:
    """Whether decoding takes the most likely token: an explicit temperature of 0.

    A missing temperature is the server's default (its generation config's, else 1), that is: sampled.
    """
    temperature = body.get("temperature")
    return isinstance(temperature, (int, float)) and not isinstance(temperature, bool) and temperature == 0


def count(body: Body, name: str, default: int = 1) -> int:
    value = body.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def is_structured(body: Body, endpoint: str) -> bool:
    response_format = body.get("response_format")
    is_text = isinstance(response_format, Mapping) and response_format.get("type") == "text"
    guided = any(name.startswith("guided_") and body[name] is not None for name in body)
    return guided or is_set(body, "structured_outputs") or (bool(response_format) and not is_text)


def forces_tool(body: Body, endpoint: str) -> bool:
    choice = body.get("tool_choice")
    return bool(body.get("tools")) and (choice == "required" or isinstance(choice, Mapping))


def may_use_tools(body: Body, endpoint: str) -> bool:
    is_off = body.get("tool_choice") == "none"
    return bool(body.get("tools")) and not is_off and not forces_tool(body, endpoint)


def is_multimodal(body: Body, endpoint: str) -> bool:
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, Mapping) else None
        for part in content if isinstance(content, list) else ():
            if isinstance(part, Mapping) and part.get("type", "text") not in ("text", "refusal"):
                return True
    return False


def has_text_prompt(body: Body) -> bool:
    prompt = body.get("prompt")
    if isinstance(prompt, list):
        return bool(prompt) and all(isinstance(one, str) for one in prompt)
    return isinstance(prompt, str)


def echoes_simply(body: Body, endpoint: str) -> bool:
    return is_set(body, "echo") and not echoes_tokens(body, endpoint)


def echoes_tokens(body: Body, endpoint: str) -> bool:
    """Echo that only the server can do: of token ids, with log probabilities, or of the prompt alone."""
    if not is_set(body, "echo"):
        return False
    return not has_text_prompt(body) or body.get("logprobs") is not None or body.get("max_tokens") == 0


def repetition_window(body: Body) -> int | None:
    rule = body.get("repetition_detection")
    if not isinstance(rule, Mapping):
        return None
    size, count = rule.get("max_pattern_size"), rule.get("min_count")
    return size * count - 1 if isinstance(size, int) and isinstance(count, int) and size * count > 0 else None


def prompts_of(body: Body) -> list[object]:
    """The prompts of a completions body: usually one, several when it is a list of texts or of id lists."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        return list(prompt)
    return [prompt]


def is_several(body: Body, endpoint: str) -> bool:
    """More than one answer is asked for, in a way that can be split."""
    return (len(prompts_of(body)) > 1 or count(body, "n") > 1) and not (
        is_greedy(body) and count(body, "n") > 1
    )


def penalises_frequency(body: Body, endpoint: str) -> bool:
    return is_set(body, "frequency_penalty")


def detects_repetition(body: Body, endpoint: str) -> bool:
    return is_set(body, "repetition_detection")


_KNOWN_FIELDS = frozenset(
    [
        "model",
        "prompt",
        "messages",
        "max_tokens",
        "max_completion_tokens",
        "min_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "n",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "include_stop_str_in_output",
        "logit_bias",
        "allowed_token_ids",
        "bad_words",
        "logprobs",
        "top_logprobs",
        "prompt_logprobs",
        "echo",
        "repetition_penalty",
        "frequency_penalty",
        "presence_penalty",
        "repetition_detection",
        "use_beam_search",
        "best_of",
        "length_penalty",
        "structured_outputs",
        "response_format",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "stream",
        "stream_options",
        "stream_interval",
        "return_token_ids",
        "return_tokens_as_token_ids",
        "include_reasoning",
        "cache_salt",
        "priority",
        "request_id",
        "user",
        "metadata",
        "store",
        "service_tier",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "truncate_prompt_tokens",
        "add_special_tokens",
        "add_generation_prompt",
        "continue_final_message",
        "chat_template",
        "chat_template_kwargs",
        "documents",
        "thinking_token_budget",
        "prompt_embeds",
    ]
)


def has_unknown_field(body: Body, endpoint: str) -> bool:
    given = (name for name, value in body.items() if value is not None)
    return any(name not in _KNOWN_FIELDS and not name.startswith("guided_") for name in given)


def rewind_tokens(body: Body) -> int:
    """How many saved tokens a continuation must drop at least, so that the engine checks them again.

    `bad_words`: a word of b bytes has at most b + 1 tokens (one for a leading space), and all but one of them
    may lie before the cut. `repetition_detection`: its whole window but one token.
    """
    words = body.get("bad_words")
    longest = (
        max((len(word.encode()) for word in words if isinstance(word, str)), default=0)
        if isinstance(words, list)
        else 0
    )
    return max(longest, repetition_window(body) or 0)


def stop_strings(body: Body) -> tuple[str, ...]:
    """The stop strings as a tuple, empty ones left out."""
    stop = body.get("stop")
    if isinstance(stop, str):
        return (stop,) if stop else ()
    return tuple(one for one in stop if isinstance(one, str) and one) if isinstance(stop, list) else ()
