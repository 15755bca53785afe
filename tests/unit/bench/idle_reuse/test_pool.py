"""The model of Envoy's connection pool, on hand-made exchanges."""

from __future__ import annotations

import pytest

from extproc.bench.idle_reuse.pool import Exchange, Reuse, density_at, reuses


def exchange(sent_s: float, ended_s: float, *, name: str = "a", is_cut: bool = False) -> Exchange:
    return Exchange(name, sent_s, ended_s, is_cut)


def test_the_connection_used_last_is_taken_first() -> None:
    found = reuses([exchange(0, 1), exchange(0, 2), exchange(3, 4), exchange(3.5, 5)], keep_alive_s=5)
    assert [each.idle_s for each in found] == [1.0, 2.5]


def test_the_server_closes_what_was_unused_too_long() -> None:
    assert reuses([exchange(0, 1), exchange(6.5, 7)], keep_alive_s=5) == []
    assert reuses([exchange(0, 1), exchange(5.5, 7, name="b")], keep_alive_s=5) == [Reuse("b", 4.5)]


def test_a_cut_connection_is_gone() -> None:
    assert reuses([exchange(0, 1, is_cut=True), exchange(2, 3)], keep_alive_s=5) == []


def test_order_of_the_input_does_not_matter() -> None:
    rows = [exchange(3, 4), exchange(0, 1)]
    assert reuses(rows, keep_alive_s=5) == reuses(rows[::-1], keep_alive_s=5) == [Reuse("a", 2.0)]


def test_density_counts_the_class_near_the_closing() -> None:
    found = [Reuse("a", 4.9), Reuse("a", 3.9), Reuse("b", 4.9), Reuse("a", 4.2)]
    assert density_at(found, "a", idle_s=5.0) == pytest.approx(2.0)
    assert density_at(found, "a", idle_s=5.0, span_s=0.5) == pytest.approx(2.0)
