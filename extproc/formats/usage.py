"""What a response says of itself: usage counts, first output, end. OpenAI-style, Anthropic-style, vLLM's own.

Best effort by design: whatever an engine sends, nothing here raises and nothing is altered. Counts that
make no sense are ignored; digits in a string are taken.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec
from msgspec import Raw

_ABSENT = Raw(b"")
_NOTHING = (b"", b"null", b'""', b"[]", b"{}")
_MAX_COUNT = 2**31 - 1

_USAGE = re.compile(rb'"usage"\s*:\s*(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})')


@dataclass(frozen=True, slots=True)
class UsageCounts:
    """None: not reported."""

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class OutputChunk:
    """One streamed event. `tokens` is what the event carries at least: ids when given, else one per
    choice.
    """

    tokens: int = 0
    is_last: bool = False
    usage: UsageCounts | None = None


SILENT = OutputChunk()
DONE = OutputChunk(is_last=True)


class _Usage(msgspec.Struct):
    prompt_tokens: Raw = _ABSENT
    completion_tokens: Raw = _ABSENT
    input_tokens: Raw = _ABSENT
    output_tokens: Raw = _ABSENT
    cache_read_input_tokens: Raw = _ABSENT
    prompt_tokens_details: Raw = _ABSENT
    input_tokens_details: Raw = _ABSENT


class _Details(msgspec.Struct):
    cached_tokens: Raw = _ABSENT


class _Delta(msgspec.Struct):
    content: Raw = _ABSENT
    text: Raw = _ABSENT
    thinking: Raw = _ABSENT
    partial_json: Raw = _ABSENT
    reasoning: Raw = _ABSENT
    reasoning_content: Raw = _ABSENT
    tool_calls: Raw = _ABSENT


class _Choice(msgspec.Struct):
    text: Raw = _ABSENT
    delta: Raw = _ABSENT
    token_ids: Raw = _ABSENT
    finish_reason: Raw = _ABSENT


class _Inner(msgspec.Struct):
    """`message` (Anthropic) and `response` (Responses API) carry their own usage."""

    usage: Raw = _ABSENT


class _Event(msgspec.Struct):
    type: Raw = _ABSENT
    usage: Raw = _ABSENT
    choices: Raw = _ABSENT
    delta: Raw = _ABSENT
    message: Raw = _ABSENT
    response: Raw = _ABSENT


_decode_event = msgspec.json.Decoder(_Event).decode
_decode_usage = msgspec.json.Decoder(_Usage).decode
_decode_details = msgspec.json.Decoder(_Details).decode
_decode_choices = msgspec.json.Decoder(list[_Choice]).decode
_decode_delta = msgspec.json.Decoder(_Delta).decode
_decode_inner = msgspec.json.Decoder(_Inner).decode
_decode_value = msgspec.json.Decoder(int | str).decode

_FAULTS = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)
_LAST_TYPES = (b'"message_stop"', b'"response.completed"', b'"response.incomplete"', b'"response.failed"')


def read_event(data: bytes) -> OutputChunk:
    """Interpret the data of one server-sent event."""
    if data == b"[DONE]":
        return DONE
    try:
        event = _decode_event(data)
    except _FAULTS:
        return SILENT
    tokens, is_finished = _read_choices(event.choices)
    kind = bytes(event.type)
    if not tokens and kind and (_has_text(event.delta) or _is_text_delta(kind, event.delta)):
        tokens = 1
    usage = read_usage(bytes(event.usage))
    if usage is None:
        for inner in (event.message, event.response):
            usage = usage or _inner_usage(inner)
    return OutputChunk(tokens, is_finished or kind in _LAST_TYPES, usage)


def read_answer(body: bytes) -> UsageCounts | None:
    """Usage of a whole, unstreamed answer, or of the end of one that was too large to keep."""
    try:
        event = _decode_event(body)
    except _FAULTS:
        matches = _USAGE.findall(body)
        return read_usage(matches[-1]) if matches else None
    return read_usage(bytes(event.usage))


def read_usage(data: bytes) -> UsageCounts | None:
    """A usage object; None when there is none or it isn't one."""
    if data[:1] != b"{":
        return None
    try:
        usage = _decode_usage(data)
    except _FAULTS:
        return None
    prompt = _count(usage.prompt_tokens)
    output = _count(usage.completion_tokens)
    cached = _count(usage.cache_read_input_tokens)
    for details in (usage.prompt_tokens_details, usage.input_tokens_details):
        cached = _cached(details) if cached is None else cached
    return UsageCounts(
        prompt_tokens=_count(usage.input_tokens) if prompt is None else prompt,
        output_tokens=_count(usage.output_tokens) if output is None else output,
        cached_tokens=cached,
    )


def _read_choices(raw: Raw) -> tuple[int, bool]:
    """Tokens in the choices of a chunk, and whether one of them has finished."""
    if bytes(raw) in _NOTHING:
        return 0, False
    try:
        choices = _decode_choices(raw)
    except _FAULTS:
        return 0, False
    tokens, is_finished = 0, False
    for choice in choices:
        ids = bytes(choice.token_ids)
        if ids not in _NOTHING:
            tokens += ids.count(b",") + 1
        elif bytes(choice.text) not in _NOTHING or _has_text(choice.delta):
            tokens += 1
        is_finished |= bytes(choice.finish_reason) not in _NOTHING
    return tokens, is_finished


def _has_text(raw: Raw) -> bool:
    """Whether a delta holds output: text, reasoning or tool calls; a role alone is none."""
    if bytes(raw)[:1] != b"{":
        return False
    try:
        delta = _decode_delta(raw)
    except _FAULTS:
        return False
    fields = (
        delta.content,
        delta.text,
        delta.thinking,
        delta.partial_json,
        delta.reasoning,
        delta.reasoning_content,
        delta.tool_calls,
    )
    return any(bytes(field) not in _NOTHING for field in fields)


def _is_text_delta(kind: bytes, delta: Raw) -> bool:
    """The Responses API sends its deltas as plain strings."""
    return kind.endswith(b'.delta"') and bytes(delta)[:1] == b'"' and bytes(delta) != b'""'


def _inner_usage(raw: Raw) -> UsageCounts | None:
    if bytes(raw)[:1] != b"{":
        return None
    try:
        return read_usage(bytes(_decode_inner(raw).usage))
    except _FAULTS:
        return None


def _cached(raw: Raw) -> int | None:
    if bytes(raw)[:1] != b"{":
        return None
    try:
        return _count(_decode_details(raw).cached_tokens)
    except _FAULTS:
        return None


def _count(raw: Raw) -> int | None:
    """An integer of at least 0, also when written as a string of digits."""
    try:
        value = _decode_value(raw)
    except _FAULTS:
        return None
    if isinstance(value, str):
        if not (value.isascii() and value.isdigit() and len(value) < 12):
            return None
        value = int(value)
    return value if 0 <= value <= _MAX_COUNT else None
