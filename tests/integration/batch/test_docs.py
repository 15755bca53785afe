"""docs/resume.md and docs/batch.md say what the code does: examples run, tables are generated from it."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from extproc.batch.features import TABLE, Row
from extproc.batch.meters import BatchMeters
from extproc.stack.local import LocalStack
from extproc.stack.process import ChildProcess, answers_http, free_ports

ROOT = Path(__file__).parents[3]
RESUME, BATCH = (ROOT / "docs" / name for name in ("resume.md", "batch.md"))


def test_the_examples_of_resume_md_give_what_they_say() -> None:
    failed, tried = doctest.testfile(str(RESUME), module_relative=False)
    assert failed == 0
    assert tried > 10


def test_the_table_of_resume_md_is_the_one_in_the_code() -> None:
    rows = re.findall(
        r"^\| (.+?) \| (.+?) \| (.+?) \|$", RESUME.read_text().split("<!-- /table -->")[0], re.MULTILINE
    )
    shown = rows[rows.index(("feature", "verdict", "why")) + 1 :]
    expected = [(row.feature, _shown_verdict(row), row.why) for row in TABLE]
    assert [row for row in shown if not row[0].startswith("---")] == expected


def _shown_verdict(row: Row) -> str:
    shown = row.verdict.value + (", whole" if row.is_whole else "")
    return shown if row.if_parsed is None else f"{shown}; {row.if_parsed.value} with a render server"


def test_every_metric_is_explained() -> None:
    text = BATCH.read_text()
    for family in BatchMeters().registry.collect():
        short = family.name.removeprefix("extproc_batch")
        assert family.name in text or f"`{short}`" in text, family.name


@pytest.fixture
def processor(tmp_path: Path) -> Iterator[str]:
    """What the page's first block starts, on free ports."""
    (port,) = free_ports(1)
    stack = LocalStack({}, directory=tmp_path / "stack")
    with stack:
        argv = [sys.executable, "-m", "extproc", "batch", "serve", "--gateway", stack.url]
        argv += ["--store", str(tmp_path / "store"), "--port", str(port), "--admin-port", "0"]
        serve = ChildProcess("batch", argv, tmp_path / "batch.log")
        serve.start()
        try:
            serve.wait_until(lambda: answers_http("127.0.0.1", port, "/v1/batches"), timeout_s=30)
            yield f"http://127.0.0.1:{port}"
        finally:
            serve.stop()


@pytest.mark.slow
def test_the_commands_of_batch_md_run(processor: str, tmp_path: Path) -> None:
    text = BATCH.read_text()
    first, *blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    assert "extproc up" in first
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for name, arguments in (("extproc", "-m extproc "), ("python3", "")):
        script = bin_folder / name
        script.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} {arguments}"$@"\n')
        script.chmod(0o755)
    python = "\n".join(re.findall(r"```python\n(import.*?)```", text, re.DOTALL))
    (tmp_path / "client.py").write_text(python.replace("http://127.0.0.1:8090", processor))
    script = "set -e\n" + "\n".join(blocks) + "\npython3 client.py\n"
    env = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}", "EXTPROC_BATCH_API": processor}
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    answers = (tmp_path / "answers.jsonl").read_text().splitlines()
    assert len(answers) == 2
    assert "completed BatchRequestCounts(completed=2" in done.stdout
    assert "lines/s" in done.stdout
