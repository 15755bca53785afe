"""A self-contained page of plots for `extproc simulate --plot` and `extproc sim sweep --plot`."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import click

from extproc.bench.statistics import percentile
from extproc.bench.svg import COLOURS, Marks, RangeRow, Series, range_plot, timeline
from extproc.sim.result import RunResult, TimelinePoint

_STYLE = (
    "body{font:14px system-ui,sans-serif;max-width:800px;margin:2rem auto}svg{display:block;margin:1rem 0}"
)

Spread = tuple[str, float, float, float]
"""Label, low, middle and high of one line of a range plot."""


def write_page(path: Path, title: str, charts: Iterable[str]) -> None:
    """Write an HTML page (or, for `.svg`, the only chart) that needs no network."""
    drawn = [chart for chart in charts if chart]
    if path.suffix == ".svg":
        if len(drawn) != 1:
            raise click.BadParameter(f"there are {len(drawn)} charts; write .html", param_hint="--plot")
        path.write_text(drawn[0], "utf-8")
        return
    if path.suffix not in (".html", ".htm"):
        raise click.BadParameter("must end in .html or .svg", param_hint="--plot")
    heading = html.escape(title)
    path.write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{heading}</title>'
        f"<style>{_STYLE}</style><h1>{heading}</h1>{''.join(drawn)}</html>",
        "utf-8",
    )


def run_charts(result: RunResult) -> list[str]:
    """One run: first tokens by class, then saturation, work in flight, queues and engines over time."""
    return [
        range_plot("time to first token: p50, p95, p99", _rows(_ttfts(result)), unit="ms"),
        *_timelines(result.timeline),
    ]


def spread_chart(title: str, spreads: Sequence[Spread], unit: str) -> str:
    """One line for each combination of a sweep."""
    rows = [spread for spread in spreads if math.isfinite(spread[2])]
    return range_plot(title, _rows(rows), unit=unit, is_log=False)


def _rows(spreads: Iterable[Spread]) -> list[RangeRow]:
    return [RangeRow(*spread, COLOURS[number % len(COLOURS)]) for number, spread in enumerate(spreads)]


def _ttfts(result: RunResult) -> list[Spread]:
    by_class: dict[str, list[float]] = {}
    for record in result.records:
        if record.ttft_s is not None:
            by_class.setdefault(record.traffic_class, []).append(record.ttft_s * 1000)
    return [
        (name, percentile(values, 0.50), percentile(values, 0.95), percentile(values, 0.99))
        for name, values in by_class.items()
    ]


def _timelines(points: Sequence[TimelinePoint]) -> list[str]:
    """The first gateway's view; several replicas look alike."""
    if not points:
        return []
    priorities = [band.priority for band in points[-1].gateways[0].bands]

    def over_time(name: str, label: str, colour: int, *, is_dashed: bool = False, priority: int) -> Series:
        values = [
            (point.at_s, float(getattr(band, name)))
            for point in points
            for band in point.gateways[0].bands
            if band.priority == priority
        ]
        return Series(f"{label} {priority}", values, COLOURS[colour % len(COLOURS)], is_dashed)

    saturation = Series(
        "saturation", [(point.at_s, point.gateways[0].saturation) for point in points], COLOURS[0]
    )
    ceilings = [
        over_time("ceiling", "ceiling of band", number + 5, is_dashed=True, priority=priority)
        for number, priority in enumerate(priorities)
    ]
    inflight = [
        over_time("inflight_requests", "band", number, priority=priority)
        for number, priority in enumerate(priorities)
    ]
    queued = [
        over_time("queued_requests", "band", number, priority=priority)
        for number, priority in enumerate(priorities)
    ]
    engines = [
        Series("running", [(point.at_s, float(point.running)) for point in points], COLOURS[0]),
        Series("waiting", [(point.at_s, float(point.waiting)) for point in points], COLOURS[1]),
    ]
    kv = [Series("KV cache in use", [(point.at_s, point.kv_usage_fraction) for point in points], COLOURS[2])]
    none = Marks("", ())
    marks = _evictions(points)
    return [
        timeline("saturation and ceilings", [saturation, *ceilings], marks, y_label="saturation"),
        timeline("in flight", inflight, none, y_label="requests"),
        timeline("queued at the gateway", queued, none, y_label="requests"),
        timeline("inside the engines", engines, none, y_label="requests"),
        timeline("KV cache", kv, none, y_label="fraction"),
    ]


def _evictions(points: Sequence[TimelinePoint]) -> Marks:
    marks, before = [], 0
    for point in points:
        evictions = sum(band.evictions for band in point.gateways[0].bands)
        if evictions > before:
            marks.append((point.at_s, float(evictions - before)))
        before = evictions
    return Marks("evictions", marks)
