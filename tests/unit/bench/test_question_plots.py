"""Each open question has a plot of cells that its suite really has, and the page names the file."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import yaml

from extproc.bench.outcome import RunOutcome
from extproc.bench.questions import OPEN_QUESTIONS, Question
from extproc.bench.results import SuiteResults
from extproc.bench.suite import Cell, Setting
from extproc.bench.suites.catalogue import SUITES
from tests.unit.bench.runs import batch, interactive

DOCS = Path("docs")
SCENARIOS = Path("config") / "scenarios"


def _results(name: str) -> SuiteResults:
    """One short run of every cell of a real suite in the wave setting."""
    suite = SUITES[name]
    records = [
        interactive(0, 1.0, 0.3),
        interactive(1, 2.0, 0.5),
        batch(0, 9.0, redone_tokens=40, deadline_s=10.0),
    ]
    runs = [
        RunOutcome(
            cell=Cell(suite=name, load=load.name, arm=arm.name, setting=Setting.WAVE),
            seed=seed,
            records=records,
            duration_s=20.0,
        )
        for load in suite.loads
        for arm in suite.arms
        for seed in (0, 1)
    ]
    return SuiteResults(suite, runs)


@pytest.mark.parametrize("question", OPEN_QUESTIONS, ids=lambda question: question.slug)
def test_every_question_has_a_plot_that_the_page_shows(question: Question) -> None:
    assert (DOCS / "plots" / f"question-{question.slug}.svg").exists()
    assert f"plots/question-{question.slug}.svg" in (DOCS / "reproduction.md").read_text()


@pytest.mark.parametrize("question", OPEN_QUESTIONS, ids=lambda question: question.slug)
def test_every_question_names_scenario_files_of_its_suite(question: Question) -> None:
    assert question.scenarios
    for name in question.scenarios:
        scenario = yaml.safe_load((SCENARIOS / f"{name}.yaml").read_text())
        assert scenario["name"].startswith(f"{question.suite}: ")


@pytest.mark.parametrize("question", [q for q in OPEN_QUESTIONS if q.draw], ids=lambda q: q.slug)
def test_a_plot_shows_cells_of_its_suite_and_is_well_formed(question: Question) -> None:
    results = _results(question.suite)
    plot = question.plot([results])
    dots = [node for node in ElementTree.fromstring(plot).iter() if node.tag.endswith("circle")]
    assert len(dots) >= 4
    assert f"(plots/question-{question.slug}.svg)" in question.render([results])
    assert not question.plot([])
