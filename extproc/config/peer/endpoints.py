"""The peer's endpoints file (address and port apart) as ours."""

from __future__ import annotations

from typing import Any

from extproc.config.peer.notes import Kind, Note, Report
from extproc.config.yaml_source import Data, Path, parse_yaml
from extproc.errors import ConfigError

_KEYS = frozenset({"name", "namespace", "address", "port", "labels"})


def import_endpoints(text: str, *, source: str = "") -> tuple[dict[str, Any], tuple[Note, ...]]:
    """`{endpoints: [...]}` in our form and the notes on it. Raises ConfigError for what cannot be read."""
    document = parse_yaml(text, source=source)
    report = Report(document)
    entries = []
    listed = report.section(document.data, ()).get("endpoints")
    for path, item in report.items(listed, ("endpoints",)):
        entries.append(_entry(report.section(item, path), path, report))
    if report.problems:
        raise ConfigError(report.problems, source=source)
    return {"endpoints": entries}, tuple(report.notes)


def _entry(data: dict[str, Data], path: Path, report: Report) -> dict[str, Any]:
    for key in ("name", "address", "port"):
        if data.get(key) is None:
            report.problem((*path, key), "is required")
    host = str(data.get("address"))
    entry: dict[str, Any] = {
        "name": str(data.get("name")),
        "address": f"[{host}]:{data.get('port')}" if ":" in host else f"{host}:{data.get('port')}",
    }
    labels = report.section(data.get("labels"), (*path, "labels"))
    if labels:
        entry["labels"] = {key: str(value) for key, value in labels.items()}
    if data.get("namespace") not in (None, "default"):
        report.note(Kind.UNMAPPED, (*path, "namespace"), "names are not divided into namespaces here")
    for key in data.keys() - _KEYS:
        report.note(Kind.UNMAPPED, (*path, key), "no such key of an endpoint is known")
    return entry
