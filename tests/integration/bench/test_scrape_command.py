"""`extproc bench scrape` measures real sockets of another process."""

import json

from click.testing import CliRunner

from extproc.bench.metrics_pages import metrics_page
from extproc.cli import cli
from extproc.formats.engine_metrics import VLLM_NAMES
from extproc.formats.prometheus import MetricsReader


def test_it_scrapes_every_endpoint_at_the_asked_pace() -> None:
    arguments = ["bench", "scrape", "--endpoints", "20", "--interval-ms", "50", "--seconds", "1", "--json"]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert found["failures"] == 0
    assert found["scrapes"] > 0.5 * found["expected_scrapes"]
    assert 0 < found["core_fraction"] <= 1.1
    assert 46_000 <= found["page_bytes"] <= 60_000


def test_the_pages_are_of_a_real_ones_shape() -> None:
    reader = MetricsReader(VLLM_NAMES)
    read = [reader.read_page(metrics_page(turn)) for turn in (5, 6)]
    assert [metrics.running_requests for metrics in read] == [5, 6]
    assert read[1].kv_capacity_tokens == 27452 * 16
    assert read[1].malformed_lines == 0
