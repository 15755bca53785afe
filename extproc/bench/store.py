"""Where runs lie on disk: one JSON-lines file of records and one small JSON file per run, so that a run that
was interrupted goes on where it stopped.

A run's file is written under another name and renamed when it is whole; a file whose fingerprint differs from
the suite's present definition is run again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields
from pathlib import Path

from extproc.bench.outcome import RunOutcome, TimelinePoint
from extproc.bench.records import format_records, parse_records
from extproc.bench.suite import Cell, Setting

_META = ("duration_s", "preemptions", "prompt_tokens_computed", "invalid", "unconfirmed")


class RunStore:
    """The runs of one suite under `directory`; `fingerprint` tells the present definition of a cell."""

    def __init__(self, directory: Path, fingerprint: Callable[[Cell], str]) -> None:
        self._directory = directory / "runs"
        self._fingerprint = fingerprint

    def has(self, cell: Cell, seed: int) -> bool:
        """Whether a whole run of the present definition is there."""
        meta = self._read_meta(self._path(cell, seed, ".json"))
        return meta is not None and meta["fingerprint"] == self._fingerprint(cell)

    def save(self, run: RunOutcome) -> None:
        """Write the run; the small file last, since it marks the run as whole."""
        records = self._path(run.cell, run.seed, ".jsonl")
        records.parent.mkdir(parents=True, exist_ok=True)
        _write(records, "".join(format_records(run.records)))
        meta = {name: getattr(run, name) for name in _META} | {
            "fingerprint": self._fingerprint(run.cell),
            "suite": run.cell.suite,
            "load": run.cell.load,
            "arm": run.cell.arm,
            "setting": run.cell.setting.value,
            "seed": run.seed,
            "timeline": [asdict(point) for point in run.timeline],
        }
        _write(self._path(run.cell, run.seed, ".json"), json.dumps(meta))

    def load(self, cell: Cell, seed: int) -> RunOutcome:
        """Read one run back."""
        meta = self._read_meta(self._path(cell, seed, ".json"))
        if meta is None:
            raise FileNotFoundError(self._path(cell, seed, ".json"))
        return self._outcome(meta, self._path(cell, seed, ".jsonl"))

    def all(self) -> Iterator[RunOutcome]:
        """Every whole run under the directory, whatever its fingerprint."""
        for path in sorted(self._directory.rglob("*.json")):
            meta = self._read_meta(path)
            if meta is not None:
                yield self._outcome(meta, path.with_suffix(".jsonl"))

    def _outcome(self, meta: dict[str, object], records: Path) -> RunOutcome:
        cell = Cell(
            suite=str(meta["suite"]),
            load=str(meta["load"]),
            arm=str(meta["arm"]),
            setting=Setting(meta["setting"]),
        )
        timeline = meta["timeline"]
        assert isinstance(timeline, list)
        with records.open(encoding="utf-8") as lines:
            parsed = parse_records(lines, source=str(records))
        return RunOutcome(
            cell=cell,
            seed=int(str(meta["seed"])),
            records=parsed,
            timeline=[_point(entry) for entry in timeline],
            **{name: meta[name] for name in _META if name in meta},  # type: ignore[arg-type]
        )

    def _path(self, cell: Cell, seed: int, suffix: str) -> Path:
        name = f"{cell.setting.value}-{seed:04d}{suffix}"
        return self._directory / _slug(cell.load) / _slug(cell.arm) / name

    def _read_meta(self, path: Path) -> dict[str, object] | None:
        try:
            meta = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return meta if isinstance(meta, dict) and "fingerprint" in meta else None


def fingerprint(*parts: object) -> str:
    """A short digest of values whose `repr` tells all that matters about them."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=8).hexdigest()


def _point(entry: dict[str, object]) -> TimelinePoint:
    values = {each.name: entry[each.name] for each in fields(TimelinePoint)}
    for name in ("ceilings", "queued", "inflight"):
        by_priority = values[name]
        assert isinstance(by_priority, dict)
        values[name] = {int(priority): value for priority, value in by_priority.items()}
    return TimelinePoint(**values)  # type: ignore[arg-type]


def _slug(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-")


def _write(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)
