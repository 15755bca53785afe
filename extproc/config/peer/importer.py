"""From the peer's EndpointPickerConfig to our configuration, as plain data with our key names.

Reads leniently and reports exactly: what cannot be read is a problem (the file is refused), what has no
counterpart or behaves differently is a note. Nothing is dropped in silence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from extproc.config.peer.bands import read_bands
from extproc.config.peer.notes import Kind, Note, Report
from extproc.config.peer.plugins import (
    CONCURRENCY,
    FILE_DISCOVERY,
    HOLDBACK,
    INFLIGHT_LOAD,
    METRICS_SOURCE,
    NEEDLESS,
    SOFT_REFLECTIVE,
    STATIC_LIMIT,
    TOKENS,
    UTILIZATION,
    Plugin,
    Plugins,
)
from extproc.config.peer.scheduling import read_profiles
from extproc.config.peer.values import duration_s, gates, quantity
from extproc.config.yaml_source import Data, Path, parse_yaml
from extproc.errors import ConfigError

Section = dict[str, Any]

API_VERSIONS = ("llm-d.ai/v1alpha1", "inference.networking.x-k8s.io/v1alpha1")
TOP_KEYS = frozenset(
    {
        "apiVersion",
        "kind",
        "featureGates",
        "plugins",
        "schedulingProfiles",
        "dataLayer",
        "flowControl",
        "requestHandler",
        "saturationDetector",
        "parser",
    }
)
PEER_SCRAPE_INTERVAL_S = 0.05
DETECTOR_KEYS = {
    CONCURRENCY: {
        "concurrencyMode": "mode",
        "maxConcurrency": "max_concurrency",
        "maxTokenConcurrency": "max_token_concurrency",
        "headroom": "burst_fraction",
    },
    UTILIZATION: {
        "queueDepthThreshold": "queue_depth_threshold",
        "kvCacheUtilThreshold": "kv_cache_util_threshold",
        "metricsStalenessThreshold": "staleness_s",
        "headroom": "burst_fraction",
    },
}


@dataclass(frozen=True, slots=True)
class Imported:
    """Our configuration as data for a YAML file, and the remarks on how it was made."""

    config: Section
    notes: tuple[Note, ...]


def import_text(text: str, *, source: str = "") -> Imported:
    """Read an EndpointPickerConfig. Raises ConfigError with everything in it that cannot be read."""
    document = parse_yaml(text, source=source)
    report = Report(document)
    reader = _Reader(report.section(document.data, ()), report)
    config = reader.config()
    if report.problems:
        raise ConfigError(report.problems, source=source)
    return Imported(config, tuple(report.notes))


class _Reader:
    def __init__(self, data: dict[str, Data], report: Report) -> None:
        self._data = data
        self._report = report
        self._plugins = Plugins(data.get("plugins"), report)
        self._flow = report.section(data.get("flowControl"), ("flowControl",))

    def config(self) -> Section:
        self._envelope()
        flow_control = self._flow_control()
        endpoints = self._endpoints()
        if flow_control["detector"].get("type") == UTILIZATION:
            self._keep_fresh(endpoints)
        requests = self._requests()
        picker = read_profiles(self._data.get("schedulingProfiles"), self._plugins, self._report)
        if picker:
            flow_control["picker"] = picker
        self._leftovers()
        sections = {"endpoints": endpoints, "requests": requests, "flow_control": flow_control}
        return {name: section for name, section in sections.items() if section}

    def _envelope(self) -> None:
        report = self._report
        if self._data.get("kind") not in (None, "EndpointPickerConfig"):
            report.problem(("kind",), f"EndpointPickerConfig is expected, not {self._data['kind']!r}")
        if self._data.get("apiVersion") not in (None, *API_VERSIONS):
            report.problem(("apiVersion",), f"not known; one of {', '.join(API_VERSIONS)}")
        for key in self._data.keys() - TOP_KEYS:
            report.note(Kind.UNMAPPED, (key,), "no such section is known")
        try:
            on = gates(item for _, item in report.items(self._data.get("featureGates"), ("featureGates",)))
        except ValueError as error:
            report.problem(("featureGates",), str(error))
            return
        if not on.get("flowControl", False):
            report.note(
                Kind.CHANGED,
                ("featureGates",),
                "without the gate the peer has no queue: it passes everything on and refuses only sheddable "
                "requests of a full pool. Here requests wait. To decide and count without enforcing, set "
                "flow_control.mode: observe",
            )
        for name in on.keys() - {"flowControl", "haPopulateNonLeaderDatastore"}:
            report.problem(("featureGates",), f"{name!r} is no known gate")

    # ---- flow control

    def _flow_control(self) -> Section:
        path: Path = ("flowControl",)
        section: Section = {"detector": self._detector()}
        footprint = self._footprint()
        if footprint:
            section["footprint"] = footprint
        ceilings = self._ceilings()
        if ceilings:
            section["ceilings"] = ceilings
        section |= read_bands(self._flow, self._plugins, self._report)
        self._limit(section, "max_requests", "maxRequests")
        self._limit(section, "max_bytes", "maxBytes")
        self._ttls(section)
        if self._flow.get("enableEviction") is True:
            section["eviction"] = {"enabled": True}
            self._report.note(
                Kind.CHANGED,
                (*path, "enableEviction"),
                "evictions are sized to the whole demand here; the peer's sizing (at most two at a time, "
                "then wait) is flow_control.eviction.sizing: {type: deficit}",
            )
        known = {
            "maxBytes",
            "maxRequests",
            "defaultRequestTTL",
            "noEndpointRequestTTL",
            "defaultPriorityBand",
            "defaultNegativePriorityBand",
            "priorityBands",
            "usageLimitPolicyPluginRef",
            "saturationDetector",
            "enableEviction",
        }
        for key in self._flow.keys() - known:
            self._report.note(Kind.UNMAPPED, (*path, key), "no such key is known")
        return section

    def _detector(self) -> Section:
        path: Path = ("flowControl", "saturationDetector")
        chosen = self._flow.get("saturationDetector")
        if chosen is None and self._data.get("saturationDetector") is not None:
            path, chosen = ("saturationDetector",), self._data["saturationDetector"]
        reference = self._report.section(chosen, path).get("pluginRef", UTILIZATION)
        plugin = self._plugins.take(reference, (*path, "pluginRef"))
        if plugin is None:
            return {}
        if plugin.type not in DETECTOR_KEYS:
            self._report.problem((*path, "pluginRef"), f"{plugin.type} is no saturation detector")
            return {}
        section: Section = {"type": plugin.type}
        readers: dict[str, Callable[[Data], Any]] = {"metricsStalenessThreshold": duration_s}
        section |= self._parameters(plugin, DETECTOR_KEYS[plugin.type], readers)
        return section

    def _footprint(self) -> Section:
        plugin = self._plugins.first_of(INFLIGHT_LOAD)
        if plugin is None:
            return {}
        # Without output the peer counts a prompt until its first output only.
        held = bool(plugin.parameters.get("addEstimatedOutputTokens", False))
        section: Section = {} if held else {"release_at_first_output": True}
        keys = {
            "addEstimatedOutputTokens": "add_estimated_output_tokens",
            "outputRatio": "output_ratio",
            "maxEstimatedOutputTokens": "max_estimated_output_tokens",
        }
        return section | self._parameters(plugin, keys, {})

    def _ceilings(self) -> Section:
        path: Path = ("flowControl", "usageLimitPolicyPluginRef")
        plugin = self._plugins.take(self._flow.get("usageLimitPolicyPluginRef", STATIC_LIMIT), path)
        if plugin is None:
            return {}
        if plugin.type == STATIC_LIMIT:
            parameters = self._parameters(plugin, {"threshold": "threshold"}, {})
            return {"type": "static", **parameters} if parameters else {}
        if plugin.type == HOLDBACK:
            keys = {name: name for name in ("domain", "shape")}
            keys |= {"minCeiling": "min_ceiling", "maxCeiling": "max_ceiling"}
            self._report.note(
                Kind.CHANGED,
                path,
                "the peer ranks over all provisioned bands; here over those with demand. "
                "The peer's way: flow_control.ceilings.rank_over: declared",
            )
            return {"type": "priority-holdback", **self._parameters(plugin, keys, {})}
        if plugin.type == SOFT_REFLECTIVE:
            self._report.note(
                Kind.CHANGED, path, "the duty cycle is measured in time here, not in dispatch cycles"
            )
            return {"type": "soft-reflective"}
        self._report.problem(path, f"{plugin.type} is no usage limit policy")
        return {}

    def _limit(self, section: Section, ours: str, theirs: str) -> None:
        value = self._flow.get(theirs)
        if value is None:
            return
        try:
            number = quantity(value)
        except ValueError as error:
            self._report.problem(("flowControl", theirs), str(error))
            return
        if number:
            section[ours] = number

    def _ttls(self, section: Section) -> None:
        """The peer's 0s switches a limit off; its second TTL follows the first when only that is set."""
        values: dict[str, float | None] = {}
        for ours, theirs in (
            ("default_ttl_s", "defaultRequestTTL"),
            ("no_endpoint_ttl_s", "noEndpointRequestTTL"),
        ):
            if self._flow.get(theirs) is None:
                continue
            try:
                values[ours] = duration_s(self._flow[theirs]) or None
            except ValueError as error:
                self._report.problem(("flowControl", theirs), str(error))
        if "default_ttl_s" in values:
            values.setdefault("no_endpoint_ttl_s", values["default_ttl_s"])
        section |= values

    # ---- the pool and the requests

    def _endpoints(self) -> Section:
        path: Path = ("dataLayer",)
        layer = self._report.section(self._data.get("dataLayer"), path)
        section: Section = {}
        discovery = self._report.section(layer.get("discovery"), (*path, "discovery"))
        plugin = self._plugins.take(discovery.get("pluginRef"), (*path, "discovery", "pluginRef"))
        if plugin is not None and plugin.type == FILE_DISCOVERY:
            section["discovery"] = [{"type": "file", **self._parameters(plugin, {"path": "path"}, {})}]
            self._report.note(
                Kind.CHANGED,
                plugin.path,
                "an entry of the endpoints file is {name, address: ip:port, labels} here; the peer has "
                "address and port apart. `extproc import --endpoints FILE` rewrites it. It is always watched",
            )
        elif plugin is not None:
            self._report.note(Kind.UNMAPPED, plugin.path, f"discovery by {plugin.type}")
        elif not layer.get("discovery"):
            self._report.note(
                Kind.UNMAPPED,
                path,
                "the peer takes its pool from command-line flags: set endpoints.discovery "
                "(type: kubernetes with the InferencePool's name, file, dns or static)",
            )
        for source_path, item in self._report.items(layer.get("sources"), (*path, "sources")):
            self._source(section, self._report.section(item, source_path), source_path)
        for key in layer.keys() - {"discovery", "sources", "injectDefaults"}:
            self._report.note(Kind.UNMAPPED, (*path, key), "has no effect in the peer either")
        return section

    def _keep_fresh(self, endpoints: Section) -> None:
        """Scrape as often as the peer does by default, which its staleness limit needs."""
        scrape = endpoints.setdefault("scrape", {})
        for key in ("min_interval_s", "busy_interval_s", "max_interval_s"):
            scrape.setdefault(key, PEER_SCRAPE_INTERVAL_S)

    def _source(self, section: Section, source: dict[str, Data], path: Path) -> None:
        plugin = self._plugins.take(source.get("pluginRef"), (*path, "pluginRef"))
        for extractor_path, item in self._report.items(source.get("extractors"), (*path, "extractors")):
            extractor = self._report.section(item, extractor_path)
            self._plugins.take(extractor.get("pluginRef"), (*extractor_path, "pluginRef"))
        if plugin is None or plugin.type != METRICS_SOURCE:
            if plugin is not None:
                self._report.note(Kind.UNMAPPED, path, f"metrics from {plugin.type}")
            return
        readers: dict[str, Callable[[Data], Any]] = {"interval": duration_s}
        scrape = self._parameters(plugin, {"path": "path", "interval": "busy_interval_s"}, readers)
        if scrape:
            section["scrape"] = scrape

    def _requests(self) -> Section:
        section: Section = {}
        handler = self._report.section(self._data.get("requestHandler"), ("requestHandler",))
        listed = handler.get("parsers")
        if listed is None and self._data.get("parser") is not None:
            listed = [self._data["parser"]]
        names = set()
        for path, item in self._report.items(listed, ("requestHandler", "parsers")):
            plugin = self._plugins.take(self._report.section(item, path).get("pluginRef"), path)
            if plugin is not None:
                names.add(plugin.type)
        if names and "passthrough-parser" not in names:
            section["unknown_paths"] = "refuse"
        for name in sorted(names - NEEDLESS.keys()):
            self._report.note(Kind.UNMAPPED, ("requestHandler", "parsers"), f"bodies in the form of {name}")
        plugin = self._plugins.first_of(TOKENS)
        if plugin is not None and ({"modelName", "vllm"} & plugin.parameters.keys()):
            section["tokens"] = {"mode": "engine"}
            self._report.note(
                Kind.CHANGED,
                plugin.path,
                "exact counts are asked of the endpoints themselves, not of one URL",
            )
        return section

    def _parameters(
        self, plugin: Plugin, keys: dict[str, str], readers: dict[str, Callable[[Data], Any]]
    ) -> Section:
        """The plugin's parameters under our names; those not in `keys` are noted."""
        result: Section = {}
        for key, value in plugin.parameters.items():
            path = (*plugin.path, "parameters", key)
            if key not in keys:
                self._report.note(Kind.UNMAPPED, path, f"no such setting of {plugin.type} here")
                continue
            try:
                result[keys[key]] = readers[key](value) if key in readers else value
            except ValueError as error:
                self._report.problem(path, str(error))
        return result

    def _leftovers(self) -> None:
        for plugin in self._plugins.unused():
            if plugin.type in NEEDLESS:
                why = NEEDLESS[plugin.type] or "nothing refers to it"
                self._report.note(Kind.NEEDLESS, plugin.path, f"{plugin.type}: {why}")
            else:
                self._report.note(Kind.UNMAPPED, plugin.path, f"plugin {plugin.type}")
