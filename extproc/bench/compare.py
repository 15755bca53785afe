"""Two summaries of one suite side by side: the same cells, the same figures, do they agree? Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

_FIGURES = ("interactive.ttft_p50_s", "evictions", "batch_time_s")
_EVICTION_SLACK = 3.0
"""Counts this close agree whatever their ratio: 1 against 3 evictions is no difference worth a name."""


@dataclass(frozen=True, slots=True)
class ComparedFigure:
    """One figure of one cell; `ratio` is first over second, None where it cannot be formed."""

    cell: str
    figure: str
    first: float | None
    second: float | None
    ratio: float | None
    agrees: bool

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def compare_summaries(
    first: Mapping[str, object], second: Mapping[str, object], *, within: float
) -> list[ComparedFigure]:
    """Every figure of the cells that both have, in the first's order."""
    ours, theirs = first["arms"], second["arms"]
    assert isinstance(ours, dict)
    assert isinstance(theirs, dict)
    rows: list[ComparedFigure] = []
    for cell in ours:
        if cell not in theirs:
            continue
        for figure in _FIGURES:
            one, other = _pick(ours[cell], figure), _pick(theirs[cell], figure)
            if one is None and other is None:
                continue
            rows.append(_compared(cell, figure, one, other, within))
    return rows


def _compared(
    cell: str, figure: str, one: float | None, other: float | None, within: float
) -> ComparedFigure:
    if one is None or other is None:
        return ComparedFigure(cell, figure, one, other, None, agrees=False)
    ratio = one / other if other else None
    agrees = abs(one - other) <= within * max(abs(one), abs(other))
    if figure == "evictions" and abs(one - other) <= _EVICTION_SLACK:
        agrees = True
    return ComparedFigure(cell, figure, one, other, ratio, agrees)


def _pick(cell: Mapping[str, object], path: str) -> float | None:
    value: object = cell
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, int | float) else None
