"""The peer's priority bands and their templates, as our bands."""

from __future__ import annotations

from typing import Any

from extproc.config.peer.notes import Kind, Report
from extproc.config.peer.plugins import FAIRNESS, ORDERINGS, Plugins
from extproc.config.peer.values import quantity
from extproc.config.yaml_source import Data, Path

Section = dict[str, Any]

_KEYS = frozenset({"priority", "maxBytes", "maxRequests", "fairnessPolicyRef", "orderingPolicyRef"})


def read_bands(flow: dict[str, Data], plugins: Plugins, report: Report) -> Section:
    """`bands`, `default_band` and `default_sheddable_band`, as far as the file has them."""
    result: Section = {}
    bands = []
    seen: dict[object, Path] = {}
    for path, item in report.items(flow.get("priorityBands"), ("flowControl", "priorityBands")):
        band = _band(report.section(item, path), path, plugins, report)
        priority = band.setdefault("priority", 0)
        if priority in seen:
            report.problem((*path, "priority"), f"{priority} is given twice")
        seen[priority] = path
        bands.append(band)
    if bands:
        result["bands"] = sorted(bands, key=lambda band: -int(band["priority"]))
    for ours, theirs in (
        ("default_band", "defaultPriorityBand"),
        ("default_sheddable_band", "defaultNegativePriorityBand"),
    ):
        if flow.get(theirs) is not None:
            path = ("flowControl", theirs)
            template = _band(report.section(flow[theirs], path), path, plugins, report)
            template.pop("priority", None)
            result[ours] = template
    return result


def _band(data: dict[str, Data], path: Path, plugins: Plugins, report: Report) -> Section:
    band: Section = {}
    priority = data.get("priority")
    if priority is not None:
        if isinstance(priority, bool) or not isinstance(priority, int):
            report.problem((*path, "priority"), "must be a whole number")
        else:
            band["priority"] = priority
    for ours, theirs in (("max_requests", "maxRequests"), ("max_bytes", "maxBytes")):
        if data.get(theirs) is None:
            continue
        try:
            number = quantity(data[theirs])
        except ValueError as error:
            report.problem((*path, theirs), str(error))
            continue
        if number:  # The peer takes 0 as its default, which is ours too.
            band[ours] = number
    for ours, theirs, names in (
        ("fairness", "fairnessPolicyRef", FAIRNESS),
        ("ordering", "orderingPolicyRef", ORDERINGS),
    ):
        plugin = plugins.take(data.get(theirs), (*path, theirs))
        if plugin is None:
            continue
        if plugin.type not in names:
            report.problem((*path, theirs), f"{plugin.type} is no {ours} policy")
            continue
        band[ours] = {"type": names[plugin.type]}
        if plugin.type == "program-aware-fairness":
            message = "shares tokens by weight from the moment of dispatch, not by service attained so far"
            report.note(Kind.CHANGED, (*path, theirs), message)
    for key in data.keys() - _KEYS:
        report.note(Kind.UNMAPPED, (*path, key), "no such key of a band is known")
    return band
