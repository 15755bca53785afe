"""The command line's frame: version, help, and errors as messages."""

from click.testing import CliRunner

from extproc import __version__
from extproc.cli import cli


def test_version_is_printed() -> None:
    result = CliRunner().invoke(cli, ["--version"])
    assert result.exit_code == 0
    assert __version__ in result.output
