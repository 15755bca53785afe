"""`extproc check`: is this configuration right, what is in force, and does Envoy's fit it."""

from __future__ import annotations

import json
from pathlib import Path

import click
import yaml

from extproc.config.checks import envoy_needs, risks
from extproc.config.envoy_limits import check_envoy
from extproc.config.loader import dump, json_schema
from extproc.config.schema import Config, load_config
from extproc.config.yaml_source import parse_yaml
from extproc.errors import ConfigError, Problem


@click.command("check")
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option(
    "--envoy",
    "envoy_file",
    type=click.Path(path_type=Path),
    help="An Envoy bootstrap whose limits are compared with FILE.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object: ok, problems, warnings, config.")
@click.option("--schema", is_flag=True, help="Print the JSON Schema of the configuration and stop.")
@click.option("--quiet", is_flag=True, help="Do not print the configuration in force.")
def command(file: Path | None, envoy_file: Path | None, as_json: bool, schema: bool, quiet: bool) -> None:
    """Check FILE and print the configuration in force, defaults filled in.

    Exit code 0: right (there may be warnings); 2: refused, with every problem and its line.

    Example: extproc check config/extproc.yaml --envoy envoy/envoy.yaml
    """
    if schema:
        click.echo(json.dumps(json_schema(Config), indent=2))
        return
    if file is None:
        raise click.UsageError("name the FILE to check, or give --schema")
    config: Config | None = None
    problems: list[tuple[str, Problem]] = []
    warnings: list[Problem] = []
    try:
        config = load_config(file)
    except ConfigError as error:
        problems += [(str(file), problem) for problem in error.problems]
    if config is not None:
        warnings += risks(config)
    if envoy_file is not None:
        problems += [
            (str(envoy_file), problem) for problem in _envoy_problems(envoy_file, config or Config())
        ]
    if as_json:
        click.echo(_as_json(config, problems, warnings))
    else:
        _print(file, config, problems, warnings, quiet=quiet)
    if problems:
        raise click.exceptions.Exit(2)


def _envoy_problems(file: Path, config: Config) -> list[Problem]:
    try:
        document = parse_yaml(file.read_text(), source=str(file))
    except OSError as error:
        return [Problem("", f"cannot be read: {error.strerror}")]
    except (ConfigError, UnicodeDecodeError) as error:
        return list(error.problems) if isinstance(error, ConfigError) else [Problem("", "not UTF-8 text")]
    return [*document.problems, *check_envoy(document, envoy_needs(config))]


def _as_json(config: Config | None, problems: list[tuple[str, Problem]], warnings: list[Problem]) -> str:
    def row(problem: Problem, **more: str) -> dict[str, object]:
        return {**more, "path": problem.path, "line": problem.line, "message": problem.message}

    return json.dumps(
        {
            "ok": not problems,
            "problems": [row(problem, file=file) for file, problem in problems],
            "warnings": [row(problem) for problem in warnings],
            "config": None if config is None else dump(config),
        },
        indent=2,
    )


def _print(
    file: Path,
    config: Config | None,
    problems: list[tuple[str, Problem]],
    warnings: list[Problem],
    *,
    quiet: bool,
) -> None:
    for source, problem in problems:
        click.echo(f"{source}: {problem}", err=True)
    for problem in warnings:
        click.echo(f"{file}: warning: {problem}", err=True)
    if problems:
        click.echo(f"refused: {len(problems)} problem{'' if len(problems) == 1 else 's'}", err=True)
        return
    if config is not None and not quiet:
        click.echo(yaml.safe_dump(dump(config), sort_keys=False), nl=False)
    click.echo(f"{file}: OK", err=True)
