"""The peer's plugins: finding them by reference, and what each one is called here.

A plugin is named by its `name`, else by its `type`. Which plugin is used where is the importer's business.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, field

from extproc.config.peer.notes import Kind, Report
from extproc.config.yaml_source import Data, Path

CONCURRENCY = "concurrency-detector"
UTILIZATION = "utilization-detector"
INFLIGHT_LOAD = "inflight-load-producer"
TOKENS = "token-producer"
FILE_DISCOVERY = "file-discovery"
METRICS_SOURCE = "metrics-data-source"
STATIC_LIMIT = "static-usage-limit-policy"
HOLDBACK = "priority-holdback-policy"
SOFT_REFLECTIVE = "soft-reflective-ceiling-policy"

ORDERINGS = {
    "fcfs-ordering-policy": "fcfs",
    "edf-ordering-policy": "edf",
    "slo-deadline-ordering-policy": "slo-deadline",
}
FAIRNESS = {
    "global-strict-fairness-policy": "global-strict",
    "round-robin-fairness-policy": "round-robin",
    "program-aware-fairness": "weighted-fair",
}
PARSERS = frozenset({"openai-parser", "anthropic-parser", "vllmhttp-parser", "passthrough-parser"})
NEEDLESS = {
    **dict.fromkeys(ORDERINGS, ""),
    **dict.fromkeys(FAIRNESS, ""),
    **dict.fromkeys(PARSERS, ""),
    "single-profile-handler": "there is one way to pick an endpoint for all requests",
    "core-metrics-extractor": "engine metrics are always read; other names go to endpoints.scrape.metrics",
    "approx-prefix-cache-producer": "prefix hashes are computed where a scorer needs them",
    STATIC_LIMIT: "",
}
PICKING = frozenset(
    {
        "queue-scorer",
        "running-requests-size-scorer",
        "kv-cache-utilization-scorer",
        "load-aware-scorer",
        "active-request-scorer",
        "token-load-scorer",
        "prefix-cache-scorer",
        "lora-affinity-scorer",
        "session-affinity-scorer",
        "max-score-picker",
        "random-picker",
        "weighted-random-picker",
        "label-selector-filter",
    }
)
HANDLED = frozenset(
    {
        CONCURRENCY,
        UTILIZATION,
        INFLIGHT_LOAD,
        TOKENS,
        FILE_DISCOVERY,
        METRICS_SOURCE,
        HOLDBACK,
        SOFT_REFLECTIVE,
    }
)


@dataclass(slots=True)
class Plugin:
    """One entry of `plugins`; `is_used` says whether a reader took it."""

    type: str
    path: Path
    parameters: dict[str, Data] = field(default_factory=dict)
    is_used: bool = False


class Plugins:
    """All plugins of a file by their names."""

    def __init__(self, data: Data, report: Report) -> None:
        self._by_name: dict[str, Plugin] = {}
        self._report = report
        for path, item in report.items(data, ("plugins",)):
            entry = report.section(item, path)
            kind = entry.get("type")
            if not isinstance(kind, str) or not kind:
                report.problem((*path, "type"), "is required")
                continue
            name = str(entry.get("name") or kind)
            if name in self._by_name:
                report.problem((*path, "name"), f"{name!r} is given twice")
            parameters = report.section(entry.get("parameters"), (*path, "parameters"))
            self._by_name[name] = Plugin(kind, path, parameters)
            for key in entry.keys() - {"type", "name", "parameters"}:
                report.note(Kind.UNMAPPED, (*path, key), "no such key of a plugin is known")

    def take(self, reference: Data, path: Path) -> Plugin | None:
        """The plugin that a `pluginRef` names; a bare type stands for a plugin with its defaults."""
        if reference is None:
            return None
        name = str(reference)
        plugin = self._by_name.get(name)
        if plugin is None:
            if name not in HANDLED and name not in NEEDLESS and name not in PICKING:
                self._report.problem(path, f"no plugin is called {name!r}")
                return None
            plugin = self._by_name[name] = Plugin(name, path)
        plugin.is_used = True
        return plugin

    def first_of(self, kind: str) -> Plugin | None:
        """The first plugin of a type, marked as used."""
        for plugin in self._by_name.values():
            if plugin.type == kind:
                plugin.is_used = True
                return plugin
        return None

    def of_types(self, kinds: Container[str]) -> list[Plugin]:
        """All plugins of some types in their order, marked as used."""
        found = [plugin for plugin in self._by_name.values() if plugin.type in kinds]
        for plugin in found:
            plugin.is_used = True
        return found

    def unused(self) -> Iterator[Plugin]:
        """Those that nothing took."""
        return (plugin for plugin in self._by_name.values() if not plugin.is_used)
