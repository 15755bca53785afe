"""The peer's scheduling profile (filters, scorers, picker) as our picker section."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from extproc.config.peer.notes import Kind, Report
from extproc.config.peer.plugins import CONCURRENCY, PICKING, UTILIZATION, Plugin, Plugins
from extproc.config.yaml_source import Data, Path

Section = dict[str, Any]

DETECTORS_AS_FILTERS = (CONCURRENCY, UTILIZATION)
SPREAD = {"scale": "pool"}
"""The peer's queue scorers place an endpoint between the best and the worst of the moment."""
SCORERS: dict[str, Section] = {
    "queue-scorer": {"type": "queue", **SPREAD},
    "running-requests-size-scorer": {"type": "running", **SPREAD},
    "kv-cache-utilization-scorer": {"type": "kv-usage"},
    "load-aware-scorer": {"type": "queue", "full_at": 128},
    "active-request-scorer": {"type": "in-flight", **SPREAD},
    "token-load-scorer": {"type": "token-load"},
    "prefix-cache-scorer": {"type": "prefix-cache"},
    "lora-affinity-scorer": {"type": "lora-affinity"},
    "session-affinity-scorer": {"type": "session"},
}
SCORER_KEYS = {
    "load-aware-scorer": {"threshold": "full_at"},
    "token-load-scorer": {"queueThresholdTokens": "full_at"},
}
CHOICES = {
    "max-score-picker": "max-score",
    "random-picker": "random",
    "weighted-random-picker": "weighted-random",
}
LABEL_FILTER = "label-selector-filter"


def read_profiles(data: Data, plugins: Plugins, report: Report) -> Section:
    """The `picker` section; empty when the file says nothing of it."""
    profiles = report.items(data, ("schedulingProfiles",))
    if len(profiles) > 1:
        message = "only the first profile: there is no prefill/decode split here"
        report.note(Kind.UNMAPPED, ("schedulingProfiles",), message)
    profile: Section = {}
    if profiles:
        path, item = profiles[0]
        section = report.section(item, path)
        if section.get("name"):
            profile["name"] = str(section["name"])
        entries = report.items(section.get("plugins"), (*path, "plugins"))
        for plugin, weight, where in _entries(entries, plugins, report):
            _take(profile, plugin, weight, where, report)
    else:  # the peer then makes one profile of everything that is listed
        for plugin in plugins.of_types(PICKING):
            _take(profile, plugin, None, plugin.path, report)
    if not profile.keys() - {"name"}:
        return {}
    return {"type": "profiles", "profiles": [profile]}


def _entries(
    entries: list[tuple[Path, Data]], plugins: Plugins, report: Report
) -> Iterator[tuple[Plugin, Data, Path]]:
    for path, item in entries:
        entry = report.section(item, path)
        plugin = plugins.take(entry.get("pluginRef"), (*path, "pluginRef"))
        if plugin is not None:
            yield plugin, entry.get("weight"), path


def _take(profile: Section, plugin: Plugin, weight: Data, path: Path, report: Report) -> None:
    if plugin.type in SCORERS:
        scorer = dict(SCORERS[plugin.type])
        if weight is not None:
            scorer["weight"] = weight
        _parameters(scorer, plugin, SCORER_KEYS.get(plugin.type, {}), report)
        scorers = profile.setdefault("scorers", [])
        if any(other["type"] == scorer["type"] for other in scorers):
            report.note(Kind.UNMAPPED, path, f"{plugin.type}: a second scorer of the kind {scorer['type']}")
        else:
            scorers.append(scorer)
    elif plugin.type in CHOICES:
        profile["choice"] = {"type": CHOICES[plugin.type]}
        _parameters(profile, plugin, {"maxNumOfEndpoints": "max_endpoints"}, report)
    elif plugin.type == LABEL_FILTER:
        _parameters(profile, plugin, {"matchLabels": "labels"}, report)
    elif plugin.type in DETECTORS_AS_FILTERS:
        report.note(Kind.NEEDLESS, path, "the detector keeps full endpoints out by itself")
    else:
        report.note(Kind.UNMAPPED, path, f"{plugin.type} in a scheduling profile")


def _parameters(target: Section, plugin: Plugin, keys: dict[str, str], report: Report) -> None:
    for key, value in plugin.parameters.items():
        if key in keys:
            target[keys[key]] = value
        else:
            report.note(
                Kind.UNMAPPED, (*plugin.path, "parameters", key), f"no such setting of {plugin.type} here"
            )
