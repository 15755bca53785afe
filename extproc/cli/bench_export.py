"""`extproc bench export`: one cell of a suite as a scenario file for `extproc simulate`."""

from __future__ import annotations

import click
import yaml

from extproc.bench.suite import Cell, Setting
from extproc.bench.suites.catalogue import SUITES
from extproc.bench.virtual import scenario_file
from extproc.config.loader import dump


@click.command("export")
@click.argument("name", type=click.Choice(list(SUITES)), metavar="NAME")
@click.option("--arm", required=True, help="The arm's name; `extproc bench list --json` has them.")
@click.option("--load", required=True, help="The load's name.")
@click.option("--setting", default=Setting.WAVE.value, type=click.Choice([each.value for each in Setting]))
@click.option("--seed", default=0, show_default=True)
def export(name: str, arm: str, load: str, setting: str, seed: int) -> None:
    """Print a cell of a suite as YAML, to look at it, change it and simulate it.

    Example: extproc bench export no-resume --arm eviction --load "bursts of 32" > scenario.yaml
    """
    suite = SUITES[name]
    for kind, wanted, known in (
        ("arm", arm, [each.name for each in suite.arms]),
        ("load", load, [each.name for each in suite.loads]),
    ):
        if wanted not in known:
            raise click.BadParameter(f"{wanted!r} is not one of: {', '.join(known)}", param_hint=f"--{kind}")
    cell = Cell(suite=name, load=load, arm=arm, setting=Setting(setting))
    click.echo(yaml.safe_dump(dump(scenario_file(suite, cell, seed)), sort_keys=False), nl=False)
