"""Figures of a hand-made run, each computed on paper."""

from __future__ import annotations

import math

import pytest

from extproc.bench.records import format_records, parse_records
from extproc.bench.summary import Distribution, summarize, summarize_by
from extproc.errors import ConfigError
from extproc.workload.record import RequestOutcome, RequestRecord


def _record(index: int, **fields: object) -> RequestRecord:
    base: dict[str, object] = {
        "traffic_class": "chat",
        "index": index,
        "priority": 10,
        "fairness_id": "a",
        "intended_s": 10.0 + index,
        "prompt_tokens": 100,
    }
    return RequestRecord(**(base | fields))  # type: ignore[arg-type]


FIRST = _record(
    0,
    sent_s=10.002,
    dispatched_s=10.102,
    first_token_s=10.5,
    end_s=11.5,
    output_tokens=5,
    chunk_gaps_s=(0.2, 0.3, 0.5),
    outcome=RequestOutcome.COMPLETED,
    ttft_target_s=0.4,
    deadline_s=11.5,
)
SECOND = _record(
    1,
    sent_s=11.0,
    first_token_s=11.1,
    end_s=11.3,
    output_tokens=3,
    outcome=RequestOutcome.COMPLETED,
    evictions=2,
    redone_tokens=7,
    ttft_target_s=0.4,
    deadline_s=11.2,
)
REFUSED = _record(2, sent_s=12.0, outcome=RequestOutcome.REJECTED, status=429, end_s=12.1)
GOOD = _record(
    3, sent_s=13.0, first_token_s=13.3, end_s=13.3, output_tokens=1, outcome=RequestOutcome.COMPLETED
)


def test_ttft_counts_from_the_intended_send_time() -> None:
    assert FIRST.ttft_s == pytest.approx(0.5)
    assert FIRST.lag_s == pytest.approx(0.002)


def test_tpot_and_itl_by_hand() -> None:
    assert FIRST.tpot_s == pytest.approx(1.0 / 4)
    assert SECOND.tpot_s == pytest.approx(0.2 / 2)
    assert GOOD.tpot_s is None  # one token has no time per further token
    summary = summarize([FIRST, SECOND], name="chat")
    assert summary.tpot.mean_s == pytest.approx(0.175)
    assert summary.itl.count == 3  # three gaps, although five tokens: chunks are not tokens
    assert summary.itl.p50_s == pytest.approx(0.3)


def test_summary_by_hand() -> None:
    summary = summarize([FIRST, SECOND, REFUSED, GOOD], name="chat")
    assert (summary.requests, summary.completed, summary.rejected) == (4, 3, 1)
    assert (summary.evictions, summary.redone_tokens) == (2, 7)
    assert summary.duration_s == pytest.approx(3.3)
    assert summary.output_tokens_per_s == pytest.approx(9 / 3.3)
    assert summary.ttft.count == 3
    assert summary.ttft.p50_s == pytest.approx(0.3)
    assert summary.ttft.p95_s == pytest.approx(0.48)
    assert summary.queued.p50_s == pytest.approx(0.1)
    # FIRST missed its TTFT target, SECOND its deadline, REFUSED was never served.
    assert summary.good_requests == 1
    assert summary.goodput_per_s == pytest.approx(1 / 3.3)
    assert (summary.deadlines, summary.deadlines_met) == (2, 1)


def test_nothing_gives_nan_not_zero() -> None:
    summary = summarize([], name="none")
    assert math.isnan(summary.ttft.p50_s)
    assert summary.requests_per_s == 0.0
    assert Distribution.of([]).count == 0


def test_groups_keep_the_order_of_appearance() -> None:
    other = _record(0, traffic_class="batch", fairness_id="b")
    by_class = summarize_by([FIRST, other, SECOND], lambda record: record.traffic_class)
    assert list(by_class) == ["chat", "batch"]
    assert by_class["chat"].requests == 2


def test_records_read_back_equal_and_a_bad_line_is_named() -> None:
    records = [FIRST, SECOND, REFUSED]
    lines = list(format_records(records))
    assert parse_records(lines) == records
    with pytest.raises(ConfigError, match="line 2"):
        parse_records([lines[0], lines[1][:20]])
