"""From request headers to the attributes that flow control knows: priority, fairness id, deadlines, hints.

A bad header never fails a request: it is ignored and named in `ignored`, so that it can be counted. A bad
priority in the body does fail it, because a client that writes one expects it to be obeyed.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from extproc.core.types import DEFAULT_FAIRNESS_ID, FairnessId
from extproc.exchange import names
from extproc.exchange.settings import ExchangeConfig, PriorityConfig, PrioritySource

_MAX_DIGITS = 18


class HeaderHints(msgspec.Struct, frozen=True, gc=False):
    """What the headers say; durations in seconds, `deadline_s` on the monotonic clock."""

    fairness_id: FairnessId = DEFAULT_FAIRNESS_ID
    objective: str | None = None
    priority: int | None = None
    ttl_s: float | None = None
    deadline_s: float | None = None
    ttft_target_s: float | None = None
    expected_output_tokens: int | None = None
    session_id: str | None = None
    model_rewrite: str | None = None
    is_resumable: bool = False
    ignored: tuple[str, ...] = ()


NO_HINTS = HeaderHints()


class _Reader:
    """Reads single headers and remembers the names of those that made no sense."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self.headers = headers
        self.ignored: list[str] = []

    def text(self, aliases: tuple[str, ...]) -> str | None:
        for name in aliases:
            value = self.headers.get(name)
            if value is not None:
                return value or None
        return None

    def integer(self, aliases: tuple[str, ...], minimum: int, maximum: int) -> int | None:
        value = self.text(aliases)
        if value is None:
            return None
        digits = value.strip().removeprefix("-")
        if digits.isascii() and digits.isdigit() and len(digits) <= _MAX_DIGITS:
            number = int(value)
            if minimum <= number <= maximum:
                return number
        self.ignored.append(aliases[0])
        return None


def read_hints(
    headers: Mapping[str, str], config: ExchangeConfig, now: float, wall_time: float
) -> HeaderHints:
    """Read every attribute header; `wall_time` (epoch seconds) turns a deadline into monotonic time."""
    if names.HINT_HEADERS.isdisjoint(headers):
        return NO_HINTS
    read = _Reader(headers)
    limits, priority = config.limits, config.priority
    max_ttl_ms = int(limits.max_ttl_s * 1000)
    fairness_id = read.text(names.FAIRNESS_ID)
    if fairness_id is not None and len(fairness_id.encode()) > limits.max_fairness_id_bytes:
        read.ignored.append(names.FAIRNESS_ID[0])
        fairness_id = None
    ttl_ms = read.integer((names.TTL_MS,), 1, max_ttl_ms)
    ttft_ms = read.integer(names.TTFT_TARGET_MS, 1, max_ttl_ms)
    trusted = PrioritySource.HEADER in priority.sources
    return HeaderHints(
        fairness_id=FairnessId(fairness_id) if fairness_id else DEFAULT_FAIRNESS_ID,
        objective=read.text(names.OBJECTIVE),
        priority=read.integer((names.PRIORITY,), priority.minimum, priority.maximum) if trusted else None,
        ttl_s=None if ttl_ms is None else ttl_ms / 1000,
        deadline_s=_deadline(read, int(limits.max_deadline_s * 1000), now, wall_time),
        ttft_target_s=None if ttft_ms is None else ttft_ms / 1000,
        expected_output_tokens=read.integer((names.EXPECTED_OUTPUT_TOKENS,), 0, 2**31 - 1),
        session_id=read.text(names.SESSION_ID),
        model_rewrite=read.text(names.MODEL_REWRITE) if config.trust_model_header else None,
        is_resumable=headers.get(names.RESUMABLE) == "true",
        ignored=tuple(read.ignored),
    )


def _deadline(read: _Reader, max_ahead_ms: int, now: float, wall_time: float) -> float | None:
    """An absolute deadline, at most `max_ahead_ms` away; one that has passed is kept: it expires at once."""
    if names.DEADLINE_MS not in read.headers:
        return None
    wall_ms = int(wall_time * 1000)
    deadline_ms = read.integer((names.DEADLINE_MS,), 0, wall_ms + max_ahead_ms)
    return None if deadline_ms is None else now + deadline_ms / 1000 - wall_time


def resolve_priority(
    config: PriorityConfig, hints: HeaderHints, body_priority: int | None, model: str
) -> int | None:
    """The first source that says something wins. None: the body asks for a value that isn't allowed."""
    for source in config.sources:
        found: int | None = None
        match source:
            case PrioritySource.OBJECTIVE:
                found = config.objectives.get(hints.objective) if hints.objective else None
            case PrioritySource.HEADER:
                found = hints.priority
            case PrioritySource.BODY:
                if body_priority is not None and not config.minimum <= body_priority <= config.maximum:
                    return None
                found = body_priority
            case PrioritySource.FAIRNESS_ID:
                found = config.fairness_ids.get(hints.fairness_id)
            case PrioritySource.MODEL:
                found = config.models.get(model)
        if found is not None:
            return found
    return config.default
