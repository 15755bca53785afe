"""Request bodies of the OpenAI-style, Anthropic-style and vLLM-own HTTP APIs: what flow control needs of
them.

One msgspec pass over the body finds the few fields that matter and leaves everything else as unread
bytes, so a 5 MB prompt never becomes Python objects. It knows nothing of HTTP statuses, of Envoy, or of
what its findings are used for; how many tokens a byte or an image is worth is the caller's business.
"""

from __future__ import annotations

from enum import Enum
from functools import lru_cache
from urllib.parse import unquote

import msgspec
from msgspec import Raw

from extproc.formats.prompt import PromptSize, measure_messages, measure_prompt

MAX_COUNT = 2**31 - 1
"""Larger token limits are cut to this: nothing serves them, and arithmetic stays small."""

MAX_CHOICES = 128
"""`n` beyond it is the engine's to refuse."""

_ABSENT = Raw(b"")


class ApiKind(Enum):
    """Which API a path belongs to; decides the fields that are read. The value is a metric label."""

    __hash__ = object.__hash__  # members are compared by identity; Enum's own hash runs Python code

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    EMBEDDINGS = "embeddings"
    MESSAGES = "messages"
    GENERATE = "generate"
    UNQUEUED = "unqueued"
    """Cheap helpers that take no sequence slot: tokenize, count_tokens, render, ..."""
    OPAQUE = "opaque"
    """A body that is not looked into: its cost is estimated from its size."""


_SUFFIXES: tuple[tuple[str, ApiKind], ...] = (
    ("/chat/completions/render", ApiKind.UNQUEUED),
    ("/completions/render", ApiKind.UNQUEUED),
    ("/messages/count_tokens", ApiKind.UNQUEUED),
    ("/chat/completions", ApiKind.CHAT),
    ("/completions", ApiKind.COMPLETIONS),
    ("/embeddings", ApiKind.EMBEDDINGS),
    ("/responses", ApiKind.RESPONSES),
    ("/messages", ApiKind.MESSAGES),
    ("/inference/v1/generate", ApiKind.GENERATE),
    ("/detokenize", ApiKind.UNQUEUED),
    ("/tokenize", ApiKind.UNQUEUED),
)


@lru_cache(maxsize=1024)
def api_kind(path: str) -> ApiKind:
    """The API of a `:path`; the query and trailing slashes don't count, longer suffixes are tried first.

    Percent-encoding is undone as the engine's web server does it, or `/v1/chat%2Fcompletions` would run
    there with a body that nobody has read here.
    """
    bare = "/" + unquote(path.partition("?")[0]).strip("/")
    for suffix, kind in _SUFFIXES:
        if bare.endswith(suffix):
            return kind
    return ApiKind.OPAQUE


class ParsedBody(msgspec.Struct, frozen=True, gc=False):
    """What a body says. `max_output_tokens` is per choice; None: the client set no (usable) limit."""

    model: str | None
    is_streaming: bool
    max_output_tokens: int | None
    choices: int
    priority: int | None
    prompt: PromptSize
    prompt_parts: tuple[Raw, ...] = ()
    """The JSON that the prompt is made from, in the order in which a chat template prints it."""
    cache_salt: str = ""


class BodyProblem(msgspec.Struct, frozen=True, gc=False):
    """Why a body is refused; `field` is the JSON field at fault, empty for the body as a whole."""

    message: str
    field: str = ""


class _Body(msgspec.Struct):
    """Every field that any of the APIs uses, undecoded; absent fields are empty."""

    model: Raw = _ABSENT
    stream: Raw = _ABSENT
    priority: Raw = _ABSENT
    n: Raw = _ABSENT
    max_tokens: Raw = _ABSENT
    max_completion_tokens: Raw = _ABSENT
    max_output_tokens: Raw = _ABSENT
    prompt: Raw = _ABSENT
    messages: Raw = _ABSENT
    tools: Raw = _ABSENT
    system: Raw = _ABSENT
    input: Raw = _ABSENT
    instructions: Raw = _ABSENT
    token_ids: Raw = _ABSENT
    sampling_params: Raw = _ABSENT
    cache_salt: Raw = _ABSENT


class _SamplingParams(msgspec.Struct):
    max_tokens: Raw = _ABSENT
    n: Raw = _ABSENT


_decode_body = msgspec.json.Decoder(_Body).decode
_decode_sampling = msgspec.json.Decoder(_SamplingParams).decode
_decode_str = msgspec.json.Decoder(str).decode
_decode_int = msgspec.json.Decoder(int).decode

_LIMIT_FIELDS: dict[ApiKind, tuple[str, ...]] = {
    # in order of precedence; vLLM's completions API ignores max_completion_tokens
    ApiKind.CHAT: ("max_completion_tokens", "max_tokens"),
    ApiKind.COMPLETIONS: ("max_tokens",),
    ApiKind.RESPONSES: ("max_output_tokens",),
    ApiKind.MESSAGES: ("max_tokens",),
}

_DEFAULT_LIMITS = {ApiKind.COMPLETIONS: 16, ApiKind.EMBEDDINGS: 0}
"""What applies where the client says nothing: vLLM's own 16; an embedding produces no tokens."""


def parse_body(kind: ApiKind, body: bytes) -> ParsedBody | BodyProblem:
    """Read the fields of `kind` from a JSON body; never raises, whatever the bytes are.

    Only what flow control relies on is checked: that it is one JSON object in UTF-8, and that `model`,
    `stream` and `priority` have their type. All else is the engine's to refuse. Of a repeated key the
    last one counts, as in the engine's own parser.
    """
    try:
        raw = _decode_body(body)
        if not body.isascii():
            body.decode()
    except msgspec.ValidationError:
        return BodyProblem("the body must be a JSON object")
    except msgspec.DecodeError as error:
        return BodyProblem(f"the body is not valid JSON: {error}")
    except UnicodeDecodeError as error:
        return BodyProblem(f"the body is not valid UTF-8 (byte {error.start})")
    except RecursionError:
        return BodyProblem("the body is nested too deeply")
    return _interpret(kind, raw)


def _interpret(kind: ApiKind, raw: _Body) -> ParsedBody | BodyProblem:
    model = _text(raw.model)
    if model is None and not _is_null(raw.model):
        return BodyProblem("model must be a string", "model")
    stream = bytes(raw.stream)
    if stream not in (b"", b"true", b"false", b"null"):
        return BodyProblem("stream must be true or false", "stream")
    priority = _integer(raw.priority)
    if priority is None and not _is_null(raw.priority):
        return BodyProblem("priority must be an integer", "priority")
    limits, choices = _limits(kind, raw)
    return ParsedBody(
        model=model or None,
        is_streaming=stream == b"true",
        max_output_tokens=limits,
        choices=choices,
        priority=priority,
        prompt=_prompt(kind, raw),
        prompt_parts=_prompt_parts(kind, raw),
        cache_salt=_text(raw.cache_salt) or "",
    )


def _limits(kind: ApiKind, raw: _Body) -> tuple[int | None, int]:
    """The client's own output limit, and the number of choices it asks for (0 or nonsense: 1)."""
    if kind is ApiKind.GENERATE:
        try:
            sampling = _decode_sampling(raw.sampling_params)
        except (msgspec.MsgspecError, RecursionError):
            return None, 1
        return _count(sampling.max_tokens), _choices(sampling.n)
    for name in _LIMIT_FIELDS.get(kind, ()):
        limit = _count(getattr(raw, name))
        if limit is not None:
            return limit, _choices(raw.n)
    return _DEFAULT_LIMITS.get(kind), _choices(raw.n)


def _prompt(kind: ApiKind, raw: _Body) -> PromptSize:
    match kind:
        case ApiKind.CHAT:
            return measure_messages(raw.messages) + measure_prompt(raw.tools)
        case ApiKind.MESSAGES:
            return measure_messages(raw.messages) + measure_messages(raw.system) + measure_prompt(raw.tools)
        case ApiKind.RESPONSES:
            size = measure_messages(raw.input) + measure_prompt(raw.instructions)
            return size + measure_prompt(raw.tools)
        case ApiKind.EMBEDDINGS:
            return measure_prompt(raw.input)
        case ApiKind.GENERATE:
            return measure_prompt(raw.token_ids)
        case _:
            return measure_prompt(raw.prompt)


def _prompt_parts(kind: ApiKind, raw: _Body) -> tuple[Raw, ...]:
    match kind:
        case ApiKind.CHAT:
            return raw.tools, raw.messages
        case ApiKind.MESSAGES:
            return raw.tools, raw.system, raw.messages
        case ApiKind.RESPONSES:
            return raw.tools, raw.instructions, raw.input
        case ApiKind.GENERATE:
            return (raw.token_ids,)
        case ApiKind.COMPLETIONS:
            return (raw.prompt,)
        case _:
            return ()


def _is_null(raw: Raw) -> bool:
    return raw is _ABSENT or bytes(raw) in (b"", b"null")


def _text(raw: Raw) -> str | None:
    if raw is _ABSENT:
        return None  # most fields are: an exception for each would cost more than all the parsing
    try:
        return _decode_str(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _integer(raw: Raw) -> int | None:
    if raw is _ABSENT:
        return None
    try:
        return _decode_int(raw)
    except msgspec.MsgspecError:
        return None


def _count(raw: Raw) -> int | None:
    """A usable token limit: an integer of at least 0, cut to `MAX_COUNT`."""
    value = _integer(raw)
    return None if value is None or value < 0 else min(value, MAX_COUNT)


def _choices(raw: Raw) -> int:
    value = _integer(raw)
    return 1 if value is None else min(max(value, 1), MAX_CHOICES)
