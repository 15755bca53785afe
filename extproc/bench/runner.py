"""Runs the cells of a suite under several seeds, skipping what is there already, and says how far it is.

Virtual runs are spread over processes: each is a function of (suite, cell, seed), so their order does not
matter. Real-time runs go one after the other.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from extproc.bench.outcome import RunOutcome
from extproc.bench.store import RunStore, fingerprint
from extproc.bench.suite import Cell, Suite
from extproc.bench.suites.catalogue import SUITES
from extproc.bench.virtual import build_scenario, run_virtual

Progress = Callable[[int, int, str], None]
"""Called with (done, total, what was done last)."""


@dataclass(frozen=True, slots=True)
class Job:
    """One run to be done."""

    cell: Cell
    seed: int


def plan_jobs(
    suite: Suite, *, runs: int, first_seed: int, arms: Sequence[str] = (), loads: Sequence[str] = ()
) -> list[Job]:
    """Every run of the suite, or of the named arms and loads; arms with pooled percentiles run more often."""
    return [
        Job(cell, first_seed + repeat)
        for cell in suite.cells()
        if (not arms or cell.arm in arms) and (not loads or cell.load in loads)
        for repeat in range(max(runs, suite.arm(cell.arm).least_runs))
    ]


def virtual_store(directory: Path, suite: Suite) -> RunStore:
    """The store of a suite's virtual runs: a run is known by its whole scenario."""
    known: dict[Cell, str] = {}

    def mark(cell: Cell) -> str:
        if cell not in known:
            known[cell] = fingerprint(build_scenario(suite, cell, 0))
        return known[cell]

    return RunStore(directory, mark)


def run_in_processes(
    jobs: Iterable[Job], directories: Callable[[str], Path], *, workers: int, on_progress: Progress
) -> None:
    """Do the jobs that are not in their suite's store yet, in virtual time, `workers` at a time."""
    stores: dict[str, RunStore] = {}
    waiting: list[Job] = []
    for job in jobs:
        name = job.cell.suite
        if name not in stores:
            stores[name] = virtual_store(directories(name), SUITES[name])
        if not stores[name].has(job.cell, job.seed):
            waiting.append(job)
    total = len(waiting)
    on_progress(0, total, "")
    if total == 0:
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        futures = {pool.submit(_run_job, job, directories(job.cell.suite)): job for job in waiting}
        try:
            for done, future in enumerate(as_completed(futures), start=1):
                future.result()
                job = futures[future]
                on_progress(done, total, f"{job.cell.suite}: {job.cell.label}")
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def run_in_turn(
    jobs: Iterable[Job],
    store: RunStore,
    execute: Callable[[Job], RunOutcome],
    *,
    on_progress: Progress,
) -> None:
    """Do the jobs one after the other with `execute` (real sockets), saving each as it ends."""
    waiting = [job for job in jobs if not store.has(job.cell, job.seed)]
    on_progress(0, len(waiting), "")
    for done, job in enumerate(waiting, start=1):
        store.save(execute(job))
        on_progress(done, len(waiting), job.cell.label)


def _run_job(job: Job, directory: Path) -> None:
    suite = SUITES[job.cell.suite]
    virtual_store(directory, suite).save(run_virtual(suite, job.cell, job.seed))
