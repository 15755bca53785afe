"""A gateway that runs already, as a suite's load meets it."""

from __future__ import annotations

from dataclasses import dataclass

from extproc.bench.prompts import USUAL_TOKEN_IDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """`model` is the served name; prompts are made of `token_ids` (first, end), which its vocabulary must
    have.
    """

    url: str
    model: str
    token_ids: tuple[int, int] = USUAL_TOKEN_IDS
