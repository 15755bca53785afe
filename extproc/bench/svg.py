"""Just enough SVG for the reports: range plots, bars with whiskers, step timelines; strings in, a string out.

Every chart carries its own size and colours, and a <title> on each mark for the exact figure.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

WIDTH = 760
_LABEL_WIDTH = 250
_ROW = 22
_GAP = 8
"""Between the labels and the axis, so that a dot at 0 stays clear of them."""
COLOURS = ("#2f6fde", "#d1495b", "#2a9d8f", "#e9a23b", "#7b5cc4", "#5f6b7a", "#b5651d", "#1b9e4b")


@dataclass(frozen=True, slots=True)
class RangeRow:
    """One line of a range plot: a dot at `mid`, a line from `low` to `high`."""

    label: str
    low: float
    mid: float
    high: float
    colour: str = COLOURS[0]


@dataclass(frozen=True, slots=True)
class Series:
    """Points (x, y) drawn as steps."""

    label: str
    points: Sequence[tuple[float, float]]
    colour: str
    is_dashed: bool = False


@dataclass(frozen=True, slots=True)
class Marks:
    """Events on the time axis, with a count each."""

    label: str
    points: Sequence[tuple[float, float]] = field(default_factory=tuple)
    colour: str = COLOURS[1]


def range_plot(title: str, rows: Sequence[RangeRow], *, unit: str, is_log: bool = True) -> str:
    """Dots with min-max lines over a common axis; rows without a finite middle say so."""
    finite = [v for row in rows for v in (row.low, row.mid, row.high) if math.isfinite(v) and v > 0]
    if not finite:
        return ""
    axis = _Axis.over(min(finite), max(finite), is_log=is_log)
    height = 50 + _ROW * len(rows)
    parts = [_open(title, height), *axis.grid(height - 24, unit)]
    for index, row in enumerate(rows):
        y = 38 + _ROW * index
        parts.append(_text(_LABEL_WIDTH - 8, y + 4, row.label, anchor="end"))
        if not math.isfinite(row.mid):
            parts.append(_text(_LABEL_WIDTH + 4, y + 4, "never within the run", colour="#999"))
            continue
        tip = f"{row.label}: {row.mid:.4g} {unit} ({row.low:.4g} to {row.high:.4g})"
        low, high = axis.x(row.low), axis.x(row.high)
        parts.append(
            f'<g><title>{html.escape(tip)}</title><line x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}" '
            f'stroke="{row.colour}" stroke-width="3" stroke-opacity="0.45"/>'
            f'<circle cx="{axis.x(row.mid):.1f}" cy="{y}" r="5" fill="{row.colour}"/></g>'
        )
        parts.append(_text(max(high, axis.x(row.mid)) + 9, y + 4, _short(row.mid), colour="#555"))
    return "".join([*parts, "</svg>"])


def timeline(title: str, series: Sequence[Series], marks: Marks, *, y_label: str, height: int = 220) -> str:
    """Step lines over time with event ticks along the bottom; the legend names each line."""
    points = [point for each in series for point in each.points]
    if not points:
        return ""
    x_low, x_high = min(x for x, _ in points), max(x for x, _ in points)
    y_high = max(1.0, *(y for _, y in points if math.isfinite(y))) * 1.05
    left, right, top, bottom = 46, WIDTH - 12, 40, height - 26

    def place(x: float, y: float) -> tuple[float, float]:
        span = (x_high - x_low) or 1.0
        return (
            left + (x - x_low) / span * (right - left),
            bottom - min(y, y_high) / y_high * (bottom - top),
        )

    parts = [_open(title, height), _text(4, top - 6, y_label, colour="#777")]
    for step in _ticks(0.0, y_high):
        _, y = place(x_low, step)
        parts.append(f'<line x1="{left}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e5e5e5"/>')
        parts.append(_text(left - 6, y + 4, f"{step:g}", anchor="end", colour="#777"))
    for step in _ticks(x_low, x_high):
        x, _ = place(step, 0)
        parts.append(_text(x, height - 8, f"{step:g} s", anchor="middle", colour="#777"))
    for each in series:
        dash = ' stroke-dasharray="5 4"' if each.is_dashed else ""
        parts.append(
            f'<path d="{_steps([place(x, y) for x, y in each.points if math.isfinite(y)])}" fill="none" '
            f'stroke="{each.colour}" stroke-width="1.4"{dash}/>'
        )
    for x, count in marks.points:
        at, _ = place(x, 0)
        parts.append(
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{bottom}" y2="{bottom - 8 - min(count, 32) * 0.6:.1f}" '
            f'stroke="{marks.colour}" stroke-width="1.2"><title>{count:g} {html.escape(marks.label)} at '
            f"{x:.1f} s</title></line>"
        )
    named = [*series, Series(marks.label, (), marks.colour)] if marks.points else series
    return "".join([*parts, *_legend(named), "</svg>"])


@dataclass(frozen=True, slots=True)
class _Axis:
    low: float
    high: float
    is_log: bool

    @classmethod
    def over(cls, low: float, high: float, *, is_log: bool) -> _Axis:
        if is_log:
            return cls(low / 1.3, high * 1.8, True)
        return cls(0.0, high * 1.15, False)

    def x(self, value: float) -> float:
        value = min(max(value, self.low if self.is_log else 0.0), self.high)
        if self.is_log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = value / self.high
        return _LABEL_WIDTH + _GAP + share * (WIDTH - _LABEL_WIDTH - _GAP - 70)

    def grid(self, bottom: float, unit: str) -> list[str]:
        parts = []
        for tick in _decades(self.low, self.high) if self.is_log else _ticks(0.0, self.high):
            x = self.x(tick)
            parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="26" y2="{bottom}" stroke="#e5e5e5"/>')
            parts.append(_text(x, bottom + 16, f"{_short(tick)} {unit}", anchor="middle", colour="#777"))
        return parts


def _decades(low: float, high: float) -> list[float]:
    steps = [
        base * 10.0**power
        for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for base in (1, 3)
    ]
    return [step for step in steps if low <= step <= high]


def _ticks(low: float, high: float) -> list[float]:
    span = high - low
    if span <= 0:
        return [low]
    raw = span / 5
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw)
    first = math.ceil(low / step)
    return [round(index * step, 10) for index in range(first, math.floor(high / step) + 1)]


def _steps(points: Sequence[tuple[float, float]]) -> str:
    if not points:
        return ""
    parts = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for x, y in points[1:]:
        parts.append(f"H{x:.1f}V{y:.1f}")
    return "".join(parts)


def _legend(series: Sequence[Series]) -> list[str]:
    parts, x = [], 110.0
    for each in series:
        parts.append(f'<rect x="{x:.0f}" y="24" width="10" height="4" fill="{each.colour}"/>')
        parts.append(_text(x + 14, 30, each.label, colour="#555"))
        x += 26 + 6.4 * len(each.label)
    return parts


def _open(title: str, height: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
        f'height="{height:.0f}" role="img" font-family="system-ui,sans-serif" font-size="11">'
        f'<title>{html.escape(title)}</title><text x="4" y="14" font-size="13" font-weight="600">'
        f"{html.escape(title)}</text>"
    )


def _text(x: float, y: float, text: str, *, anchor: str = "start", colour: str = "#222") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{html.escape(text)}</text>'


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
