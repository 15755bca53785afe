"""`extproc completion`: the script that teaches a shell our commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script of SHELL; put it where your shell looks for it.

    Example: extproc completion bash > ~/.local/share/bash-completion/completions/extproc
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "extproc", "_EXTPROC_COMPLETE").source())
