"""Every query of the dashboard, run by a real Prometheus that has scraped a loaded stack, returns data."""

from __future__ import annotations

import http.client
import json
import re
import runpy
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import yaml

from extproc.runtime.catalogue import all_metrics
from extproc.stack.local import LocalStack
from extproc.stack.process import free_ports
from tests.support.stack import running_stack
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[3]
DASHBOARD = ROOT / "deploy" / "grafana" / "extproc.json"
PROMETHEUS = shutil.which("prometheus")


def queries() -> list[tuple[str, str]]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [
        (f"{panel['title']} / {target['legendFormat']}", target["expr"])
        for panel in panels
        for target in panel.get("targets", ())
    ]


def test_the_file_is_what_its_table_makes() -> None:
    built = runpy.run_path(str(ROOT / "deploy" / "grafana" / "build.py"))
    assert DASHBOARD.read_text() == built["text"](), "run `python deploy/grafana/build.py`"


def test_panels_do_not_overlap_and_have_a_unit_and_a_sentence() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        grid = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(grid["x"], grid["x"] + grid["w"])
            for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert not cells & taken
        assert grid["x"] + grid["w"] <= 24
        taken |= cells
        if panel["type"] != "row":
            assert panel["description"].endswith(".")
            assert panel["fieldConfig"]["defaults"]["unit"]


def test_every_metric_of_the_dashboard_is_in_the_catalogue() -> None:
    known = {metric.name for metric in all_metrics()}
    for title, expression in queries():
        for name in re.findall(r"\bextproc_[a-z_]+", expression):
            assert re.sub(r"_(bucket|sum|count)$", "", name) in known, title


@contextmanager
def prometheus(stack: LocalStack, directory: Path) -> Iterator[str]:
    (port,) = free_ports(1)
    targets = {"targets": [stack.admin_url.removeprefix("http://")]}
    config = {
        "global": {"scrape_interval": "1s"},
        "rule_files": [str(ROOT / "deploy" / "prometheus" / "rules.yaml")],
        "scrape_configs": [{"job_name": "extproc", "static_configs": [targets]}],
    }
    file = directory / "prometheus.yaml"
    file.write_text(yaml.safe_dump(config))
    assert PROMETHEUS is not None
    process = subprocess.Popen(
        [
            PROMETHEUS,
            f"--config.file={file}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


def ask(url: str, expression: str) -> list[Any]:
    query = urllib.parse.urlencode({"query": expression})
    try:
        with urllib.request.urlopen(f"{url}/api/v1/query?{query}", timeout=10) as answer:
            result: list[Any] = json.load(answer)["data"]["result"]
    except (ConnectionError, urllib.error.URLError):
        return []
    return [one for one in result if one["value"][1] != "NaN"]


def send(stack: LocalStack, number: int) -> int:
    is_batch = number % 3 == 0
    body: dict[str, Any] = {"model": "emulated", "stream": True, "max_tokens": 80 if is_batch else 12}
    body["messages"] = [{"role": "user", "content": "Tell me more. " * (40 if is_batch else 4)}]
    headers = {
        "content-type": "application/json",
        "x-llm-d-inference-objective": "batch" if is_batch else "interactive",
        "x-llm-d-inference-fairness-id": f"team-{number % 4}",
    }
    data = json.dumps(body).encode() if number % 50 else b"{"
    request = urllib.request.Request(f"{stack.url}/v1/chat/completions", data, headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except (ConnectionError, urllib.error.URLError, http.client.HTTPException):  # evicted in mid-stream
        return 0


@pytest.mark.slow
@pytest.mark.skipif(PROMETHEUS is None, reason="no Prometheus here")
def test_every_query_returns_data_of_a_loaded_stack(tmp_path: Path) -> None:
    config = {
        "flow_control": {
            "detector": {"type": "concurrency-detector", "max_concurrency": 4},
            "bands": [{"priority": 10, "ttl_s": 30}, {"priority": -1, "ttl_s": 60}],
            "ceilings": {"type": "priority-holdback", "min_ceiling": 0.8},
            "eviction": {"enabled": True},
        },
        "requests": {"priority": {"objectives": {"interactive": 10, "batch": -1}}},
    }
    emulators = [["--max-num-seqs", "4"], ["--max-num-seqs", "4"]]
    with running_stack(config, emulators=emulators) as stack, prometheus(stack, tmp_path) as url:
        ask_all = [
            (name, query.replace("$__rate_interval", "20s").replace("$job", ".*"))
            for name, query in queries()
        ]
        missing: set[str] = set()

        def all_answer() -> bool:
            missing.clear()
            missing.update(name for name, query in ask_all if not ask(url, query))
            return not missing

        stop = Event()

        def keep_sending(first: int) -> set[int]:
            seen = set()
            for number in range(first, 100_000, 24):
                if stop.is_set():
                    break
                seen.add(send(stack, number))
            return seen

        with ThreadPoolExecutor(24) as pool:
            done = [pool.submit(keep_sending, first) for first in range(24)]
            with suppress(AssertionError):  # which ones are missing is told below
                wait_for(all_answer, timeout_s=45, poll_s=1)
            stop.set()
            statuses = set().union(*(one.result() for one in done))
        assert statuses <= {0, 200, 400, 429}
        assert missing == set()
