"""How an interrupted generation goes on: where to cut, what to send, how many tokens are left. Pure.

The continuation is a completions request whose prompt is the prompt's token ids followed by the saved output
ids, never text: text can be tokenised in another way. The cut steps back to a token that ends on a character
boundary, and further where the engine must check generated text or tokens again. It knows nothing of HTTP,
stores or schedules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from extproc.batch.intake import CHAT, COMPLETIONS
from extproc.batch.progress import Generation
from extproc.batch.traits import Body, count, prompts_of, rewind_tokens, stop_strings

_MAX_LOGIT_BIAS = 100.0
_DEFAULT_COMPLETION_TOKENS = 16

_CONTINUED_FIELDS = frozenset(
    [
        "model",
        "min_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "stop",
        "stop_token_ids",
        "ignore_eos",
        "include_stop_str_in_output",
        "logit_bias",
        "allowed_token_ids",
        "bad_words",
        "logprobs",
        "repetition_penalty",
        "frequency_penalty",
        "presence_penalty",
        "repetition_detection",
        "length_penalty",
        "return_tokens_as_token_ids",
        "cache_salt",
        "priority",
        "user",
        "skip_special_tokens",
        "spaces_between_special_tokens",
    ]
)
"""Fields that steer sampling or name the model: they go into every continuation, others made the prompt."""


@dataclass(frozen=True, slots=True)
class Part:
    """One answer of a request: choice `choice` of prompt `prompt`, at `index` in the reply."""

    index: int
    prompt: int
    choice: int


@dataclass(frozen=True, slots=True)
class Cut:
    """What of a generation is kept: tokens and characters of released text."""

    tokens: int
    chars: int


@dataclass(frozen=True, slots=True)
class Leg:
    """One request to the server: from nothing, or from `resumed_tokens` saved ones."""

    path: str
    body: dict[str, object]
    resumed_tokens: int = 0


def parts_of(endpoint: str, body: Body) -> list[Part]:
    """The answers a request asks for, in the order of their index: prompt by prompt, choice by choice."""
    prompts = len(prompts_of(body)) if endpoint == COMPLETIONS else 1
    choices = max(1, count(body, "n"))
    return [
        Part(prompt * choices + choice, prompt, choice)
        for prompt in range(prompts)
        for choice in range(choices)
    ]


def first_leg(endpoint: str, body: Body, part: Part) -> Leg:
    """The client's request for one answer, streamed and with token ids."""
    sent = {name: value for name, value in body.items() if value is not None}
    for name in ("n", "stream_interval", "echo"):
        sent.pop(name, None)
    if endpoint == COMPLETIONS:
        sent["prompt"] = prompts_of(body)[part.prompt]
    elif "include_reasoning" in sent:
        # With false a server that parses reasoning hides every token id; the reasoning is left out of the
        # reply.
        sent["include_reasoning"] = True
    _shift_seed(sent, part)
    return Leg(endpoint, sent | _STREAMING)


_STREAMING: dict[str, object] = {
    "stream": True,
    "return_token_ids": True,
    "stream_options": {"include_usage": True},
}


def _shift_seed(sent: dict[str, object], part: Part) -> None:
    seed = sent.get("seed")
    if isinstance(seed, int) and part.choice:
        sent["seed"] = seed + part.choice


def token_limit(endpoint: str, body: Body, prompt_tokens: int, max_model_len: int | None) -> int | None:
    """The most output tokens of one answer; None when only the server knows (its context length is unknown).

    Completions default to 16, chat to what the context length leaves; for chat `max_completion_tokens` wins.
    """
    names = ("max_completion_tokens", "max_tokens") if endpoint == CHAT else ("max_tokens",)
    for name in names:
        value = body.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    if endpoint == COMPLETIONS:
        return _DEFAULT_COMPLETION_TOKENS
    return None if max_model_len is None else max_model_len - prompt_tokens


def find_cut(generation: Generation, body: Body, limit: int) -> Cut:
    """The latest point from which the generation can go on exactly; (0, 0) when there is none.

    Let R_j be the characters released after token j, k the saved tokens, L the longest stop string. A cut at
    j needs: token j came alone and released text (a character boundary); j <= limit - 1 (one token is left to
    bring the finish reason); j <= k - rewind (tokens the engine must check again); R_j + L - 1 <= R_k (a stop
    string across the seam would have been seen). The engine holds back L - 1 characters unless stop strings
    are included in the output, so the text of the first j tokens is R_j + L - 1 characters, or R_j.
    """
    stops = stop_strings(body)
    reach = max((len(stop) for stop in stops), default=1) - 1
    held_back = 0 if body.get("include_stop_str_in_output") else reach
    latest = min(len(generation.ids) - rewind_tokens(body), limit - 1)
    for tokens in range(latest, 0, -1):
        released = generation.marks[tokens - 1]
        if released > 0 and released + reach <= generation.chars:
            return Cut(tokens, released + held_back)
    return Cut(0, 0)


def continue_leg(endpoint: str, body: Body, part: Part, generation: Generation, limit: int) -> Leg | None:
    """The request that goes on after `generation` (already cut); None when it can only start again."""
    return token_leg(endpoint, body, part, generation, limit) if generation.ids else None


def token_leg(endpoint: str, body: Body, part: Part, generation: Generation, limit: int) -> Leg | None:
    """The same for what may have no output yet: a completion over the ids of prompt and output."""
    saved = len(generation.ids)
    if generation.prompt_ids is None:
        return None
    sent = {name: value for name, value in body.items() if name in _CONTINUED_FIELDS and value is not None}
    if endpoint == CHAT:
        sent.pop("logprobs", None)
    _shift_seed(sent, part)
    if not _move_frequency_penalty(sent, generation.ids):
        return None
    sent["prompt"] = [*generation.prompt_ids, *generation.ids]
    sent["max_tokens"] = limit - saved
    if "min_tokens" in sent:
        sent["min_tokens"] = max(0, count(body, "min_tokens", 0) - saved)
    return Leg(COMPLETIONS, sent | _STREAMING, resumed_tokens=saved)


def _move_frequency_penalty(sent: dict[str, object], ids: list[int]) -> bool:
    """Charge the saved tokens' penalty through `logit_bias`; False when a bias would leave its range."""
    penalty = sent.get("frequency_penalty")
    if not isinstance(penalty, (int, float)) or not penalty:
        return True
    given = sent.get("logit_bias")
    biases = {int(token): float(bias) for token, bias in given.items()} if isinstance(given, Mapping) else {}
    for token in ids:
        biases[token] = biases.get(token, 0.0) - penalty
    sent["logit_bias"] = {str(token): bias for token, bias in biases.items()}
    return all(abs(bias) <= _MAX_LOGIT_BIAS for bias in biases.values())
