"""`extproc serve`: the external processor alone, for an Envoy that runs elsewhere."""

from __future__ import annotations

import logging
from pathlib import Path

import click
import uvloop

from extproc.config.checks import risks
from extproc.config.schema import load_config
from extproc.errors import ExtprocError
from extproc.runtime.app import serve

logger = logging.getLogger(__name__)


@click.command("serve")
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    required=True,
    envvar="EXTPROC_CONFIG",
    show_envvar=True,
    help="The configuration; see config/extproc.yaml.",
)
def command(file: Path) -> None:
    """Answer Envoy's ext_proc calls until SIGTERM or Ctrl-C, then drain; a second signal ends at once.

    Exit code 0: drained; 1: a port is taken or a file cannot be used; 2: the configuration is refused.

    Example: extproc serve --config config/extproc.yaml
    """
    config = load_config(file)
    for problem in risks(config):
        logger.warning("%s: %s", file, problem)
    try:
        uvloop.run(serve(config, file))
    except OSError as error:
        raise ExtprocError(str(error)) from error
