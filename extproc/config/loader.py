"""Files to checked, frozen dataclasses; the only reader of configuration files.

Every problem of a file is reported at once, with its dotted path and line. The loader works for any tree of
frozen dataclasses (the server's, the batch worker's, the bench suites'); which sections exist is `schema`'s
business. Sections check themselves on construction by raising ValueError or ConfigError; checks across
sections are passed in.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path as FilePath
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from extproc.config.shape import Shape, suggest
from extproc.config.yaml_source import Data, Document, Path, dotted, parse_yaml
from extproc.errors import ConfigError, Problem

T = TypeVar("T")
_NAMES_FIELD = re.compile(r"[a-z_][a-z0-9_]*: ")
Check = Callable[[T], Iterable[Problem]]


def load_file(file: str | FilePath, kind: type[T], *, checks: Iterable[Check[T]] = ()) -> T:
    """Read `file` as one `kind`. Raises ConfigError listing everything that is wrong."""
    path = FilePath(file)
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise ConfigError([Problem("", f"cannot be read: {error.strerror}")], source=str(file)) from error
    except UnicodeDecodeError as error:
        raise ConfigError([Problem("", f"not UTF-8 text (byte {error.start})")], source=str(file)) from error
    return load_text(text, kind, source=str(file), checks=checks)


def load_text(text: str, kind: type[T], *, source: str = "", checks: Iterable[Check[T]] = ()) -> T:
    """Parse YAML `text` as one `kind`. Raises ConfigError listing everything that is wrong."""
    document = parse_yaml(text, source=source)
    shape = Shape(document)
    data = shape.conform(document.data, kind)
    problems = [*document.problems, *shape.problems, *_not_finite(data, document, ())]
    value: T | None = None
    try:
        value = TypeAdapter(kind).validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        problems += _translate(error, data, document, shape.chosen)
    if not problems and value is not None:
        problems = [_located(problem, document) for check in checks for problem in check(value)]
    if problems or value is None:
        problems = list(dict.fromkeys(problems)) or [Problem("", "no configuration in it")]
        raise ConfigError(sorted(problems, key=lambda problem: problem.line or 0), source=source)
    return value


def dump(value: object) -> dict[str, Any]:
    """The effective values, defaults filled in, as plain data with the file's key names."""
    return cast("dict[str, Any]", TypeAdapter(type(value)).dump_python(value, mode="json"))


def json_schema(kind: type[Any]) -> dict[str, Any]:
    """JSON Schema of `kind` for editors; like the loader it refuses unknown keys."""
    schema = TypeAdapter(kind).json_schema()
    for section in (schema, *schema.get("$defs", {}).values()):
        if section.get("type") == "object" and "properties" in section:
            section["additionalProperties"] = False
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return schema


def _located(problem: Problem, document: Document, default: int | None = None) -> Problem:
    """A check's problem with the line of the deepest part of its path that the file contains."""
    if problem.line is not None:
        return problem
    matches = [path for path in document.lines if path and _is_prefix(dotted(path), problem.path)]
    line = document.lines[max(matches, key=len)] if matches else default
    return Problem(problem.path, problem.message, line)


def _is_prefix(prefix: str, text: str) -> bool:
    return text.startswith(prefix) and text[len(prefix) : len(prefix) + 1] in ("", ".", "[")


def _translate(
    error: ValidationError, data: Data, document: Document, chosen: Mapping[Path, str]
) -> list[Problem]:
    """pydantic's errors in the file's own terms; those of union members that were not meant are left out."""
    problems: list[Problem] = []
    for item in error.errors(include_url=False):
        path = _path_in_data(item["loc"], data, chosen)
        if path is None:
            continue
        cause = item.get("ctx", {}).get("error")
        if isinstance(cause, ConfigError):
            prefix = dotted(path)
            for problem in cause.problems:
                joined = f"{prefix}.{problem.path}".strip(".").replace(".[", "[")
                problems.append(_located(Problem(joined, problem.message), document))
            continue
        problems += _own_checks(path, _message(item), document)
    return problems


def _own_checks(path: Path, message: str, document: Document) -> list[Problem]:
    """A section's own complaint may name fields: `max_x: must be positive; min_y: is too large`."""
    parts = message.split("; ")
    if not all(_NAMES_FIELD.match(part) for part in parts):
        return [Problem(dotted(path), message, document.line_of(path))]
    named = [part.split(": ", 1) for part in parts]
    return [
        _located(
            Problem(f"{dotted(path)}.{field}".strip("."), text), document, default=document.line_of(path)
        )
        for field, text in named
    ]


def _message(item: Any) -> str:
    if item["type"] == "missing" or item["type"].startswith("missing_"):
        return "is required"
    message = str(item["msg"]).removeprefix("Value error, ").removeprefix("Input ")
    value = item.get("input")
    shown = isinstance(value, str | int | float | bool) and item["type"] != "value_error"
    message += f", not {value!r}"[:80] if shown else ""
    if isinstance(value, str) and item["type"] in ("literal_error", "enum"):
        message += suggest(value, re.findall(r"'([^']*)'", item["ctx"]["expected"]), lists=False)
    return message


def _path_in_data(loc: tuple[int | str, ...], data: Data, chosen: Mapping[Path, str]) -> Path | None:
    """The path in the file of a pydantic location; None when it belongs to a union member that was not meant.

    At a union pydantic puts the name of the member between the keys; keys of mappings end in `[key]`.
    """
    path: Path = ()
    here: Data = data
    passed: set[Path] = set()
    for part in loc:
        if path in chosen and path not in passed:
            passed.add(path)
            if part != chosen[path]:
                return None
        elif isinstance(here, dict):
            if part == "[key]":
                break
            path, here = (*path, str(part)), here.get(str(part))
        elif isinstance(here, list) and isinstance(part, int) and part < len(here):
            path, here = (*path, part), here[part]
    return path


def _not_finite(data: Data, document: Document, path: Path) -> list[Problem]:
    """Infinite and not-a-number values, which no setting accepts."""
    match data:
        case float() if not math.isfinite(data):
            return [Problem(dotted(path), "must be a finite number", document.line_of(path))]
        case dict():
            return [
                found for key, item in data.items() for found in _not_finite(item, document, (*path, key))
            ]
        case list():
            return [
                found
                for index, item in enumerate(data)
                for found in _not_finite(item, document, (*path, index))
            ]
    return []
