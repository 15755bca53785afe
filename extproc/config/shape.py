"""Compares parsed data with the dataclasses it is meant for, before values are converted.

pydantic ignores unknown keys of plain dataclasses and reports every member of a union that does not fit. This
pass refuses unknown keys with a suggestion, and chooses the member of a union by its `type` key, so that only
the errors of the meant member are shown. It must not know any particular section.
"""

from __future__ import annotations

import dataclasses
import difflib
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from extproc.config.yaml_source import Data, Document, Path, dotted
from extproc.errors import Problem

TAG = "type"


def suggest(word: str, known: Iterable[str], *, lists: bool = True) -> str:
    """`; did you mean "x"?`, or (`lists`) all that is known when nothing is near."""
    names = list(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    if near:
        return f'; did you mean "{near[0]}"?'
    return f"; known here: {', '.join(names)}" if names and lists else ""


class Shape:
    """One walk over a document: collects problems and remembers which union members were chosen."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self.problems: list[Problem] = []
        self.chosen: dict[Path, str] = {}
        """Class name of the meant member at each union with several; empty when none could be told."""

    def conform(self, data: Data, hint: Any, path: Path = ()) -> Data:
        """`data` with empty sections as `{}`; unknown keys and unclear unions become problems."""
        hint = _bare(hint)
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            return self._section(data, hint, path)
        if get_origin(hint) in (Union, types.UnionType):
            return self._union(data, get_args(hint), path)
        origin, arguments = get_origin(hint), get_args(hint)
        if not (isinstance(origin, type) and arguments):
            return data
        if issubclass(origin, Mapping) and isinstance(data, dict):
            return {key: self.conform(value, arguments[-1], (*path, key)) for key, value in data.items()}
        if issubclass(origin, Sequence | frozenset | set) and isinstance(data, list):
            return [self.conform(item, arguments[0], (*path, index)) for index, item in enumerate(data)]
        return data

    def _section(self, data: Data, hint: type, path: Path) -> Data:
        if data is None:
            return {}
        if not isinstance(data, dict):
            return data
        hints = get_type_hints(hint, include_extras=True)
        known = [item.name for item in dataclasses.fields(hint) if item.init]
        result: dict[str, Data] = {}
        for key, value in data.items():
            if key in known:
                result[key] = self.conform(value, hints[key], (*path, key))
            else:
                self._complain((*path, key), f"unknown key{suggest(key, known)}")
        return result

    def _union(self, data: Data, members: tuple[Any, ...], path: Path) -> Data:
        sections = [_bare(member) for member in members if dataclasses.is_dataclass(_bare(member))]
        if data is None and type(None) in members:
            return None
        if len(sections) == 1:
            return self._section(data, sections[0], path)
        if not sections:
            meant = [member for member in members if member is not type(None)]
            return self.conform(data, meant[0], path) if len(meant) == 1 else data
        by_tag = {tag: section for section in sections for tag in _tags(section)}
        if not isinstance(data, dict):
            self._complain(path, f"give a section with `{TAG}:` one of {', '.join(by_tag)}")
            self.chosen[path] = ""
            return data
        tag = data.get(TAG)
        if tag not in by_tag:
            what = (
                f"unknown {TAG} {tag!r}{suggest(str(tag), by_tag)}" if TAG in data else f"`{TAG}` is missing"
            )
            self._complain((*path, TAG), f"{what} (one of {', '.join(by_tag)})" if TAG not in data else what)
            self.chosen[path] = ""
            return data
        self.chosen[path] = by_tag[str(tag)].__name__
        return self._section(data, by_tag[str(tag)], path)

    def _complain(self, path: Path, message: str) -> None:
        self.problems.append(Problem(dotted(path), message, self._document.line_of(path)))


def _bare(hint: Any) -> Any:
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return getattr(hint, "__supertype__", hint)


def _tags(section: Any) -> list[str]:
    hint = get_type_hints(section).get(TAG)
    return [str(value) for value in get_args(hint)] if get_origin(hint) is Literal else []
