"""Plans of classes, their lengths, and the trace format."""

from __future__ import annotations

import itertools
from random import Random

import pytest

from extproc.errors import ConfigError
from extproc.workload.arrivals import Bursts, ClosedLoop, Poisson
from extproc.workload.lengths import ChoiceLength, Fixed, LogNormalLength, UniformLength
from extproc.workload.trace import format_trace, parse_trace
from extproc.workload.traffic import AfterEviction, TrafficClass, plan_class, plan_open

CHAT = TrafficClass(
    name="chat",
    arrivals=Poisson(rate_per_s=4.0, end_s=20.0),
    prompt=UniformLength(low=10, high=20),
    output=Fixed(tokens=5),
    priority=10,
    fairness_ids=("a", "b"),
    ttft_target_s=0.5,
)
OFFLINE = TrafficClass(
    name="offline",
    arrivals=Bursts(size=4, every_s=1.0, count=1),
    output=Fixed(tokens=100),
    priority=-1,
    deadline_s=45.0,
    after_eviction=AfterEviction.RESUME,
    shared_prefix_tokens=8,
    prefix_groups=2,
)


def test_a_plan_is_the_same_for_the_same_seed_and_merged_by_time() -> None:
    rows = list(plan_open([CHAT, OFFLINE], seed=5))
    assert rows == list(plan_open([CHAT, OFFLINE], seed=5))
    assert [row.at_s for row in rows] == sorted(row.at_s for row in rows)
    assert {row.fairness_id for row in rows if row.traffic_class == "chat"} == {"a", "b"}
    assert all(row.deadline_s == 45.0 for row in rows if row.traffic_class == "offline")
    assert all(10 <= row.prompt_tokens <= 20 for row in rows if row.traffic_class == "chat")


def test_another_class_does_not_change_the_rows_of_the_first() -> None:
    alone = list(plan_open([CHAT], seed=5))
    together = [row for row in plan_open([OFFLINE, CHAT], seed=5) if row.traffic_class == "chat"]
    assert alone == together


def test_a_closed_loop_yields_rows_without_times() -> None:
    limited = TrafficClass(name="loop", arrivals=ClosedLoop(concurrency=2, requests=3, start_s=4.0))
    assert [row.at_s for row in plan_class(limited, 0)] == [4.0, 4.0, 4.0]
    endless = TrafficClass(name="loop", arrivals=ClosedLoop(concurrency=2))
    assert len(list(itertools.islice(plan_class(endless, 0), 50))) == 50
    assert list(plan_open([endless], 0)) == []


def test_max_output_bounds_the_drawn_output() -> None:
    traffic = TrafficClass(
        name="x",
        arrivals=Bursts(size=2, every_s=1.0, count=1),
        output=Fixed(tokens=300),
        max_output_tokens=200,
    )
    assert [(row.output_tokens, row.max_output_tokens) for row in plan_class(traffic, 0)] == [(200, 200)] * 2


def test_lengths() -> None:
    rng = Random(1)
    drawn = [LogNormalLength(median=500, sigma=0.5, low=100, high=900).draw(rng) for _ in range(2000)]
    assert min(drawn) >= 100
    assert max(drawn) <= 900
    assert sorted(drawn)[1000] == pytest.approx(500, rel=0.1)
    assert {ChoiceLength(tokens=(3, 7)).draw(rng) for _ in range(50)} == {3, 7}
    assert Fixed(tokens=0).draw(rng) == 1
    with pytest.raises(ValueError, match="above"):
        UniformLength(low=3, high=2)
    with pytest.raises(ValueError, match="weights"):
        ChoiceLength(tokens=(1, 2), weights=(1.0,))


def test_a_trace_reads_back_equal() -> None:
    rows = list(plan_open([CHAT, OFFLINE], seed=5))
    assert parse_trace(format_trace(rows)) == rows


def test_a_bad_trace_names_every_line() -> None:
    lines = [
        '{"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1, "class": "x"}',
        '{"arrival_s": -1, "prompt_tokens": 1, "output_tokens": 1, "class": "x"}',
        "",
        '{"arrival_s": 0, "prompt_tokens": 1.5, "output_tokens": 1, "class": "x"}',
        '{"arrival_s": 0, "class": "x"}',
        '{"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1, "class": "x", "colour": 1}',
        "[]",
        "{",
    ]
    with pytest.raises(ConfigError) as caught:
        parse_trace(lines, source="day.jsonl")
    assert [problem.line for problem in caught.value.problems] == [2, 4, 5, 6, 7, 8]
    assert "day.jsonl" in str(caught.value)
    assert "missing prompt_tokens, output_tokens" in str(caught.value)
    assert "unknown colour" in str(caught.value)
