"""From a directory of runs to its files: summary.json, report.html; the bench's only writer of results."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from extproc.bench.checks import CheckRow
from extproc.bench.claims.catalogue import CLAIMS
from extproc.bench.questions import OPEN_QUESTIONS
from extproc.bench.report import render_report
from extproc.bench.reproduction import render_reproduction
from extproc.bench.results import SuiteResults
from extproc.bench.store import RunStore
from extproc.bench.suite import Suite
from extproc.bench.suites.catalogue import SUITES
from extproc.bench.summary_file import summarize_suite
from extproc.bench.targets import evaluate_targets
from extproc.errors import ConfigError, Problem


def load_results(suite: Suite, directory: Path) -> SuiteResults:
    """All whole runs in the directory."""
    return SuiteResults(suite, RunStore(directory, lambda cell: "").all())


def check_suite(results: SuiteResults) -> list[CheckRow]:
    """The seed's claims about the suite, evaluated."""
    return [check(results) for check in CLAIMS.get(results.suite.name, ())]


def publish_suite(suite: Suite, directory: Path) -> dict[str, object]:
    """Write summary.json and report.html of one suite and return the summary."""
    results = load_results(suite, directory)
    checks = check_suite(results)
    summary = summarize_suite(results, checks)
    (directory / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    page = render_report(
        [results], {suite.name: checks}, evaluate_targets(results), title=f"{suite.name}: {suite.title}"
    )
    (directory / "report.html").write_text(page, encoding="utf-8")
    return summary


def load_summary(path: Path) -> dict[str, object]:
    """summary.json of a run's directory (or the file itself). Raises ConfigError when it is not one."""
    file = path / "summary.json" if path.is_dir() else path
    try:
        summary = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError([Problem("", f"not a summary: {error}")], source=str(file)) from error
    if not isinstance(summary, dict) or "arms" not in summary:
        raise ConfigError([Problem("arms", "is missing: not a summary of a suite")], source=str(file))
    return summary


def all_results(directory: Path) -> list[SuiteResults]:
    """The results in a directory: of one suite, or of every suite in its sub-directories."""
    places = [directory, *sorted(path for path in directory.iterdir() if path.is_dir())]
    found = []
    for place in places:
        if (place / "summary.json").exists():
            name = str(load_summary(place)["suite"])
            if name in SUITES:
                found.append(load_results(SUITES[name], place))
    order = list(SUITES)
    return sorted(found, key=lambda results: order.index(results.suite.name))


def write_page(directory: Path) -> Path:
    """report.html over everything in the directory. Raises ConfigError when nothing is there."""
    found = all_results(directory)
    if not found:
        raise ConfigError(
            [Problem("", "no finished suite in it: run `extproc bench run` first")], source=str(directory)
        )
    checks = {results.suite.name: check_suite(results) for results in found}
    targets = [row for results in found for row in evaluate_targets(results)]
    page = render_report(found, checks, targets, title=_title(found))
    file = directory / "report.html"
    file.write_text(page, encoding="utf-8")
    return file


def write_reproduction(directory: Path, file: Path) -> Path:
    """The committed page of all results in the directory, and its plots in `plots/` beside it."""
    found = all_results(directory)
    checks = {results.suite.name: check_suite(results) for results in found}
    targets = [row for results in found for row in evaluate_targets(results)]
    file.write_text(render_reproduction(found, checks, targets), encoding="utf-8")
    for question in OPEN_QUESTIONS:
        plot = question.plot(found)
        if plot:
            (file.parent / "plots").mkdir(exist_ok=True)
            (file.parent / "plots" / f"question-{question.slug}.svg").write_text(plot, encoding="utf-8")
    return file


def _title(found: Sequence[SuiteResults]) -> str:
    if len(found) == 1:
        return f"{found[0].suite.name}: {found[0].suite.title}"
    return "Both seed reports, reproduced and beaten"
