"""Variations of one scenario file: which values to try where, and the file with a value put in. Pure.

A place is a path into the file, such as `flow_control.ceilings.min_ceiling` or `pool[0].count`, or one of the
short names below.
"""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from extproc.errors import ConfigError, Problem

ALIASES: Mapping[str, str] = {
    "ceiling": "flow_control.ceilings.min_ceiling",
    "headroom": "flow_control.ceilings.max_fraction",
    "max-in-flight": "flow_control.detector.max_concurrency",
    "max-tokens-in-flight": "flow_control.detector.max_token_concurrency",
    "model-replicas": "pool[0].count",
    "slots": "pool[0].max_num_seqs",
    "kv-blocks": "pool[0].kv_blocks",
    "processors": "replicas",
}
"""Short names of what is usually varied."""

MAX_CELLS = 1000
_PART = re.compile(r"([a-z_][a-z0-9_]*)|\[(\d+)\]")

Value = str | int | float | bool


@dataclass(frozen=True, slots=True)
class Axis:
    """One varied place. `name` is what the user called it."""

    name: str
    path: tuple[str | int, ...]
    values: tuple[Value, ...]


Data = None | bool | int | float | str | list["Data"] | dict[str, "Data"]
"""What a YAML file holds."""

Cell = tuple[Value, ...]
"""One value for each axis."""


def parse_axis(text: str) -> Axis:
    """`name=v1,v2,...` or `name=from:to:step` as an axis. Raises ConfigError."""
    name, separator, rest = text.partition("=")
    if not separator or not rest:
        raise ConfigError([Problem("vary", f"{text!r} is not PLACE=VALUE,VALUE or PLACE=FROM:TO:STEP")])
    path = _parse_path(ALIASES.get(name, name), name)
    values = tuple(_range(rest, name) if rest.count(":") == 2 else map(_value, rest.split(",")))
    return Axis(name, path, values)


def cells(axes: Sequence[Axis]) -> list[Cell]:
    """Every combination, the first axis slowest. Raises ConfigError when there are too many."""
    count = 1
    for axis in axes:
        count *= len(axis.values)
    if count > MAX_CELLS:
        raise ConfigError([Problem("vary", f"{count} combinations are more than {MAX_CELLS}")])
    return list(itertools.product(*(axis.values for axis in axes)))


def varied(data: Data, axes: Sequence[Axis], cell: Cell) -> Data:
    """A copy of a scenario file's plain data with the cell's values put in. Raises ConfigError."""
    result = copy.deepcopy(data)
    for axis, value in zip(axes, cell, strict=True):
        _put(result, axis, value)
    return result


def _put(data: Data, axis: Axis, value: Value) -> None:
    here: Data = data
    for part in axis.path[:-1]:
        if isinstance(here, dict) and isinstance(part, str):
            here = here.setdefault(part, {})
        elif isinstance(here, list) and isinstance(part, int) and part < len(here):
            here = here[part]
        else:
            raise _missing(axis, part)
    match here, axis.path[-1]:
        case dict(), str(last):
            here[last] = value
        case list(), int(last) if last < len(here):
            here[last] = value
        case _, last:
            raise _missing(axis, last)


def _missing(axis: Axis, part: str | int) -> ConfigError:
    return ConfigError([Problem("vary", f"{axis.name}: the scenario has no {part!r} there")])


def _parse_path(path: str, name: str) -> tuple[str | int, ...]:
    parts: list[str | int] = []
    for piece in path.split("."):
        matches = list(_PART.finditer(piece))
        if "".join(match.group() for match in matches) != piece or not matches:
            known = ", ".join(ALIASES)
            raise ConfigError([Problem("vary", f"{name!r} is neither a path nor one of {known}")])
        parts += [match[1] if match[1] is not None else int(match[2]) for match in matches]
    return tuple(parts)


def _value(text: str) -> Value:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return {"true": True, "false": False}.get(text, text)


def _range(text: str, name: str) -> Iterator[Value]:
    try:
        start, stop, step = (float(part) for part in text.split(":"))
    except ValueError as error:
        raise ConfigError([Problem("vary", f"{name}: {text!r} is not FROM:TO:STEP")]) from error
    if step <= 0 or stop < start or (stop - start) / step > MAX_CELLS:
        raise ConfigError([Problem("vary", f"{name}: FROM:TO:STEP must rise in at most {MAX_CELLS} steps")])
    is_whole = all(part.is_integer() for part in (start, step))
    for number in range(int((stop - start) / step + 1e-9) + 1):
        value = start + number * step
        yield int(value) if is_whole else round(value, 10)
