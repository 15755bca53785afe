"""The error classes of the whole package; it must not import anything of the package.

Refusals of requests are values (see `extproc.core.outcomes`), never exceptions. An exception means a bad
configuration, a peer that breaks its protocol, or a bug of ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong in a configuration or an input file.

    `path` is dotted (`flow_control.bands[1].max_requests`), `line` is 1-based where known.
    """

    path: str
    message: str
    line: int | None = None

    def __str__(self) -> str:
        where = self.path or "(top level)"
        if self.line is not None:
            where += f" (line {self.line})"
        return f"{where}: {self.message}"


class ExtprocError(Exception):
    """Base of the package's errors."""


class ConfigError(ExtprocError, ValueError):
    """A configuration was refused; `problems` lists everything that is wrong with it at once.

    A ValueError too, so that a section that checks itself on construction can raise it inside pydantic.
    """

    def __init__(self, problems: Sequence[Problem], *, source: str = "") -> None:
        self.problems = tuple(problems)
        self.source = source
        head = f"{source}: " if source else ""
        count = len(self.problems)
        lines = "\n".join(f"  - {problem}" for problem in self.problems)
        super().__init__(f"{head}{count} problem{'' if count == 1 else 's'}\n{lines}")

    def __reduce__(self) -> tuple[partial[ConfigError], tuple[tuple[Problem, ...]]]:
        """Whole again in another process: an exception is rebuilt from its message otherwise."""
        return partial(type(self), source=self.source), (self.problems,)


class PeerProtocolError(ExtprocError):
    """A peer (Envoy, an engine, a store) sent something its protocol does not allow."""


class InvariantError(ExtprocError):
    """A guarantee of our own code does not hold: a bug, never the fault of an input."""
