"""The peer's configuration files, read into ours; whatever has no counterpart is named."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from extproc.config.loader import load_text
from extproc.config.peer.importer import import_text
from extproc.config.peer.notes import Kind
from extproc.config.schema import parse_config
from extproc.core.config import FlowControlConfig
from extproc.errors import ConfigError

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"

BY_TOKENS = (
    HEAD
    + """
featureGates: [flowControl]
plugins:
- type: concurrency-detector
  parameters: {concurrencyMode: hybrid, maxConcurrency: 48, maxTokenConcurrency: 250000, headroom: 0.1}
- type: inflight-load-producer
  parameters: {addEstimatedOutputTokens: true, outputRatio: 0.5, maxEstimatedOutputTokens: 2048}
- type: token-load-scorer
- type: max-score-picker
schedulingProfiles:
- name: only
  plugins: [{pluginRef: token-load-scorer, weight: 2}, {pluginRef: max-score-picker}]
flowControl:
  saturationDetector: {pluginRef: concurrency-detector}
  maxRequests: "4000"
  defaultRequestTTL: 1m15s
"""
)

THREE_PRIORITIES = (
    HEAD
    + """
featureGates: ["flowControl=true"]
plugins:
- type: concurrency-detector
- {type: round-robin-fairness-policy, name: turns}
- {type: slo-deadline-ordering-policy, name: by-target}
- {type: priority-holdback-policy, name: hold, parameters: {domain: value, minCeiling: 0.5, maxCeiling: 0.9}}
- {type: queue-scorer}
flowControl:
  maxBytes: 2Gi
  noEndpointRequestTTL: 0s
  usageLimitPolicyPluginRef: hold
  saturationDetector: {pluginRef: concurrency-detector}
  enableEviction: true
  defaultPriorityBand: {maxRequests: "700", fairnessPolicyRef: turns}
  defaultNegativePriorityBand: {maxRequests: "100", maxBytes: 200M}
  priorityBands:
  - {priority: -5, maxRequests: "300"}
  - {priority: 40, maxRequests: "1k", fairnessPolicyRef: turns, orderingPolicyRef: by-target}
"""
)

WITHOUT_KUBERNETES = (
    HEAD
    + """
plugins:
- {type: file-discovery, name: files, parameters: {path: /etc/pool.yaml, watchFile: true}}
- {type: prefix-cache-scorer}
dataLayer:
  discovery: {pluginRef: files}
requestHandler:
  parsers: [{pluginRef: openai-parser}]
"""
)


def flow_control(config: dict[str, Any]) -> FlowControlConfig:
    """The section as our own loader reads it: every imported key exists here and every value is accepted."""
    return load_text(yaml.safe_dump(config["flow_control"]), FlowControlConfig)


def test_prompts_counted_without_output_leave_the_load_at_the_first_output() -> None:
    section = flow_control(import_text(BY_TOKENS.replace("addEstimatedOutputTokens: true, ", "")).config)
    assert section.footprint.release_at_first_output


def test_token_counting_and_limits_come_over() -> None:
    imported = import_text(BY_TOKENS)
    section = flow_control(imported.config)
    detector = section.detector
    assert detector.type == "concurrency-detector"
    assert (detector.mode, detector.max_concurrency, detector.max_token_concurrency) == (
        "hybrid",
        48,
        250_000,
    )
    assert detector.burst_fraction == 0.1
    assert section.footprint.add_estimated_output_tokens
    assert not section.footprint.release_at_first_output
    assert section.footprint.output_ratio == 0.5
    assert section.footprint.max_estimated_output_tokens == 2048
    assert section.max_requests == 4000
    assert (section.default_ttl_s, section.no_endpoint_ttl_s) == (75.0, 75.0)


def test_bands_holdback_and_eviction_come_over() -> None:
    imported = import_text(THREE_PRIORITIES)
    section = flow_control(imported.config)
    high, low = section.bands
    assert (high.priority, high.max_requests, high.fairness.type, high.ordering.type) == (
        40,
        1000,
        "round-robin",
        "slo-deadline",
    )
    assert (low.priority, low.max_requests, low.fairness.type) == (-5, 300, "global-strict")
    assert section.band_config(3).max_requests == 700
    assert section.band_config(-1).max_bytes == 200_000_000
    assert section.max_bytes == 2 << 30
    assert section.no_endpoint_ttl_s is None
    assert section.eviction.enabled
    ceilings = section.ceilings
    assert ceilings.type == "priority-holdback"
    assert (ceilings.min_ceiling, ceilings.max_ceiling, ceilings.domain) == (0.5, 0.9, "value")
    changed = {note.path for note in imported.notes if note.kind is Kind.CHANGED}
    assert {"flowControl.enableEviction", "flowControl.usageLimitPolicyPluginRef"} <= changed


def test_file_discovery_comes_over_and_the_missing_gate_is_told() -> None:
    imported = import_text(WITHOUT_KUBERNETES)
    assert imported.config["endpoints"]["discovery"] == [{"type": "file", "path": "/etc/pool.yaml"}]
    assert imported.config["requests"]["unknown_paths"] == "refuse"
    told = {note.path: note for note in imported.notes}
    assert "observe" in told["featureGates"].message
    assert told["plugins[0].parameters.watchFile"].kind is Kind.UNMAPPED


def test_scorers_and_picker_come_over() -> None:
    profile = flow_control(import_text(BY_TOKENS).config).picker.profiles[0]
    assert profile.name == "only"
    assert [(scorer.type, scorer.weight) for scorer in profile.scorers] == [("token-load", 2)]
    assert profile.choice.type == "max-score"


def test_without_profiles_all_listed_scorers_make_one() -> None:
    text = (
        HEAD
        + """
featureGates: [flowControl]
plugins:
- {type: load-aware-scorer, parameters: {threshold: 64}}
- {type: weighted-random-picker, parameters: {maxNumOfEndpoints: 3}}
- {type: label-selector-filter, parameters: {matchLabels: {gpu: h200}}}
- {type: queue-scorer}
- {type: decode-filter}
"""
    )
    imported = import_text(text)
    profile = flow_control(imported.config).picker.profiles[0]
    assert [(scorer.type, scorer.full_at) for scorer in profile.scorers] == [("queue", 64)]
    assert (profile.choice.type, profile.max_endpoints, dict(profile.labels)) == (
        "weighted-random",
        3,
        {"gpu": "h200"},
    )
    assert [note.path for note in imported.notes if note.kind is Kind.UNMAPPED] == [
        "dataLayer",
        "plugins[3]",
        "plugins[4]",
    ]


def test_the_utilization_detector_comes_over_with_its_durations() -> None:
    text = (
        HEAD
        + """
featureGates: [flowControl]
plugins:
- type: utilization-detector
  parameters:
    {queueDepthThreshold: 8, kvCacheUtilThreshold: 0.9, metricsStalenessThreshold: 750ms, headroom: 0.2}
"""
    )
    detector = flow_control(import_text(text).config).detector
    assert detector.type == "utilization-detector"
    assert (detector.queue_depth_threshold, detector.kv_cache_util_threshold) == (8, 0.9)
    assert (detector.staleness_s, detector.burst_fraction) == (0.75, 0.2)


@pytest.mark.parametrize("text", [BY_TOKENS, THREE_PRIORITIES, WITHOUT_KUBERNETES])
def test_the_whole_result_is_a_configuration_that_loads(text: str) -> None:
    parse_config(yaml.safe_dump(import_text(text).config))


def test_every_note_names_its_line() -> None:
    text = HEAD + "featureGates: [flowControl]\nplugins:\n- type: agent-identity\nzoo: 1\n"
    notes = {note.path: note for note in import_text(text).notes}
    assert notes["plugins[0]"].line == 5
    assert notes["zoo"].line == 6
    assert str(notes["zoo"]) == "line 6, zoo: not imported: no such section is known"


def test_nothing_in_a_file_is_dropped_in_silence() -> None:
    """Each unknown key, plugin and parameter of a file shows up in the notes."""
    text = (
        HEAD
        + """
plugins:
- {type: concurrency-detector, parameters: {surprise: 1}, extra: 2}
- {type: latency-slo-admitter}
dataLayer: {peerDiscovery: {pluginRef: x}}
flowControl: {novelty: 3, priorityBands: [{priority: 1, colour: red}]}
"""
    )
    paths = {note.path for note in import_text(text).notes}
    assert paths >= {
        "plugins[0].extra",
        "plugins[1]",
        "dataLayer.peerDiscovery",
        "flowControl.novelty",
        "flowControl.priorityBands[0].colour",
    }


@pytest.mark.parametrize(
    ("text", "path", "word"),
    [
        ("kind: Deployment", "kind", "EndpointPickerConfig"),
        ("apiVersion: v1", "apiVersion", "llm-d.ai/v1alpha1"),
        ("featureGates: [turbo]", "featureGates", "turbo"),
        ("featureGates: [flowControl=maybe]", "featureGates", "neither on nor off"),
        ("plugins: {}", "plugins", "list"),
        ("plugins: [{name: x}]", "plugins[0].type", "required"),
        ("plugins: [{type: a}, {type: a}]", "plugins[1].name", "twice"),
        ("flowControl: {maxRequests: -1}", "flowControl.maxRequests", "quantity"),
        ("flowControl: {maxBytes: 3 GB}", "flowControl.maxBytes", "quantity"),
        ("flowControl: {maxBytes: true}", "flowControl.maxBytes", "quantity"),
        ("flowControl: {defaultRequestTTL: 60}", "flowControl.defaultRequestTTL", "duration"),
        ("flowControl: {defaultRequestTTL: -5s}", "flowControl.defaultRequestTTL", "duration"),
        (
            "flowControl: {saturationDetector: {pluginRef: nobody}}",
            "flowControl.saturationDetector.pluginRef",
            "",
        ),
        (
            "flowControl: {usageLimitPolicyPluginRef: openai-parser}",
            "flowControl.usageLimitPolicyPluginRef",
            "no usage limit policy",
        ),
        (
            "flowControl: {priorityBands: [{priority: 1}, {priority: 1}]}",
            "flowControl.priorityBands[1].priority",
            "twice",
        ),
        (
            "flowControl: {priorityBands: [{priority: high}]}",
            "flowControl.priorityBands[0].priority",
            "whole",
        ),
        ("flowControl: []", "flowControl", "section"),
        ("[]", "", "section"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_place(text: str, path: str, word: str) -> None:
    with pytest.raises(ConfigError) as caught:
        import_text(text)
    (problem,) = [one for one in caught.value.problems if one.path == path]
    assert word in problem.message
    assert problem.line == 1


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        import_text("kind: Pod\nflowControl:\n  maxRequests: x\n  defaultRequestTTL: y\n")
    assert [problem.line for problem in caught.value.problems] == [1, 3, 4]
