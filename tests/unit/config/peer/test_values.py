"""The peer's notations of durations, quantities and gates."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.config.peer.values import duration_s, gates, quantity


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("60s", 60), ("250ms", 0.25), ("1m30s", 90), ("1.5h", 5400), ("0s", 0), ("0", 0), (0, 0), (".5s", 0.5)],
)
def test_durations(text: str | int, seconds: float) -> None:
    assert duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "60", 60, "1d", "-1s", "1s ", "1s2", True, None, "1e3s", "nan"])
def test_what_is_no_duration(text: object) -> None:
    with pytest.raises(ValueError, match="duration"):
        duration_s(text)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "number"),
    [("3000", 3000), (3000, 3000), ("2Gi", 2 << 30), ("1500M", 1_500_000_000), ("1k", 1000), ("0.5Ki", 512)],
)
def test_quantities(text: str | int, number: int) -> None:
    assert quantity(text) == number


@pytest.mark.parametrize("text", ["", "x", "-1", "1GB", "1 G", "1e3", True, None, "Gi"])
def test_what_is_no_quantity(text: object) -> None:
    with pytest.raises(ValueError, match="quantity"):
        quantity(text)  # type: ignore[arg-type]


@given(st.text(max_size=12))
def test_any_text_is_read_or_refused(text: str) -> None:
    for read in (duration_s, quantity):
        try:
            assert read(text) >= 0
        except ValueError:
            continue


def test_gates_are_names_with_an_optional_state() -> None:
    assert gates(["flowControl", "a=false", "b=T"]) == {"flowControl": True, "a": False, "b": True}
