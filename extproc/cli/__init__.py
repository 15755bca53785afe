"""The `extproc` command: parses flags, calls one function. Sub-commands are imported when they are used.

Exit codes: 0 success; 1 the work failed; 2 bad usage or bad input (the message says what to change);
130 interrupted.
"""

from __future__ import annotations

import importlib
import sys

import click

from extproc import __version__
from extproc.errors import ConfigError, ExtprocError

COMMANDS: dict[str, tuple[str, str]] = {
    # name: (module:attribute, one line for the overview)
    "batch": ("extproc.cli.batch:batch", "queue processor: OpenAI batches that resume from saved tokens"),
    "bench": ("extproc.cli.bench:bench", "measure: suites, load, single parts"),
    "check": ("extproc.cli.check:command", "check a configuration and print what is in force"),
    "completion": ("extproc.cli.completion:command", "print the completion script of a shell"),
    "demo": ("extproc.cli.demo:command", "one minute: the same load without and with flow control"),
    "doctor": ("extproc.cli.doctor:command", "look at ports, Envoy, limits and servers, and say what to do"),
    "emulate": ("extproc.cli.emulate:emulate", "an emulated vLLM server on a port"),
    "envoy-config": ("extproc.cli.envoy_config:command", "print an Envoy bootstrap for given addresses"),
    "explain": ("extproc.cli.explain:explain", "what would become of a request now, and why"),
    "import": ("extproc.cli.import_config:import_config", "read llm-d-router's configuration into ours"),
    "serve": ("extproc.cli.serve:command", "run the external processor"),
    "sim": ("extproc.cli.sim:sim", "fit the simulator to hardware; vary a setting"),
    "simulate": ("extproc.cli.simulate:simulate", "run a scenario in virtual time"),
    "top": ("extproc.cli.top:top", "live view of a running processor in the terminal"),
    "up": ("extproc.cli.up:command", "Envoy, extproc and emulated servers on this machine"),
}


class LazyGroup(click.Group):
    """A group whose commands are named in a table and imported on use, so that `--help` stays fast."""

    def __init__(self, *args: object, table: dict[str, tuple[str, str]], **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self._table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self._table, *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self._table:
            return super().get_command(ctx, cmd_name)
        module_name, attribute = self._table[cmd_name][0].split(":")
        try:
            command = getattr(importlib.import_module(module_name), attribute)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.startswith("extproc"):
                raise
            message = f"{cmd_name} needs the package {error.name}: pip install 'extproc[all]'"
            raise click.ClickException(message) from error
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, self._table[name][1]) for name in sorted(self._table)]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="extproc")
def cli() -> None:
    """Flow control for pools of vLLM servers, as an Envoy external processor.

    Example: extproc demo
    """


def main() -> None:
    """Entry point: errors of ours become one clear message and an exit code, never a traceback."""
    try:
        status = cli.main(standalone_mode=False)
        sys.exit(status if isinstance(status, int) else 0)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.Abort:
        click.echo("interrupted", err=True)
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except ConfigError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
    except ExtprocError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
