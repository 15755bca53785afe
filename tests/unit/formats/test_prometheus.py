"""Reading a metrics page: which figures come out, and what a bad line does."""

import dataclasses

import pytest

from extproc.errors import ConfigError
from extproc.formats.engine_metrics import SGLANG_NAMES, VLLM_NAMES, EngineMerge, EngineMetrics, MetricNames
from extproc.formats.prometheus import MAX_LINE_BYTES, MetricsReader, parse_labels
from tests.support.timing import best_of_three

VLLM_PAGE = b"""\
# HELP process_start_time_seconds Start time of the process.
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.7e+09
# HELP vllm:num_requests_running Requests in model execution.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 4.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="tiny"} 5.0
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 77.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.1739
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="tiny"} 2.0
# TYPE vllm:num_preemptions_created gauge
vllm:num_preemptions_created{engine="0",model_name="tiny"} 1.7e+09
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 1.2e+06
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="128",enable_prefix_caching="True",num_gpu_blocks="24",engine="0"} 1.0
# TYPE vllm:lora_requests_info gauge
vllm:lora_requests_info{max_lora="4",running_lora_adapters="old",waiting_lora_adapters=""} 1.7e+09
vllm:lora_requests_info{max_lora="4",running_lora_adapters="sql,chat",waiting_lora_adapters="poem"} 1.8e+09
"""


def read(page: bytes, names: MetricNames = VLLM_NAMES, merge: EngineMerge | None = None) -> EngineMetrics:
    return MetricsReader(names, merge).read_page(page)


def test_the_figures_of_a_vllm_page() -> None:
    assert read(VLLM_PAGE) == EngineMetrics(
        engines=1,
        running_requests=4,
        waiting_requests=5,
        kv_usage_fraction=0.1739,
        kv_capacity_tokens=23 * 128,
        kv_block_tokens=128,
        preemptions_total=2,
        prompt_tokens_total=1_200_000,
        running_loras=frozenset({"sql", "chat"}),
        waiting_loras=frozenset({"poem"}),
        max_loras=4,
        process_started_at=1.7e9,
    )


def test_a_second_page_of_the_same_layout_is_read_alike() -> None:
    reader = MetricsReader(VLLM_NAMES)
    first = reader.read_page(VLLM_PAGE)
    later = VLLM_PAGE.replace(b'model_name="tiny"} 4.0', b'model_name="tiny"} 123.0')
    assert reader.read_page(later) == dataclasses.replace(first, running_requests=123)
    assert reader.read_page(VLLM_PAGE) == first


def test_a_moved_family_and_a_new_engine_are_found_on_the_next_page() -> None:
    reader = MetricsReader(VLLM_NAMES)
    reader.read_page(VLLM_PAGE)
    moved = b"# HELP other x\n# TYPE other gauge\n" + b'other{a="b"} 1\n' * 1000 + VLLM_PAGE
    assert reader.read_page(moved).running_requests == 4
    grown = moved.replace(
        b'running{engine="0",model_name="tiny"} 4.0\n',
        b'running{engine="0",model_name="tiny"} 4.0\nvllm:num_requests_running{engine="1"} 3.0\n',
    )
    assert reader.read_page(grown).running_requests == 7


def test_a_family_that_appears_later_is_found_within_32_pages() -> None:
    reader = MetricsReader(VLLM_NAMES)
    start = VLLM_PAGE.index(b"# TYPE vllm:lora_requests_info")
    assert reader.read_page(VLLM_PAGE[:start]).max_loras is None
    assert any(reader.read_page(VLLM_PAGE).max_loras == 4 for _ in range(32))


def test_engines_of_a_data_parallel_server_are_joined() -> None:
    page = b"".join(
        b'vllm:num_requests_running{engine="%d"} %d\nvllm:kv_cache_usage_perc{engine="%d"} %f\n'
        b'vllm:cache_config_info{block_size="16",num_gpu_blocks="101",engine="%d"} 1\n' % (e, r, e, kv, e)
        for e, r, kv in [(0, 3, 0.2), (1, 9, 0.8)]
    )
    summed = read(page)
    assert (summed.engines, summed.running_requests, summed.kv_usage_fraction) == (2, 12, 0.8)
    assert summed.kv_capacity_tokens == 2 * 100 * 16
    other = read(page, merge=EngineMerge(requests="max", kv_usage="mean"))
    assert other.running_requests == 9
    assert other.kv_usage_fraction == pytest.approx(0.5)


def test_sglang_names_by_preset() -> None:
    page = (
        b"sglang:num_running_reqs 3\nsglang:num_queue_reqs 2\nsglang:token_usage 0.25\n"
        b'sglang:cache_config_info{page_size="64",num_pages="10"} 1\n'
    )
    metrics = read(page, SGLANG_NAMES)
    assert (metrics.running_requests, metrics.waiting_requests, metrics.kv_usage_fraction) == (3, 2, 0.25)
    assert metrics.kv_capacity_tokens == 640  # no block of it is reserved


def test_renamed_series_by_configuration_and_the_first_alternative_wins() -> None:
    names = MetricNames(running_requests=("mine:running", "vllm:num_requests_running"))
    assert read(VLLM_PAGE, names).running_requests == 4
    assert read(b"mine:running 9\n" + VLLM_PAGE, names).running_requests == 9


@pytest.mark.parametrize("value", [b"NaN", b"+Inf", b"-1", b"abc", b"", b"0x10"])
def test_an_unreadable_value_is_counted_and_left_out(value: bytes) -> None:
    metrics = read(b'vllm:num_requests_running{engine="0"} ' + value + b"\nvllm:num_requests_waiting 5\n")
    assert metrics.running_requests is None
    assert metrics.waiting_requests == 5
    assert metrics.malformed_lines == 1


def test_timestamps_exemplars_and_spaces_are_understood() -> None:
    page = (
        b'vllm:num_requests_running{engine="0"} 4 1700000000000\n'
        b'vllm:prompt_tokens_total{engine="0"} 17.0 # {trace_id="a b"} 1.0 1700000000.0\n'
        b'vllm:num_requests_waiting {engine="} 9 ,{" , model_name="a\\"b"}  6\n'
        b"vllm:kv_cache_usage_perc 0.5\r\n"
        b"# EOF\n"
    )
    metrics = read(page)
    assert (metrics.running_requests, metrics.prompt_tokens_total, metrics.waiting_requests) == (4, 17, 6)
    assert metrics.kv_usage_fraction == 0.5
    assert metrics.malformed_lines == 0


def test_labels_with_escapes() -> None:
    assert parse_labels(rb'{a="x\"y",b="1,2}",c="p\\q\nr",}') == {"a": 'x"y', "b": "1,2}", "c": "p\\q\nr"}


def test_an_unsized_cache_has_no_capacity() -> None:
    assert (
        read(b'vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1\n').kv_capacity_tokens is None
    )


def test_a_page_of_another_server_is_empty_not_zero() -> None:
    metrics = read(b"<html>" * 1000)
    assert metrics.is_empty
    assert metrics.running_requests is None


def test_an_overlong_line_is_skipped_in_bounded_memory() -> None:
    feed = MetricsReader(VLLM_NAMES).start_page()
    feed.feed(b'vllm:num_requests_running{engine="')
    for _ in range(100):
        feed.feed(b"x" * 10_000)
        assert len(feed._tail) <= MAX_LINE_BYTES
    feed.feed(b'"} 4\nvllm:num_requests_waiting 2')
    metrics = feed.finish()
    assert (metrics.running_requests, metrics.waiting_requests, metrics.malformed_lines) == (None, 2, 1)


def test_metric_names_refuse_what_can_not_be_a_name() -> None:
    with pytest.raises(ConfigError, match=r"names\.running_requests.*is no metric name"):
        MetricNames(running_requests=("a b",))
    with pytest.raises(ConfigError, match="is also running_requests"):
        MetricNames(running_requests=("a",), waiting_requests=("a",))


def test_field_bug_056_a_large_page_of_others_costs_no_look_at_each_line() -> None:
    """Two million short lines of one bad endpoint used to hold up everybody's requests for 0.4 s."""
    page = b"# x\n" * 500_000

    def feed() -> None:
        reading = MetricsReader(VLLM_NAMES).start_page()
        for start in range(0, len(page), 65_536):
            reading.feed(page[start : start + 65_536])

    assert best_of_three(feed) < 3 * best_of_three(lambda: page.split(b"\n"))
