"""Request bodies of the OpenAI routes: parsed and refused as vLLM 0.30 does. Pure: bytes in, values out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import msgspec

from extproc.sim import tokenizer

COMPLETIONS_DEFAULT_MAX_TOKENS = 16
MAX_CHOICES = 16_384
"""`n` of one request: each is a sequence, and all of them are made before the first step."""


class ApiError(Exception):
    """A refusal with the fields of vLLM's error object."""

    def __init__(
        self, status: int, message: str, *, kind: str = "BadRequestError", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param

    def body(self) -> bytes:
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}
        return msgspec.json.encode({"error": error})


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class _Body(msgspec.Struct, kw_only=True):
    """Fields that both routes share; unknown fields are accepted and ignored, as in vLLM."""

    model: str | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    min_tokens: int | None = 0
    n: int | None = 1
    temperature: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    presence_penalty: float | None = 0.0
    frequency_penalty: float | None = 0.0
    return_token_ids: bool | None = None
    cache_salt: str | None = None
    priority: int = 0


class CompletionBody(_Body, kw_only=True):
    prompt: str | list[str | int | list[int]] | None = None
    logprobs: int | None = None
    echo: bool | None = False
    suffix: str | None = None


class ChatMessage(msgspec.Struct):
    role: str
    content: str | list[dict[str, object]] | None = None


class ChatBody(_Body, kw_only=True):
    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = 0
    add_generation_prompt: bool = True
    tools: list[dict[str, object]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A request that may run: everything resolved, one entry of `prompts` for each prompt."""

    kind: Literal["completion", "chat"]
    model: str
    prompts: list[list[int]]
    max_tokens: list[int]
    """Limit of output tokens, for each prompt."""
    min_tokens: int
    n: int
    temperature: float
    seed: int | None
    stop: tuple[str, ...]
    stop_token_ids: frozenset[int]
    includes_stop: bool
    ignores_eos: bool
    is_positional: bool
    is_streaming: bool
    includes_usage: bool
    has_continuous_usage: bool
    returns_token_ids: bool
    echoes: bool
    logprobs: int | None
    eos_one_in: int
    cache_salt: str
    priority: int
    parses: bool = False
    """A parser splits the answer."""
    tool: str | None = None
    """Name of the function that the parser may find a call of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """What requests are checked against."""

    name: str
    max_model_len: int
    default_temperature: float = 0.0
    eos_one_in: int = 512
    """One token in so many ends an answer that nothing else ends (0: never)."""
    parses_output: bool = False
    """Chat answers are split into reasoning, content and tool calls."""


_BodyT = TypeVar("_BodyT", bound=msgspec.Struct)


def parse_json(raw: bytes, shape: type[_BodyT]) -> _BodyT:
    """Decode `raw`; a wrong type or broken JSON is vLLM's 400 "Bad Request" (with a space)."""
    try:
        return msgspec.json.decode(raw, type=shape)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        param = "body" + path.rstrip("`") if path else "body"
        raise ApiError(400, f"{message}", kind="Bad Request", param=param) from error
    except msgspec.DecodeError as error:
        raise ApiError(400, f"JSON decode error: {error}", kind="Bad Request", param="body") from error


def completion(body: CompletionBody, served: ServedModel) -> Generation:
    """Check a /v1/completions body and resolve its defaults."""
    if body.suffix is not None:
        raise ApiError(400, "suffix is not currently supported")
    if body.prompt is None:
        raise ApiError(400, "Either prompt or prompt_embeds must be provided and non-empty.")
    prompts = _prompt_ids(body.prompt)
    max_tokens = COMPLETIONS_DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    if max_tokens == 0 and not body.echo:
        raise ApiError(400, "max_tokens must be at least 1, got 0.", param="max_tokens")
    if body.logprobs is not None and body.logprobs > 20:
        raise _too_many_logprobs(body.logprobs, "logprobs")
    for ids in prompts:
        _check_length(len(ids), max_tokens, served)
    return _generation(
        body, served, "completion", prompts, [max_tokens] * len(prompts), bool(body.echo), body.logprobs
    )


def chat(body: ChatBody, served: ServedModel) -> Generation:
    """Check a /v1/chat/completions body and resolve its defaults."""
    if not body.messages:
        raise ApiError(400, "messages must not be empty", kind="Bad Request", param="body.messages")
    if body.tools and not served.parses_output:
        raise ApiError(
            400,
            '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
        )
    prompt = chat_prompt_ids(body.messages, body.add_generation_prompt, body.tools)
    limit = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    if limit is not None and limit > served.max_model_len:
        raise ApiError(
            400,
            f"max_tokens ({limit}) cannot be greater than max_model_len ({served.max_model_len})",
            param="max_tokens",
        )
    if len(prompt) >= served.max_model_len or limit is not None:
        _check_length(len(prompt), limit or 1, served)
    if limit == 0:
        raise ApiError(400, "max_tokens must be at least 1, got 0.", param="max_tokens")
    resolved = served.max_model_len - len(prompt) if limit is None else limit
    if body.top_logprobs is not None and body.top_logprobs > 20:
        raise _too_many_logprobs(body.top_logprobs, "top_logprobs")
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    generation = _generation(body, served, "chat", [prompt], [resolved], False, logprobs)
    return replace(generation, parses=served.parses_output, tool=tool_name(body.tools))


def tool_name(tools: list[dict[str, object]] | None) -> str | None:
    """The function that the emulated model calls: the first one."""
    function = tools[0].get("function") if tools else None
    return str(function.get("name")) if isinstance(function, dict) else None


def chat_prompt_ids(
    messages: list[ChatMessage],
    add_generation_prompt: bool,
    tools: list[dict[str, object]] | None = None,
) -> list[int]:
    """The chat template: tools as JSON, then `<|im_start|>role newline content<|im_end|> newline` for each
    message.
    """
    ids: list[int] = tokenizer.encode(msgspec.json.encode(tools).decode()) if tools else []
    for message in messages:
        content = message.content or ""
        if not isinstance(content, str):
            content = "".join(str(part.get("text", "")) for part in content)
        ids.append(tokenizer.IM_START_ID)
        ids += tokenizer.encode(f"{message.role}\n{content}")
        ids.append(tokenizer.IM_END_ID)
        ids += tokenizer.encode("\n")
    if add_generation_prompt:
        ids.append(tokenizer.IM_START_ID)
        ids += tokenizer.encode("assistant\n")
    return ids


def _too_many_logprobs(count: int, param: str) -> ApiError:
    return ApiError(
        400, f"Requested sample logprobs of {count}, which is greater than max allowed: 20", param=param
    )


def check_model(name: str | None, served: ServedModel) -> None:
    """A missing model is served; an unknown one is vLLM's 404."""
    if name is not None and name != served.name:
        message = f"The model `{name}` does not exist."
        raise ApiError(404, message, kind="NotFoundError", param="model")


def _prompt_ids(prompt: str | list[str | int | list[int]]) -> list[list[int]]:
    """One list of ids for each prompt: a text, a list of texts, a list of ids, or a list of lists of ids."""
    if isinstance(prompt, str):
        prompts = [tokenizer.encode(prompt)]
    elif any(isinstance(item, int) for item in prompt):
        ids = [item for item in prompt if isinstance(item, int)]
        if len(ids) < len(prompt):
            raise ApiError(
                400, "a list of token ids holds something else", kind="Bad Request", param="body.prompt"
            )
        prompts = [ids]
    else:
        prompts = [
            tokenizer.encode(item) if isinstance(item, str) else item
            for item in prompt
            if not isinstance(item, int)
        ]
    if not prompts or not all(prompts):
        raise ApiError(400, "The decoder prompt cannot be empty")
    for ids in prompts:
        highest, lowest = max(ids), min(ids)
        if highest >= tokenizer.VOCABULARY_SIZE or lowest < 0:
            bad = highest if highest >= tokenizer.VOCABULARY_SIZE else lowest
            raise ApiError(400, f"Token id {bad} is out of vocabulary")
    return prompts


def _check_length(prompt_tokens: int, max_tokens: int, served: ServedModel) -> None:
    if max_tokens < 0:
        raise ApiError(400, f"max_tokens must be at least 1, got {max_tokens}.", param="max_tokens")
    if prompt_tokens + max_tokens > served.max_model_len:
        raise ApiError(
            400,
            f"This model's maximum context length is {served.max_model_len} tokens. However, you requested "
            f"{max_tokens} output tokens and your prompt contains at least {prompt_tokens} input tokens, "
            f"for a total of at least {prompt_tokens + max_tokens} tokens. Please reduce the length of the "
            "input prompt or the number of requested output tokens.",
            param="input_tokens",
        )


def _generation(
    body: _Body,
    served: ServedModel,
    kind: Literal["completion", "chat"],
    prompts: list[list[int]],
    max_tokens: list[int],
    echoes: bool,
    logprobs: int | None,
) -> Generation:
    check_model(body.model, served)
    _check_sampling(body, max_tokens)
    temperature = served.default_temperature if body.temperature is None else body.temperature
    n = 1 if body.n is None else body.n
    if n > 1 and temperature == 0:
        raise ApiError(400, f"n must be 1 when using greedy sampling, got {n}.")
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    options = body.stream_options or StreamOptions()
    return Generation(
        kind=kind,
        model=served.name,
        prompts=prompts,
        max_tokens=max_tokens,
        min_tokens=body.min_tokens or 0,
        n=n,
        temperature=temperature,
        seed=body.seed,
        stop=tuple(text for text in stop if text),
        stop_token_ids=frozenset(body.stop_token_ids or ()),
        includes_stop=body.include_stop_str_in_output,
        ignores_eos=body.ignore_eos,
        is_positional=temperature > 0 or bool(body.presence_penalty) or bool(body.frequency_penalty),
        is_streaming=bool(body.stream),
        includes_usage=bool(options.include_usage),
        has_continuous_usage=bool(options.include_usage and options.continuous_usage_stats),
        returns_token_ids=bool(body.return_token_ids),
        echoes=echoes,
        logprobs=logprobs,
        eos_one_in=served.eos_one_in,
        cache_salt=body.cache_salt or "",
        priority=body.priority,
    )


def _check_sampling(body: _Body, max_tokens: list[int]) -> None:
    if body.stream_options is not None and not body.stream:
        raise ApiError(400, "Stream options can only be defined when `stream=True`.", kind="Bad Request")
    if body.n is not None and body.n < 1:
        raise ApiError(400, f"n must be at least 1, got {body.n}.", param="n")
    if body.n is not None and body.n > MAX_CHOICES:
        raise ApiError(400, f"n must be at most {MAX_CHOICES}, got {body.n}.", param="n")
    if body.temperature is not None and body.temperature < 0:
        raise ApiError(400, f"temperature must be non-negative, got {body.temperature}.", param="temperature")
    if body.min_tokens is not None and body.min_tokens < 0:
        raise ApiError(400, f"min_tokens must be greater than or equal to 0, got {body.min_tokens}.")
    if body.min_tokens is not None and body.min_tokens > min(max_tokens):
        raise ApiError(
            400,
            f"min_tokens must be less than or equal to max_tokens={min(max_tokens)}, got {body.min_tokens}.",
        )
    salt = body.cache_salt
    if salt is not None and (not salt or len(salt) > 128 or any(mark in salt for mark in "@/\\\0")):
        raise ApiError(
            400,
            "Parameter 'cache_salt' must be a non-empty string of at most 128 characters without @ / \\ NUL.",
            param="cache_salt",
        )
