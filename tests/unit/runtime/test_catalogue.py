"""The metric catalogue is well-formed, and docs/metrics.md says what it says."""

import re
from pathlib import Path

from extproc.runtime.catalogue import Kind, all_metrics, render_markdown

DOCS = Path(__file__).parents[3] / "docs" / "metrics.md"
OWN_SETS = {
    "source",
    "outcome",
    "reason",
    "resource",
    "kind",
    "state",
    "end",
    "event",
    "result",
    "action",
    "header",
    "task",
}
BOUNDED = {"source", "priority", "endpoint", "model", "fairness_id", "status_class", "version"}


def test_names_are_unique_prefixed_and_in_base_units() -> None:
    names = [metric.name for metric in all_metrics()]
    assert len(names) == len(set(names))
    for name in names:
        assert re.fullmatch(r"extproc_[a-z][a-z_]*[a-z]", name)
        assert not name.endswith(("_ms", "_percent", "_milliseconds"))


def test_counters_end_in_total_and_only_histograms_have_buckets() -> None:
    for metric in all_metrics():
        assert (metric.kind is Kind.COUNTER) == metric.name.endswith("_total")
        assert (metric.kind is Kind.HISTOGRAM) == bool(metric.buckets)
        assert list(metric.buckets) == sorted(set(metric.buckets))


def test_every_label_is_a_closed_set_or_bounded() -> None:
    for metric in all_metrics():
        assert set(metric.labels) <= OWN_SETS | BOUNDED, metric.name


def test_the_docs_page_holds_the_catalogue() -> None:
    assert render_markdown() in DOCS.read_text(encoding="utf-8")
