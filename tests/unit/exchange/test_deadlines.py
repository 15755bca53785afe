"""Deadlines of batch work lie far ahead, much further than a request may wait."""

import pytest

from extproc.exchange.attributes import read_hints
from extproc.exchange.settings import ExchangeConfig

NOW, WALL = 1000.0, 1_800_000_000.0


@pytest.mark.parametrize("ahead_s", [45.0, 86_400.0, 30 * 86_400.0])
def test_a_deadline_beyond_the_longest_wait_is_kept(ahead_s: float) -> None:
    headers = {"x-request-deadline-ms": str(int((WALL + ahead_s) * 1000))}
    hints = read_hints(headers, ExchangeConfig(), NOW, WALL)
    assert hints.deadline_s == NOW + ahead_s
    assert hints.ignored == ()


def test_an_absurd_deadline_is_ignored_and_named() -> None:
    headers = {"x-request-deadline-ms": str(int((WALL + 1e9) * 1000))}
    hints = read_hints(headers, ExchangeConfig(), NOW, WALL)
    assert hints.deadline_s is None
    assert hints.ignored == ("x-request-deadline-ms",)
