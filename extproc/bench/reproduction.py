"""docs/reproduction.md from finished runs: every seed figure beside ours, the targets, the ablations; pure.

The prose of the open questions lives in `questions`; this module writes tables only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from extproc.bench.checks import CheckRow
from extproc.bench.questions import OPEN_QUESTIONS
from extproc.bench.report import figure
from extproc.bench.results import BEST, FLOOR_SHARED, SuiteResults
from extproc.bench.suite import Setting
from extproc.bench.targets import TargetRow

_HEAD = """# Both seed reports, reproduced in virtual time and then beaten

Written by `make reproduce`; do not edit the tables by hand. Every run drives the `FlowController` that serves
production over a modelled engine; `extproc bench report reports` shows the same results with plots.

How to read it:

| word | meaning |
|---|---|
| *(calibration)* | the hardware file was fitted on it, or an unstated load chosen by it: agreement is a fit |
| holds, ordering | in every repeat |
| holds, figure | within 25% where the seed fixes the workload, else within the band given |
| wave | equal output lengths, all batch work submitted at once, interactive traffic from the start |
| steady | lengths vary by 0.5 to 1.5, interactive traffic starts after a warm-up |

One coefficient file per hardware (`config/hardware/`, with its fit and residuals), nothing tuned per suite.
Seed 002 names neither its model nor its request sizes nor its rates: most of its figures have a band of a
factor of three, and the loads that its orderings need were looked for: they show that the seed's statement
can come about, not that it must. In ten fresh random seeds the orderings of both reports held ten times,
three of seed 002 nine times (prefix-aware routing slows standard traffic; the two of mixed-production).
"""


def render_reproduction(
    suites: Sequence[SuiteResults],
    checks: Mapping[str, Sequence[CheckRow]],
    targets: Sequence[TargetRow],
) -> str:
    """The whole page as Markdown."""
    parts = [_HEAD, _overview(suites, checks, targets), "## Seed figures\n"]
    for results in suites:
        parts.append(_suite(results, checks.get(results.suite.name, ())))
    parts.append(_targets(targets))
    parts.append(_ablations(suites))
    parts.append("## The open questions of seed 000, answered by experiment\n")
    parts += [question.render(suites) for question in OPEN_QUESTIONS]
    return "\n".join(parts).rstrip() + "\n"


def _overview(
    suites: Sequence[SuiteResults],
    checks: Mapping[str, Sequence[CheckRow]],
    targets: Sequence[TargetRow],
) -> str:
    rows = [row for results in suites for row in checks.get(results.suite.name, ())]
    orderings = [row for row in rows if row.kind == "ordering"]
    absolutes = [row for row in rows if row.kind == "absolute"]
    return (
        f"Result: {sum(row.holds for row in orderings)} of {len(orderings)} orderings hold in every repeat, "
        f"{sum(row.holds for row in absolutes)} of {len(absolutes)} absolute figures are within their "
        f"bounds, "
        f"{sum(row.holds for row in targets)} of {len(targets)} targets of the arm `best` are met.\n"
    )


def _suite(results: SuiteResults, checks: Sequence[CheckRow]) -> str:
    suite = results.suite
    rows = [
        (
            f"{row.figure}{' *(calibration)*' if row.is_calibration else ''}",
            figure(row.seed),
            figure(row.ours),
            figure(row.ratio) if row.ratio is not None else "",
            row.allowed,
            "holds" if row.holds else "**misses**",
            row.reason,
        )
        for row in checks
    ]
    header = ("figure", "seed", "ours", "ratio", "allowed", "", "reason of a miss")
    notes = f"\n{suite.notes}\n" if suite.notes else ""
    title = f"### {suite.name}: {suite.title} (seed {suite.seed}, {suite.section})"
    return f"{title}\n\n{_table(header, rows)}{notes}"


def _targets(targets: Sequence[TargetRow]) -> str:
    rows = [
        (
            row.suite,
            row.cell,
            row.what,
            row.target,
            figure(row.value),
            f"{figure(row.low)} to {figure(row.high)}" if row.low == row.low else "",
            "met" if row.holds else "**missed**",
            row.reason,
        )
        for row in targets
    ]
    header = ("suite", "load, setting", "what", "target", "ours", "95% interval", "", "why not")
    return f"## Beyond the seeds: the arm `best`\n\n{_table(header, rows)}"


def _ablations(suites: Sequence[SuiteResults]) -> str:
    rows = []
    for results in suites:
        suite = results.suite
        for load in suite.loads:
            for setting in suite.settings:
                names = [
                    arm.name
                    for arm in suite.arms
                    if arm.name.startswith(BEST) and results.runs(load.name, arm.name, setting)
                ]
                if len(names) < 3:
                    continue
                rows += [_ablation(results, load.name, name, setting) for name in names]
    header = (
        "suite",
        "load, setting",
        "arm",
        "p50 over floor",
        "p95 over floor",
        "batch time",
        "evictions",
        "refilled",
    )
    text = (
        "## Ablations: one lever off at a time\n\nTTFT over floor-shared, batch time over the eviction-only "
        "arm, evictions and recomputed prompt tokens per run.\n\n"
    )
    return text + _table(header, [row for row in rows if row])


def _ablation(results: SuiteResults, load: str, arm: str, setting: Setting) -> tuple[str, ...]:
    if not results.runs(load, arm, setting):
        return ()
    ratios = [
        results.ttft_ratio(load, arm, FLOOR_SHARED, setting, fraction).value for fraction in (0.5, 0.95)
    ]
    batch = results.ratio(load, arm, results.suite.reference, setting, lambda run: run.batch_time_s)
    return (
        results.suite.name,
        f"{load}, {setting.value}",
        arm,
        figure(ratios[0]),
        figure(ratios[1]),
        figure(batch),
        figure(results.mean(load, arm, setting, lambda run: float(run.evictions))),
        figure(results.mean(load, arm, setting, lambda run: float(run.tokens_refilled))),
    )


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"

    return "\n".join([line(header), line(["---"] * len(header)), *(line(row) for row in rows)]) + "\n"
