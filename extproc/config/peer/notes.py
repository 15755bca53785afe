"""Remarks of an import: what was left out, and what behaves differently here."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from extproc.config.yaml_source import Data, Document, Path, dotted
from extproc.errors import Problem


class Kind(Enum):
    UNMAPPED = "not imported"
    """Has no counterpart here: what it did is gone unless the note says how to get it."""
    CHANGED = "works differently"
    """Has a counterpart with another behaviour."""
    NEEDLESS = "not needed"
    """What it asked for happens here anyway."""


@dataclass(frozen=True, slots=True)
class Note:
    """One remark about one place of the peer's file; `line` is 1-based."""

    kind: Kind
    path: str
    line: int | None
    message: str

    def __str__(self) -> str:
        where = f"line {self.line}, " if self.line is not None else ""
        return f"{where}{self.path}: {self.kind.value}: {self.message}"


class Report:
    """Collects notes and problems while a document is read."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self.notes: list[Note] = []
        self.problems: list[Problem] = list(document.problems)

    def note(self, kind: Kind, path: Path, message: str) -> None:
        self.notes.append(Note(kind, dotted(path), self._document.line_of(path), message))

    def problem(self, path: Path, message: str) -> None:
        self.problems.append(Problem(dotted(path), message, self._document.line_of(path)))

    def section(self, data: Data, path: Path) -> dict[str, Data]:
        """`data` as a mapping; nothing counts as an empty one, anything else is a problem."""
        if isinstance(data, dict):
            return data
        if data is not None:
            self.problem(path, "must be a section of keys")
        return {}

    def items(self, data: Data, path: Path) -> list[tuple[Path, Data]]:
        """The entries of a list with their paths."""
        if isinstance(data, list):
            return [((*path, index), item) for index, item in enumerate(data)]
        if data is not None:
            self.problem(path, "must be a list")
        return []
