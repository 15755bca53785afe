"""Trace rows: planned requests as JSON lines, so that a recorded day can be replayed and a plan be shared.

One object per line; `arrival_s`, `prompt_tokens`, `output_tokens` and `class` are required, the rest
optional. Errors name the line; nothing is skipped silently.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace

from extproc.errors import ConfigError, Problem
from extproc.workload.traffic import AfterEviction, PlannedRequest

_REQUIRED = ("arrival_s", "prompt_tokens", "output_tokens", "class")
_OPTIONAL = (
    "priority", "fairness_id", "max_output_tokens", "ttl_s", "deadline_s", "ttft_target_s",
    "prefix_group", "prefix_tokens", "after_eviction", "streams",
)  # fmt: skip


def format_trace(rows: Iterable[PlannedRequest]) -> Iterator[str]:
    """JSON lines (each with its newline) that `parse_trace` reads back to equal rows."""
    for row in rows:
        fields: dict[str, object] = {
            "arrival_s": row.at_s,
            "prompt_tokens": row.prompt_tokens,
            "output_tokens": row.output_tokens,
            "class": row.traffic_class,
        }
        for name in _OPTIONAL:
            value = getattr(row, name)
            if value is not None:
                fields[name] = value.value if isinstance(value, AfterEviction) else value
        yield json.dumps(fields) + "\n"


def parse_trace(lines: Iterable[str], *, source: str = "trace") -> list[PlannedRequest]:
    """All rows sorted by arrival. Raises ConfigError with every bad line's number and what is wrong with
    it.
    """
    rows: list[PlannedRequest] = []
    problems: list[Problem] = []
    counts: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = _parse_row(line)
        except (ValueError, TypeError) as error:
            problems.append(Problem(path="", message=str(error), line=number))
            continue
        index = counts.get(row.traffic_class, 0)
        counts[row.traffic_class] = index + 1
        rows.append(replace(row, index=index))
    if problems:
        raise ConfigError(problems, source=source)
    rows.sort(key=lambda row: row.at_s)
    return rows


def _parse_row(line: str) -> PlannedRequest:
    fields = json.loads(line)
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")
    missing = [name for name in _REQUIRED if name not in fields]
    if missing:
        raise ValueError(f"missing {', '.join(missing)}")
    unknown = sorted(set(fields) - set(_REQUIRED) - set(_OPTIONAL))
    if unknown:
        raise ValueError(f"unknown {', '.join(unknown)}; known: {', '.join((*_REQUIRED, *_OPTIONAL))}")
    output_tokens = _whole(fields, "output_tokens", least=1)
    at_s = _seconds(fields, "arrival_s")
    assert at_s is not None
    return PlannedRequest(
        index=0,
        at_s=at_s,
        traffic_class=_text(fields, "class", ""),
        priority=_whole(fields, "priority", default=0),
        fairness_id=_text(fields, "fairness_id", "default-flow"),
        prompt_tokens=_whole(fields, "prompt_tokens", least=1),
        output_tokens=output_tokens,
        max_output_tokens=_whole(fields, "max_output_tokens", default=output_tokens, least=1),
        ttl_s=_seconds(fields, "ttl_s"),
        deadline_s=_seconds(fields, "deadline_s"),
        ttft_target_s=_seconds(fields, "ttft_target_s"),
        prefix_group=_text(fields, "prefix_group", "") or None,
        prefix_tokens=_whole(fields, "prefix_tokens", default=0, least=0),
        after_eviction=AfterEviction(fields.get("after_eviction", AfterEviction.FAIL.value)),
        streams=bool(fields.get("streams", True)),
    )


def _whole(
    fields: dict[str, object], name: str, *, default: int | None = None, least: int | None = None
) -> int:
    value = fields.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"{name} must be a whole number, not {value!r}")
    if least is not None and value < least:
        raise ValueError(f"{name} must be at least {least}, not {value}")
    return value


def _seconds(fields: dict[str, object], name: str) -> float | None:
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < float("inf"):
        raise ValueError(f"{name} must be seconds of at least 0, not {value!r}")
    return float(value)


def _text(fields: dict[str, object], name: str, default: str) -> str:
    value = fields.get(name, default)
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a string, not {value!r}")
    return value
