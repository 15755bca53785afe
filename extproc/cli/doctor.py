"""`extproc doctor`: looks at the machine, the files and the servers, and says what to do."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.console import Console
from rich.text import Text

from extproc.cli.doctor_checks import Finding, Level, local_findings
from extproc.cli.doctor_network import network_findings
from extproc.config.checks import risks
from extproc.config.schema import Config, load_config

MARKS = {Level.OK: ("ok  ", "green"), Level.WARN: ("warn", "yellow"), Level.FAIL: ("FAIL", "red")}


@click.command("doctor")
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    envvar="EXTPROC_CONFIG",
    help="The configuration; without it only the machine is looked at.",
)
@click.option(
    "--envoy", "envoy_file", type=click.Path(path_type=Path), help="An Envoy bootstrap to compare with."
)
@click.option("--offline", is_flag=True, help="Ask no model server.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def command(file: Path | None, envoy_file: Path | None, offline: bool, as_json: bool) -> None:
    """Check ports, Envoy, limits, clock, and the connection to every model server.

    Exit code 0: nothing is wrong (there may be warnings); 1: something is; 2: the configuration is refused.

    Example: extproc doctor --config config/extproc.yaml --envoy envoy/envoy.yaml
    """
    config = load_config(file) if file is not None else Config()
    findings = local_findings(config, envoy_file)
    if file is not None:
        findings += [
            Finding(Level.WARN, "configuration", str(problem), "see docs/sizing.md")
            for problem in risks(config)
        ]
        if not offline:
            findings += network_findings(config)
    if as_json:
        click.echo(json.dumps([finding.plain() for finding in findings], indent=2))
    else:
        _print(findings)
    if any(finding.level is Level.FAIL for finding in findings):
        raise click.exceptions.Exit(1)


def _print(findings: list[Finding]) -> None:
    console = Console(highlight=False)
    for finding in findings:
        mark, colour = MARKS[finding.level]
        console.print(Text.assemble((mark, colour), "  ", (finding.subject, "bold"), f": {finding.message}"))
        if finding.advice and finding.level is not Level.OK:
            console.print(Text(f"      -> {finding.advice}"))
    failed = sum(finding.level is Level.FAIL for finding in findings)
    warned = sum(finding.level is Level.WARN for finding in findings)
    console.print(f"\n{len(findings)} checks, {failed} failed, {warned} warnings")
