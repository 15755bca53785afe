"""Runs on disk: whole or not there, and known by what they were run with."""

from __future__ import annotations

from pathlib import Path

from extproc.bench.outcome import TimelinePoint
from extproc.bench.store import RunStore, fingerprint
from tests.unit.bench.runs import batch, interactive, outcome


def test_a_run_reads_back_equal(tmp_path: Path) -> None:
    point = TimelinePoint(1.0, 0.5, {10: 1.0, -1: 0.8}, {10: 0}, {-1: 3}, 2)
    run = outcome(
        "holdback 0.8, no eviction",
        7,
        [batch(0, 9.0), interactive(0, 2.0, 0.5)],
        timeline=[point],
        preemptions=4,
    )
    store = RunStore(tmp_path, lambda cell: "now")
    assert not store.has(run.cell, 7)
    store.save(run)
    assert store.has(run.cell, 7)
    assert store.load(run.cell, 7) == run
    assert list(store.all()) == [run]


def test_a_run_of_another_definition_is_run_again(tmp_path: Path) -> None:
    run = outcome("eviction", 0, [batch(0, 9.0)])
    RunStore(tmp_path, lambda cell: "before").save(run)
    assert not RunStore(tmp_path, lambda cell: "after").has(run.cell, 0)


def test_an_interrupted_run_is_not_there(tmp_path: Path) -> None:
    run = outcome("eviction", 0, [batch(0, 9.0)])
    store = RunStore(tmp_path, lambda cell: "now")
    store.save(run)
    next(tmp_path.rglob("*.json")).unlink()
    assert not store.has(run.cell, 0)
    assert list(store.all()) == []


def test_fingerprints_tell_values_apart() -> None:
    assert fingerprint(1, "a") == fingerprint(1, "a")
    assert fingerprint(1, "a") != fingerprint(2, "a")
