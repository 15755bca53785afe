"""Records as JSON lines and back; the file format of every run (one object per request, keys = field
names).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import fields

from extproc.errors import ConfigError, Problem
from extproc.workload.record import RequestOutcome, RequestRecord

_NAMES = tuple(each.name for each in fields(RequestRecord))


def format_records(records: Iterable[RequestRecord]) -> Iterator[str]:
    """One JSON line (with its newline) per record; fields that are None are left out."""
    for record in records:
        row: dict[str, object] = {}
        for name in _NAMES:
            value = getattr(record, name)
            if value is None:
                continue
            row[name] = value.value if isinstance(value, RequestOutcome) else value
        yield json.dumps(row, separators=(",", ":")) + "\n"


def parse_records(lines: Iterable[str], *, source: str = "records") -> list[RequestRecord]:
    """Raises ConfigError naming every line that is not a record; a cut last line is one of them."""
    records: list[RequestRecord] = []
    problems: list[Problem] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            row["outcome"] = RequestOutcome(row.get("outcome", RequestOutcome.UNFINISHED.value))
            row["chunk_gaps_s"] = tuple(row.get("chunk_gaps_s", ()))
            records.append(RequestRecord(**row))
        except (ValueError, TypeError, KeyError) as error:
            problems.append(Problem(path="", message=str(error), line=number))
    if problems:
        raise ConfigError(problems, source=source)
    return records
