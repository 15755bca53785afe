"""YAML text to plain data, keeping the line of every key; it knows nothing of what the keys mean.

Smaller and stricter than full YAML: no tags, no merge keys, `yes`/`no`/`on`/`off` stay words, `1e3` is a
number, a key given twice is a problem, and aliases cannot make a small file large.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import yaml

from extproc.errors import ConfigError, Problem

Path = tuple[str | int, ...]
Data = None | bool | int | float | str | list["Data"] | dict[str, "Data"]

MAX_TEXT_BYTES = 1 << 20
MAX_NODES = 100_000
MAX_DEPTH = 60

_TAG = "tag:yaml.org,2002:"


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader with the scalar rules of YAML 1.2's core schema."""


_StrictLoader.yaml_implicit_resolvers = {}
for _name, _pattern, _first in (
    ("bool", r"^(?:true|True|false|False)$", "tTfF"),
    ("null", r"^(?:~|null|Null|)$", ["~", "n", "N", ""]),
    ("int", r"^[-+]?[0-9][0-9_]*$", "-+0123456789"),
    ("float", r"^[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?$", "-+0123456789."),
):
    _StrictLoader.add_implicit_resolver(_TAG + _name, re.compile(_pattern), list(_first))


@dataclass(slots=True)
class Document:
    """Parsed data with the 1-based line of each path, and the problems met on the way."""

    data: Data = None
    lines: dict[Path, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def line_of(self, path: Path) -> int | None:
        """The line of `path`, or of the nearest enclosing key that is in the file."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path)


def dotted(path: Path) -> str:
    """`("a", 1, "b")` as `a[1].b`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def parse_yaml(text: str, *, source: str = "") -> Document:
    """Parse one YAML document. Raises ConfigError when the text is not YAML at all or is too large."""
    if len(text.encode("utf-8", "surrogatepass")) > MAX_TEXT_BYTES:
        raise ConfigError([Problem("", f"the file is larger than {MAX_TEXT_BYTES} bytes")], source=source)
    try:
        node = yaml.compose(text, Loader=_StrictLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = f"not valid YAML: {error.problem or error.context or 'cannot be read'}"
        raise ConfigError([Problem("", message, mark.line + 1 if mark else None)], source=source) from error
    except (yaml.YAMLError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error).splitlines()[0]
        raise ConfigError([Problem("", f"not valid YAML: {reason}")], source=source) from error
    document = Document()
    if node is not None:
        document.data = _Builder(document).build(node, ())
    return document


class _Builder:
    """Turns YAML nodes into data, noting lines and problems."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._nodes = 0

    def build(self, node: yaml.Node, path: Path) -> Data:
        self._document.lines.setdefault(path, node.start_mark.line + 1)
        self._nodes += 1
        if self._nodes > MAX_NODES or len(path) > MAX_DEPTH:
            if self._nodes == MAX_NODES + 1 or len(path) > MAX_DEPTH:
                self._complain(path, node, "too many or too deeply nested values (aliases count each time)")
            return None
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*path, index)) for index, item in enumerate(node.value)]
        return self._scalar(node, path)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Data]:
        result: dict[str, Data] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._complain(path, key_node, "a key must be a plain word")
                continue
            key = str(key_node.value)
            line = key_node.start_mark.line + 1
            if key in result:
                first = self._document.lines.get((*path, key))
                self._complain((*path, key), key_node, f"given twice (first on line {first})")
                continue
            self._document.lines[(*path, key)] = line
            result[key] = self.build(value_node, (*path, key))
            if self._nodes > MAX_NODES:
                break
        return result

    def _scalar(self, node: yaml.Node, path: Path) -> Data:
        text = str(node.value)
        match node.tag.removeprefix(_TAG):
            case "null":
                return None
            case "bool":
                return text.lower() == "true"
            case "int" if len(text) <= 30:
                return int(text)
            case "float":
                return float(text)
            case "str":
                return text
        self._complain(path, node, f"YAML tag {node.tag!r} or a number this long is not allowed here")
        return None

    def _complain(self, path: Path, node: yaml.Node, message: str) -> None:
        self._document.problems.append(Problem(dotted(path), message, node.start_mark.line + 1))
