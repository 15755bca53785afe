"""What an OpenAI-style server streams back, as values: the pieces of the answer and how the stream ended.

Decoding only: no socket, no clock. A piece carries what vLLM adds with `return_token_ids`; other servers
leave those fields empty. Unknown fields are skipped, malformed usage is ignored, neither is ever an
exception.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from extproc.exchange import names

NO_HEADERS: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Piece:
    """One choice of one event. `at` is the clock's time when its bytes were read.

    `text` is what was released with it: it may be empty though tokens came, and may hold several tokens'
    text. `is_role_only` marks a chat stream's opening event, which is no token. `logprobs` and `tool_calls`
    are raw JSON.
    """

    at: float
    index: int = 0
    text: str = ""
    reasoning: str = ""
    token_ids: tuple[int, ...] = ()
    prompt_token_ids: tuple[int, ...] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: bytes | None = None
    tool_calls: bytes | None = None
    is_role_only: bool = False


@dataclass(frozen=True, slots=True)
class UsageCounts:
    """The usage block, as far as it was well formed."""

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None


class EndKind(Enum):
    """How a stream ended; only FINISHED is success."""

    FINISHED = "finished"
    """Every choice carried a finish reason other than `abort`; unstreamed: a whole answer, status 2xx."""
    REFUSED = "refused"
    """A status other than 2xx, before any token."""
    ERROR_EVENT = "error-event"
    """A 200 stream that delivered an error object: the engine died."""
    ABORTED = "aborted"
    """The engine ended it with finish reason `abort`."""
    TRUNCATED = "truncated"
    """`[DONE]` or a clean end of the body without a finish reason."""
    RESET = "reset"
    """The connection broke inside the body: an eviction by the gateway looks like this, so does a crash."""
    STALLED = "stalled"
    """Nothing arrived for the stall timeout."""
    TIMED_OUT = "timed-out"
    """The caller's total time was over."""
    UNREACHABLE = "unreachable"
    """No connection, or it broke before any response byte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEnd:
    """The end of one exchange. `status` is 0 when no response headers came; `message` is for people.

    `body` is what a refusal said, or the whole of an unstreamed answer.
    """

    kind: EndKind
    at: float
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)
    message: str = ""
    error_code: str | None = None
    body: bytes = b""
    usage: UsageCounts | None = None

    @property
    def retry_after_s(self) -> float | None:
        """The Retry-After header in seconds; None when absent or not a plain number."""
        text = self.headers.get("retry-after", "")
        return float(text) if text.isdecimal() and len(text) < 7 else None

    @property
    def dropped_reason(self) -> str | None:
        """Why the gateway dropped it, in the field's spelling (`evicted`, `rejected-saturated`, ...)."""
        return self.headers.get(names.DROP_REASON)


@dataclass(frozen=True, slots=True)
class DecodedEvent:
    """One event's content: pieces, perhaps usage, perhaps an error."""

    pieces: tuple[Piece, ...] = ()
    usage: UsageCounts | None = None
    error: tuple[str, str | None] | None = None


_ABSENT = msgspec.Raw(b"")


class _Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: msgspec.Raw = _ABSENT


class _Choice(msgspec.Struct):
    index: int = 0
    text: str | None = None
    delta: _Delta | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: msgspec.Raw = _ABSENT


class _Chunk(msgspec.Struct):
    choices: list[_Choice] | None = None
    prompt_token_ids: list[int] | None = None
    usage: msgspec.Raw = _ABSENT
    error: msgspec.Raw = _ABSENT


_decode_chunk = msgspec.json.Decoder(_Chunk).decode


def decode_event(payload: bytes, at: float) -> DecodedEvent:
    """Decode one event's payload. Raises `ValueError` when it is not the JSON of a completion chunk."""
    try:
        chunk = _decode_chunk(payload)
    except msgspec.DecodeError as error:
        raise ValueError(f"not a completion chunk: {error}") from error
    pieces = tuple(_piece(choice, chunk, at) for choice in chunk.choices or ())
    return DecodedEvent(
        pieces,
        decode_usage(bytes(chunk.usage)) if _present(chunk.usage) else None,
        decode_error(bytes(chunk.error)) if _present(chunk.error) else None,
    )


def _piece(choice: _Choice, chunk: _Chunk, at: float) -> Piece:
    delta = choice.delta
    prompt_ids = choice.prompt_token_ids or chunk.prompt_token_ids
    token_ids = tuple(choice.token_ids or ())
    text = choice.text or ""
    reasoning = ""
    is_role_only = False
    if delta is not None:
        text = delta.content or ""
        reasoning = delta.reasoning or delta.reasoning_content or ""
        has_content = text or reasoning or token_ids or _present(delta.tool_calls)
        is_role_only = delta.role is not None and not has_content and choice.finish_reason is None
    return Piece(
        at,
        choice.index,
        text,
        reasoning,
        token_ids,
        tuple(prompt_ids) if prompt_ids else None,
        choice.finish_reason,
        choice.stop_reason,
        _present(choice.logprobs),
        _present(delta.tool_calls) if delta is not None else None,
        is_role_only,
    )


def _present(raw: msgspec.Raw) -> bytes | None:
    return None if bytes(raw) in (b"", b"null") else bytes(raw)


def decode_usage(raw: bytes) -> UsageCounts | None:
    """Read a usage block leniently: digits in strings count, anything else odd is left out."""
    try:
        block = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return None
    if not isinstance(block, dict):
        return None
    details = block.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    return UsageCounts(
        _count(block.get("prompt_tokens")), _count(block.get("completion_tokens")), _count(cached)
    )


def _count(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if value >= 0 else None
    if isinstance(value, str) and value.isdecimal() and len(value) < 16:
        return int(value)
    return None


def decode_error(raw: bytes) -> tuple[str, str | None] | None:
    """The (message, code) of an error object, in OpenAI's shape or any other; None for JSON null."""
    try:
        error = msgspec.json.decode(raw)
    except msgspec.DecodeError:
        return raw[:500].decode("utf-8", "replace"), None
    if error is None:
        return None
    if not isinstance(error, dict):
        return str(error)[:500], None
    inner = error.get("error", error)
    if not isinstance(inner, dict):
        return str(inner)[:500], None
    message = inner.get("message", inner.get("detail"))
    code = inner.get("code", inner.get("type"))
    return str(message)[:500] if message is not None else str(inner)[:500], None if code is None else str(
        code
    )
