"""docs/replicas.md: its commands are commands, its files are there, what it names exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from extproc.cli.bench_replicas import replicas
from extproc.cli.up import command as up
from extproc.config.replicas import ReplicasConfig

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "replicas.md").read_text()
COMMANDS: dict[str, click.Command] = {"up": up, "bench replicas": replicas}
LINES = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]


@pytest.mark.parametrize("line", LINES)
def test_every_command_is_accepted(line: str) -> None:
    """Only parsed: each of them runs for minutes."""
    words = shlex.split(line)
    assert words[0] == ".venv/bin/extproc"
    name = next(name for name in COMMANDS if words[1:][: len(name.split())] == name.split())
    COMMANDS[name].make_context(name, words[1 + len(name.split()) :], resilient_parsing=False)


def test_every_file_that_is_named_is_there() -> None:
    names = re.findall(r"`((?:config|deploy|docs|tests)/[\w./-]+|test_\w+\.py)`", PAGE)
    assert len(names) >= 5
    for name in names:
        assert (ROOT / name).exists() or list((ROOT / "tests").rglob(name)), name


def test_every_setting_that_is_named_exists() -> None:
    for name in (
        "period_s",
        "lease_s",
        "leader_lease_s",
        "redis_timeout_s",
        "fallback",
        "password_file",
        "pool",
    ):
        assert f"`{name}" in PAGE, name
        assert name in ReplicasConfig.__dataclass_fields__
