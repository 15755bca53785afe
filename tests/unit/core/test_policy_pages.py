"""Every policy has a page: its configuration loads, its table lists every parameter with its default."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from extproc.config.schema import parse_config
from extproc.core.adaptive import AdaptiveHoldbackConfig
from extproc.core.ageing import AgeingConfig
from extproc.core.band import BandConfig
from extproc.core.capacity import CapacityDetectorConfig
from extproc.core.concurrency import ConcurrencyDetectorConfig
from extproc.core.eviction import EvictionConfig
from extproc.core.fairness import (
    GlobalStrictFairnessConfig,
    RoundRobinFairnessConfig,
    WeightedFairFairnessConfig,
)
from extproc.core.footprint import FootprintConfig
from extproc.core.holdback import (
    ExplicitCeilingsConfig,
    PriorityHoldbackConfig,
    SoftReflectiveConfig,
    StaticCeilingConfig,
)
from extproc.core.ordering import EdfOrderingConfig, FcfsOrderingConfig, SloDeadlineOrderingConfig
from extproc.core.pacing import PrefillPacingConfig
from extproc.core.utilization import UtilizationDetectorConfig

PAGES = Path(__file__).parents[3] / "docs" / "policies"

POLICIES: dict[str, type] = {
    "adaptive-holdback": AdaptiveHoldbackConfig,
    "ageing": AgeingConfig,
    "bands": BandConfig,
    "capacity-detector": CapacityDetectorConfig,
    "concurrency-detector": ConcurrencyDetectorConfig,
    "edf": EdfOrderingConfig,
    "eviction": EvictionConfig,
    "explicit": ExplicitCeilingsConfig,
    "fcfs": FcfsOrderingConfig,
    "footprint": FootprintConfig,
    "global-strict": GlobalStrictFairnessConfig,
    "pacing": PrefillPacingConfig,
    "priority-holdback": PriorityHoldbackConfig,
    "round-robin": RoundRobinFairnessConfig,
    "slo-deadline": SloDeadlineOrderingConfig,
    "soft-reflective": SoftReflectiveConfig,
    "static": StaticCeilingConfig,
    "utilization-detector": UtilizationDetectorConfig,
    "weighted-fair": WeightedFairFairnessConfig,
}


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_its_configuration_loads_and_uses_the_policy(name: str) -> None:
    text = (PAGES / f"{name}.md").read_text()
    (block,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    loaded = parse_config(block, source=f"{name}.md")
    assert _contains(loaded, POLICIES[name])


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_its_table_states_every_parameter_and_default(name: str) -> None:
    text = (PAGES / f"{name}.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]*?) \|", text, re.MULTILINE))
    for field in dataclasses.fields(POLICIES[name]):
        if field.name == "type":
            continue
        assert field.name in rows, f"{name}.md doesn't list {field.name}"
        stated = rows[field.name].strip("`")
        if field.default is dataclasses.MISSING:
            continue
        expected = field.default
        if dataclasses.is_dataclass(expected):
            assert stated == getattr(expected, "type", stated)
        else:
            assert stated == _spelled(expected)


def test_the_index_names_every_page() -> None:
    index = (PAGES / "README.md").read_text()
    pages = {path.stem for path in PAGES.glob("*.md")} - {"README"}
    assert pages == set(POLICIES)
    assert all(f"({page}.md)" in index for page in pages)


def _spelled(default: object) -> str:
    if default is None:
        return "none"
    return str(default).lower() if isinstance(default, bool) else str(default)


def _contains(value: object, kind: type) -> bool:
    if isinstance(value, kind):
        return True
    if isinstance(value, tuple | list):
        return any(_contains(part, kind) for part in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return any(_contains(getattr(value, field.name), kind) for field in dataclasses.fields(value))
    return False
