"""`extproc sim`: the group of what is done with the simulator besides running one scenario."""

from __future__ import annotations

import click

from extproc.cli import LazyGroup

SIM_COMMANDS: dict[str, tuple[str, str]] = {
    # name: (module:attribute, one line for the overview)
    "calibrate": ("extproc.cli.sim_calibrate:calibrate", "fit a hardware file to the figures it cites"),
    "sweep": ("extproc.cli.sim_sweep:sweep", "run a scenario over a range of one or two settings"),
}


@click.group(cls=LazyGroup, table=SIM_COMMANDS)
def sim() -> None:
    """Fit the simulator to hardware, and vary one setting to size a pool.

    Example: extproc sim calibrate h200-qwen2.5-1.5b
    """
