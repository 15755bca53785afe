"""`extproc batch`: the group of the queue processor's commands, imported when they are used."""

from __future__ import annotations

import click

from extproc.cli import LazyGroup

COMMANDS: dict[str, tuple[str, str]] = {
    "cancel": ("extproc.cli.batch_client:cancel", "End a batch; what is finished is kept."),
    "results": ("extproc.cli.batch_client:results", "Download the results of a batch."),
    "serve": ("extproc.cli.batch_serve:serve", "The Files and Batches API with a worker."),
    "status": ("extproc.cli.batch_client:status", "One batch, or all of them."),
    "submit": ("extproc.cli.batch_client:submit", "Send an input file and create a batch."),
    "tail": ("extproc.cli.batch_client:tail", "Print results as they come."),
    "worker": ("extproc.cli.batch_serve:worker", "One more worker on a shared store."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def batch() -> None:
    """Offline work that fills idle capacity, gives way to interactive traffic, and resumes from saved tokens.

    Example: extproc batch serve --gateway http://127.0.0.1:8080
    """
