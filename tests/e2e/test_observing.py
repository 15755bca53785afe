"""The worked example of docs/observing.md, as a reader runs it."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from extproc.stack.process import ChildProcess, free_ports
from tests.e2e.test_readme import ENV, commands, resolved

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "observing.md"
EXAMPLE = ROOT / "docs" / "examples" / "observe.yaml"
UP, LOAD, LOOK = commands("docs/observing.md")


class Outcome(NamedTuple):
    """What the clients saw, and what the metrics say."""

    classes: dict[str, dict[str, float]]
    series: dict[tuple[str, str, str], float]

    def would(self, action: str, priority: str) -> float:
        return self.series["extproc_observe_only_total", priority, action]

    def did(self, outcome: str, priority: str) -> float:
        return self.series["extproc_requests_total", priority, outcome]


@contextlib.contextmanager
def up(line: str, directory: Path) -> Iterator[tuple[str, str]]:
    """The addresses of Envoy and of the admin port."""
    (port,) = free_ports(1)
    log = directory / f"up-{port}.log"
    child = ChildProcess(
        "up", ["/bin/sh", "-c", f"cd {ROOT} && exec {resolved(line)} --port {port}"], log, env=ENV
    )
    child.start()
    try:
        child.wait_until(lambda: "Ctrl-C ends everything" in log.read_text(), timeout_s=40)
        admin = re.search(r"admin: +(http://[0-9.:]+)/ui", log.read_text())
        assert admin is not None
        yield f"http://127.0.0.1:{port}", admin[1]
    finally:
        child.stop()


def run(up_line: str, directory: Path) -> Outcome:
    with up(up_line, directory) as (url, admin):
        load = LOAD.replace("http://127.0.0.1:8080", url).replace("--seconds 20", "--seconds 6") + " --json"
        done = subprocess.run(
            resolved(load), shell=True, cwd=ROOT, capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, done.stderr
        look = LOOK.removeprefix("curl -s ").replace("http://127.0.0.1:9090", admin)
        with urllib.request.urlopen(look, timeout=10) as answer:
            text = answer.read().decode()
    series = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = sample.labels
            action = labels.get("action") or labels.get("outcome") or ""
            series[sample.name, labels.get("priority", ""), action] = sample.value
    return Outcome(json.loads(done.stdout)["classes"], series)


def test_the_page_shows_the_file_and_names_every_action() -> None:
    text = PAGE.read_text()
    (block,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert yaml.safe_load(block) == yaml.safe_load(EXAMPLE.read_text())
    actions = re.findall(r"^\| `(would-[a-z]+)` \|", text, re.MULTILINE)
    assert actions == [
        "would-pass",
        "would-hold",
        "would-reject",
        "would-expire",
        "would-displace",
        "would-evict",
    ]


@pytest.mark.slow
def test_the_worked_example_foresees_what_enforcing_does(tmp_path: Path) -> None:
    observed = run(UP, tmp_path)
    for name, priority in (("interactive", "10"), ("batch", "-1")):
        seen = observed.classes[name]
        assert seen["requests"] == seen["completed"]
        assert (seen["evicted"], seen["rejected"]) == (0, 0)
        decided = [
            observed.would(action, priority) for action in ("would-pass", "would-hold", "would-reject")
        ]
        assert sum(decided) == seen["requests"]
    assert observed.would("would-pass", "10") == observed.classes["interactive"]["requests"]
    enforcing = tmp_path / "enforce.yaml"
    enforcing.write_text(EXAMPLE.read_text().replace("mode: observe", "mode: enforce"))
    enforced = run(UP.replace("docs/examples/observe.yaml", str(enforcing)), tmp_path)
    evictions = enforced.series["extproc_revocations_issued_total", "-1", ""]
    assert evictions > 0
    assert 0.4 * evictions <= observed.would("would-evict", "-1") <= 2.5 * evictions
    held = enforced.series["extproc_queue_wait_seconds_count", "-1", "dispatched"]
    assert 0 < observed.would("would-hold", "-1") <= held
    assert not [key for key in enforced.series if key[0] == "extproc_observe_only_total"]
