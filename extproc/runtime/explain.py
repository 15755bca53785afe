"""Reads a question ("what would become of this request?") from the admin port, and words the answer.

The question is an HTTP request as a client would send it, read by the same code, with a few overrides for
what only the gateway knows. Nothing of it is kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from extproc.core.types import FairnessId, Request, RequestId
from extproc.errors import ConfigError, Problem
from extproc.exchange.attributes import read_hints
from extproc.exchange.refusals import Refusal
from extproc.exchange.settings import PriorityConfig
from extproc.exchange.surroundings import Surroundings
from extproc.formats.openai import MAX_COUNT, ApiKind, api_kind

DEFAULT_PATH = "/v1/chat/completions"
_UNASKED = RequestId(-1)
_OVERRIDES: dict[str, type] = {
    "priority": int,
    "model": str,
    "fairness_id": str,
    "prompt_tokens": int,
    "expected_output_tokens": int,
    "max_output_tokens": int,
    "session_id": str,
    "lora": str,
}


def read_question(
    question: Mapping[str, object], surroundings: Surroundings, now: float, wall_time: float
) -> Request:
    """`path`, `headers` and `body` make the request; the other keys override what was read from them.

    Raises ConfigError naming every key that can't be used.
    """
    problems = [
        Problem(key, f"unknown key; known are path, headers, body, endpoint_subset, {', '.join(_OVERRIDES)}")
        for key in question
        if key not in {"path", "headers", "body", "endpoint_subset", *_OVERRIDES}
    ]
    for key, kind in _OVERRIDES.items():
        value = question.get(key)
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool)):
            problems.append(Problem(key, f"must be {'a whole number' if kind is int else 'a text'}"))
    problems += _out_of_range(question, surroundings.config.priority)
    path = _expect(question, "path", str, DEFAULT_PATH, problems)
    headers = _expect(question, "headers", dict, {}, problems)
    subset = _expect(question, "endpoint_subset", list, None, problems)
    api = api_kind(path)
    if api in (ApiKind.UNQUEUED, ApiKind.OPAQUE):
        problems.append(Problem("path", f"bodies sent to {path} are not read by flow control"))
    if problems:
        raise ConfigError(problems)
    body = question.get("body", {"model": question.get("model") or "any"})
    names = {str(name).lower(): str(value) for name, value in headers.items()}
    hints = read_hints(names, surroundings.config, now, wall_time)
    allowed = None if subset is None else frozenset(map(str, subset))
    data = json.dumps(body).encode()
    admission = surroundings.admitter.admit_json(_UNASKED, api, data, hints, allowed)
    if isinstance(admission, Refusal):
        message = json.loads(admission.body)["error"]["message"]
        raise ConfigError([Problem("body", f"would be refused with status {admission.status}: {message}")])
    return _overridden(admission.request, question)


def _out_of_range(question: Mapping[str, object], priority: PriorityConfig) -> list[Problem]:
    """Numbers that no request can have, whose verdict would mean nothing."""
    problems = []
    for key, kind in _OVERRIDES.items():
        value = question.get(key)
        if kind is not int or not isinstance(value, int):
            continue
        low, high = (priority.minimum, priority.maximum) if key == "priority" else (0, MAX_COUNT)
        if not low <= value <= high:
            problems.append(Problem(key, f"must lie between {low} and {high}"))
    return problems


def _overridden(request: Request, question: Mapping[str, object]) -> Request:
    given: dict[str, Any] = {key: question[key] for key in _OVERRIDES if question.get(key) is not None}
    if "fairness_id" in given:
        given["fairness_id"] = FairnessId(given["fairness_id"])
    return replace(request, **given)


def _expect(
    question: Mapping[str, object], key: str, kind: type, default: Any, problems: list[Problem]
) -> Any:
    value = question.get(key, default)
    if value is not default and not isinstance(value, kind):
        words = {"str": "a text", "dict": "an object", "list": "a list of addresses"}
        problems.append(Problem(key, f"must be {words[kind.__name__]}"))
        return default
    return value
