"""What headers and bodies say of priority, time and tenant; nonsense is ignored and named."""

from __future__ import annotations

import pytest

from extproc.exchange.attributes import NO_HINTS, HeaderHints, read_hints, resolve_priority
from extproc.exchange.settings import ExchangeConfig, LimitConfig, PriorityConfig, PrioritySource

NOW, WALL = 500.0, 1_700_000_000.0
TRUSTING = ExchangeConfig(
    priority=PriorityConfig(sources=(PrioritySource.HEADER, PrioritySource.OBJECTIVE, PrioritySource.BODY)),
    limits=LimitConfig(max_ttl_s=60.0),
)


def _read(config: ExchangeConfig = TRUSTING, **headers: str) -> HeaderHints:
    return read_hints({name.replace("_", "-"): value for name, value in headers.items()}, config, NOW, WALL)


def test_new_names_beat_old_ones_even_when_empty() -> None:
    assert _read(x_gateway_inference_objective="old").objective == "old"
    assert _read(x_gateway_inference_objective="old", x_llm_d_inference_objective="new").objective == "new"
    assert _read(x_gateway_inference_objective="old", x_llm_d_inference_objective="").objective is None


def test_times() -> None:
    hints = _read(x_request_ttl_ms="1500", x_llm_d_slo_ttft_ms="250", x_request_deadline_ms="1700000010000")
    assert (hints.ttl_s, hints.ttft_target_s, hints.deadline_s) == (1.5, 0.25, NOW + 10)
    past = _read(x_request_deadline_ms="1600000000000")
    assert past.deadline_s is not None
    assert past.deadline_s < NOW, "a passed deadline expires, it isn't forgotten"


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("x_request_ttl_ms", "0"),
        ("x_request_ttl_ms", "-1"),
        ("x_request_ttl_ms", "60001"),
        ("x_request_ttl_ms", "1e3"),
        ("x_request_ttl_ms", "9" * 5000),
        ("x_request_ttl_ms", "٣"),
        ("x_request_deadline_ms", "99999999999999"),
        ("x_llm_d_slo_ttft_ms", "soon"),
        ("x_priority", "1.5"),
        ("x_priority", "1001"),
        ("x_expected_output_tokens", "-3"),
        ("x_llm_d_inference_fairness_id", "a" * 129),
        ("x_llm_d_inference_fairness_id", "é" * 65),
    ],
)
def test_nonsense_is_ignored_and_named(header: str, value: str) -> None:
    hints = _read(**{header: value})
    assert hints.ignored == (header.replace("_", "-"),)
    assert HeaderHints(ignored=hints.ignored) == hints


def test_a_request_without_hints_costs_nothing() -> None:
    assert _read(user_agent="curl") is NO_HINTS


def test_the_numeric_header_counts_only_where_it_is_trusted() -> None:
    assert _read(x_priority="7").priority == 7
    assert _read(ExchangeConfig(), x_priority="7").priority is None


def test_the_first_source_that_says_something_wins() -> None:
    config = PriorityConfig(
        sources=(
            PrioritySource.OBJECTIVE,
            PrioritySource.HEADER,
            PrioritySource.BODY,
            PrioritySource.FAIRNESS_ID,
            PrioritySource.MODEL,
        ),
        objectives={"batch": -1},
        fairness_ids={"vip": 20},
        models={"big": -3},
        default=2,
    )
    hints = _read(x_llm_d_inference_objective="batch", x_priority="5", x_llm_d_inference_fairness_id="vip")
    assert resolve_priority(config, hints, 9, "big") == -1
    unknown = _read(x_llm_d_inference_objective="nobody-knows", x_priority="5")
    assert resolve_priority(config, unknown, 9, "big") == 5
    assert resolve_priority(config, NO_HINTS, 9, "big") == 9
    assert resolve_priority(config, _read(x_llm_d_inference_fairness_id="vip"), None, "big") == 20
    assert resolve_priority(config, NO_HINTS, None, "big") == -3
    assert resolve_priority(config, NO_HINTS, None, "other") == 2
    assert resolve_priority(config, NO_HINTS, 5000, "other") is None
