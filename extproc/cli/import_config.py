"""`extproc import`: another endpoint picker's configuration as ours, and what could not be kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import yaml

from extproc.config.peer.endpoints import import_endpoints
from extproc.config.peer.importer import import_text
from extproc.config.peer.notes import Note

HEADER = "# Imported from {source} by `extproc import`. Check it with `extproc check {target}`.\n"


@click.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--output", "-o", type=click.Path(dir_okay=False, path_type=Path), help="Write the YAML there.")
@click.option("--endpoints", is_flag=True, help="FILE is the other's endpoints file, not its configuration.")
@click.option("--strict", is_flag=True, help="Fail (exit code 1) when something is not imported.")
@click.option("--json", "as_json", is_flag=True, help="Print the result and the notes as JSON.")
def import_config(file: Path, output: Path | None, endpoints: bool, strict: bool, as_json: bool) -> None:
    """Read llm-d-router's EndpointPickerConfig and print the same as a configuration of extproc.

    What has no counterpart here, or behaves differently, is listed on the error output with its line.

    Example: extproc import epp.yaml -o extproc.yaml
    """
    text = file.read_text(encoding="utf-8")
    config: dict[str, Any]
    notes: Sequence[Note]
    if endpoints:
        config, notes = import_endpoints(text, source=str(file))
    else:
        imported = import_text(text, source=str(file))
        config, notes = imported.config, imported.notes
    if as_json:
        click.echo(json.dumps({"config": config, "notes": [_plain(note) for note in notes]}, indent=2))
    else:
        _write(config, file, output)
        for note in notes:
            click.echo(f"{file}: {note}", err=True)
    if strict and any(note.kind.name == "UNMAPPED" for note in notes):
        raise click.exceptions.Exit(1)


def _write(config: dict[str, Any], source: Path, output: Path | None) -> None:
    target = output.name if output else "FILE"
    text = HEADER.format(source=source.name, target=target) + yaml.safe_dump(config, sort_keys=False)
    if output is None:
        click.echo(text, nl=False)
        return
    output.write_text(text, encoding="utf-8")
    click.echo(f"wrote {output}", err=True)


def _plain(note: Note) -> dict[str, object]:
    return {"kind": note.kind.value, "path": note.path, "line": note.line, "message": note.message}
