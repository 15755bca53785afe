"""The command line's frame: version, help, and errors as messages."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from extproc import __version__
from extproc.cli import cli


def all_commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        yield (*path, name)
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from all_commands(command, (*path, name))


def find(path: tuple[str, ...]) -> click.Command:
    command: click.Command = cli
    for name in path:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found is not None
        command = found
    return command


def test_version_is_printed() -> None:
    result = CliRunner().invoke(cli, ["--version"])
    assert result.exit_code == 0
    assert __version__ in result.output


@pytest.mark.parametrize("path", [*all_commands(cli)], ids=" ".join)
def test_every_command_shows_an_example_of_itself(path: tuple[str, ...]) -> None:
    command = find(path)
    paragraphs = re.findall(r"Example: (.+?)(?:\n\s*\n|\Z)", command.help or "", re.DOTALL)
    (example,) = [" ".join(paragraph.split()) for paragraph in paragraphs]
    words = shlex.split(example.split(" > ")[0])
    assert words[: len(path) + 1] == ["extproc", *path]
    known = {
        option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
    }
    rest = words[len(path) + 1 :]
    if isinstance(command, click.Group):
        shown = command.get_command(click.Context(command), rest[0])
        assert shown is not None, example
        known = {option for parameter in shown.params for option in parameter.opts}
    for word in rest:
        assert not word.startswith("--") or word in known, f"{word} in {example}"
