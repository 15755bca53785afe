"""The peer's scheduling profile (filters, scorers, picker) as our picker section."""

from __future__ import annotations

from typing import Any

from extproc.config.peer.notes import Kind, Report
from extproc.config.peer.plugins import CONCURRENCY, UTILIZATION, Plugins
from extproc.config.yaml_source import Data, Path

Section = dict[str, Any]

DETECTORS_AS_FILTERS = (CONCURRENCY, UTILIZATION)


def read_profiles(data: Data, plugins: Plugins, report: Report) -> Section:
    """The `picker` section; empty when the file says nothing of it."""
    profiles = report.items(data, ("schedulingProfiles",))
    if len(profiles) > 1:
        report.note(
            Kind.UNMAPPED,
            ("schedulingProfiles",),
            "only one profile (no prefill/decode split here): the first",
        )
    for path, item in profiles[:1]:
        profile = report.section(item, path)
        for entry_path, entry in report.items(profile.get("plugins"), (*path, "plugins")):
            _read_entry(report.section(entry, entry_path), entry_path, plugins, report)
    return {}


def _read_entry(entry: dict[str, Data], path: Path, plugins: Plugins, report: Report) -> None:
    plugin = plugins.take(entry.get("pluginRef"), (*path, "pluginRef"))
    if plugin is None:
        return
    if plugin.type in DETECTORS_AS_FILTERS:
        report.note(Kind.NEEDLESS, path, "the detector keeps full endpoints out by itself")
