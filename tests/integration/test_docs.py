"""The documentation can be trusted: links lead somewhere, commands run, settings load, names exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from prometheus_client import generate_latest

from extproc.batch.meters import BatchMeters
from extproc.config.schema import Config, parse_config
from extproc.config.yaml_source import MAX_TEXT_BYTES
from extproc.exchange import names
from extproc.runtime.catalogue import Kind, all_metrics
from extproc.runtime.gauges import MAX_FAIRNESS_LABELS
from extproc.runtime.live import MAX_READERS
from extproc.runtime.telemetry import MAX_MODEL_LABELS
from tests.e2e.test_readme import STAYS, commands
from tests.support.compose import compose

ROOT = Path(__file__).parents[2]
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
SECTIONS = set(Config.__dataclass_fields__)


def _is_tested_elsewhere(page: str) -> bool:
    """Whether another test reads the page: its commands and settings need more than a line to be run."""
    name = Path(page).parts[1]
    tests = (path for path in (ROOT / "tests").rglob("test_*.py") if path != Path(__file__))
    return any(name in path.read_text() for path in tests)


TESTED_ELSEWHERE = [page for page in PAGES if _is_tested_elsewhere(page)]
OWN_PAGES = [page for page in PAGES if page not in TESTED_ELSEWHERE]


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text()
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    return ["\n".join(line.removeprefix(indent) for line in body.splitlines()) for indent, body in found]


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    path = ROOT / page
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith("http"):
            continue  # nothing outside can be asked here
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        assert file.exists(), f"{page}: {target}"
        if anchor:
            assert anchor in anchors(file), f"{page}: {target}"


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    for page in PAGES:
        name = page.removeprefix("docs/")
        if "/" not in name and name != "README.md":
            assert f"]({name}" in index, name


def test_the_pages_that_are_tested_here() -> None:
    assert {"docs/quick-start.md", "docs/choosing-a-detector.md", "docs/migration.md"} <= set(OWN_PAGES)


@pytest.mark.parametrize("page", OWN_PAGES)
def test_every_example_configuration_loads(page: str) -> None:
    for block in blocks(page, "yaml"):
        if set(yaml.safe_load(block)) <= SECTIONS:
            parse_config(block, source=page)
        else:
            assert "apiVersion" in block, block


@pytest.mark.parametrize("page", PAGES)
def test_every_diagram_has_a_kind_that_mermaid_knows(page: str) -> None:
    for block in blocks(page, "mermaid"):
        assert block.split()[0] in ("flowchart", "sequenceDiagram")
        for kind in ("subgraph",):
            assert len(re.findall(rf"^\s*{kind}\b", block, re.MULTILINE)) == len(
                re.findall(r"^\s*end$", block, re.MULTILINE)
            )


@pytest.mark.parametrize("page", PAGES)
def test_every_metric_that_is_named_exists(page: str) -> None:
    known = {"extproc_"} | batch_metrics()
    for metric in all_metrics():
        parts = ("_bucket", "_sum", "_count", "") if metric.kind is Kind.HISTOGRAM else ("",)
        known |= {metric.name + part for part in parts}
    for name in re.findall(r"\bextproc_[a-z_]+\b", (ROOT / page).read_text()):
        assert name in known, f"{page}: {name}"


@pytest.mark.parametrize("page", PAGES)
def test_every_header_that_is_named_exists(page: str) -> None:
    known = {value for value in vars(names).values() if isinstance(value, str)}
    known |= {one for value in vars(names).values() if isinstance(value, tuple) for one in value}
    for name in re.findall(
        r"\bx-(?:llm-d|gateway|request|priority|vllm)[a-z-]*\b", (ROOT / page).read_text()
    ):
        assert name in known, f"{page}: {name}"


def test_the_limits_page_tells_the_defaults_that_are_in_force() -> None:
    config = Config()
    band, limits, priority = (
        config.flow_control.default_band,
        config.requests.limits,
        config.requests.priority,
    )
    ping = config.server.keepalive
    defaults = {
        "requests.limits.max_body_bytes": f"{limits.max_body_bytes >> 20} MiB",
        "server.max_streams": f"{config.server.max_streams:,}",
        "bands[].max_requests": f"{band.max_requests:,}",
        "bands[].max_bytes": f"{band.max_bytes // 1_000_000_000} GB",
        "flow_control.max_requests": "none" if config.flow_control.max_requests is None else "?",
        "bands[].max_requests_per_flow": "none" if band.max_requests_per_flow is None else "?",
        "requests.limits.max_ttl_s": f"{limits.max_ttl_s:,.0f} s",
        "requests.limits.max_headers": f"{limits.max_headers}",
        "requests.limits.max_fairness_id_bytes": f"{limits.max_fairness_id_bytes} bytes",
        "server.keepalive.ping_interval_s": f"{ping.ping_interval_s:.0f} s + {ping.ping_timeout_s:.0f} s",
        "requests.priority.minimum": f"{priority.minimum} to {priority.maximum}",
        "tenants as metric labels": str(MAX_FAIRNESS_LABELS),
        "models as metric labels": str(MAX_MODEL_LABELS),
        "open live pages": str(MAX_READERS),
        "configuration file": f"{MAX_TEXT_BYTES >> 20} MiB",
    }
    rows = [line for line in (ROOT / "docs/limits.md").read_text().splitlines() if line.startswith("| ")]
    for name, default in defaults.items():
        (row,) = [line for line in rows if f"`{name}`" in line or line.startswith(f"| {name} ")]
        assert row.split("|")[2].strip().startswith(default), row


def batch_metrics() -> set[str]:
    """The batch processor counts in a registry of its own."""
    text = generate_latest(BatchMeters().registry).decode()
    families = set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))
    return families | {family.removesuffix("_total") for family in families}


def test_the_alerts_page_names_every_alert() -> None:
    groups = yaml.safe_load((ROOT / "deploy/prometheus/rules.yaml").read_text())["groups"]
    alerts = {rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule}
    table = set(re.findall(r"^\| (Extproc\w+) \|", (ROOT / "docs/operations.md").read_text(), re.MULTILINE))
    assert table == alerts


# ---- commands

ALL = sorted({line for page in OWN_PAGES for line in commands(page)})
OURS = [line for line in ALL if line.startswith(".venv/bin/")]


def kubectl(words: list[str]) -> None:
    assert words[1] in ("apply", "create")
    for option, file in pairwise(words):
        if option == "-f":
            assert (ROOT / file).exists(), file


def helm(words: list[str]) -> None:
    from helm_python import Chart

    assert words[1:3] == ["install", "extproc"]
    values: dict[str, object] = {}
    for option, setting in pairwise(words):
        if option == "--set":
            path, _, value = setting.partition("=")
            section, _, key = path.partition(".")
            values[section] = {key: value}
    with Chart.load(ROOT / words[3]) as chart:
        rendered = "\n".join(chart.render(values=values, name="extproc").values())
    for section in values.values():
        assert isinstance(section, dict)
        assert all(str(value) in rendered for value in section.values())


def docker(words: list[str]) -> None:
    if words[1] == "build":
        assert (ROOT / words[words.index("-f") + 1]).exists()
        return
    assert words[1] == "compose"
    services = compose()["services"]
    for option, value in pairwise(words):
        if option == "--scale":
            assert value.partition("=")[0] in services
        if option == "--profile":
            assert any(value in service.get("profiles", ()) for service in services.values())


def make(words: list[str]) -> None:
    subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, check=True, capture_output=True)


FOREIGN: dict[str, Callable[[list[str]], None]] = {
    "kubectl": kubectl,
    "helm": helm,
    "docker": docker,
    "make": make,
}


@pytest.mark.parametrize("line", [line for line in ALL if line not in OURS])
def test_a_command_of_another_tool_fits_our_files(line: str) -> None:
    words = shlex.split(line)
    FOREIGN[words[0]](words)


@pytest.mark.parametrize("line", [line for line in OURS if line.startswith(STAYS)])
def test_a_command_that_stays_is_the_readmes(line: str) -> None:
    """Those are started and used by the README's tests."""
    assert line in commands("README.md")


@pytest.mark.parametrize("line", [line for line in OURS if not line.startswith(STAYS)])
def test_a_command_that_ends_succeeds(line: str) -> None:
    if line in commands("README.md"):
        pytest.skip("run by the README's tests")
    words = shlex.split(line)
    assert words[0] == ".venv/bin/extproc"
    done = subprocess.run(
        [sys.executable, "-m", "extproc", *words[1:]],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
