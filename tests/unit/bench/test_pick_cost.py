"""The cost of a pick, in heap operations timed in the same run."""

import pytest

from extproc.bench.pick_cost import PICKERS, measure_pick
from extproc.clock import SystemClock


def test_a_default_pick_among_1024_endpoints_costs_at_most_400_heap_pairs() -> None:
    assert measure_pick(SystemClock(), endpoints=1024).pairs <= 400


@pytest.mark.parametrize("picker", sorted(PICKERS))
def test_every_picker_can_be_measured(picker: str) -> None:
    row = measure_pick(SystemClock(), picker=picker, endpoints=16, picks=20, repeats=2)
    assert row.pairs > 0
