"""Places, values and combinations of a sweep."""

import pytest

from extproc.errors import ConfigError
from extproc.sim.sweep import cells, parse_axis, varied


def test_values_are_a_list_or_a_range() -> None:
    assert parse_axis("slots=16,32").values == (16, 32)
    assert parse_axis("ceiling=0.6:0.8:0.1").values == (0.6, 0.7, 0.8)
    assert parse_axis("slots=8:24:8").values == (8, 16, 24)
    assert parse_axis("flow_control.mode=observe,enforce").values == ("observe", "enforce")
    assert parse_axis("flow_control.eviction.enabled=true,false").values == (True, False)


def test_short_names_and_paths_lead_into_the_file() -> None:
    data = {"pool": [{"count": 1}], "flow_control": {"eviction": {"enabled": False}}}
    axes = [parse_axis("model-replicas=2"), parse_axis("flow_control.ceilings.min_ceiling=0.7")]
    (cell,) = cells(axes)
    assert varied(data, axes, cell) == {
        "pool": [{"count": 2}],
        "flow_control": {"eviction": {"enabled": False}, "ceilings": {"min_ceiling": 0.7}},
    }
    assert data["pool"] == [{"count": 1}]


def test_two_axes_give_every_pair() -> None:
    assert cells([parse_axis("a=1,2"), parse_axis("b=x,y")]) == [(1, "x"), (1, "y"), (2, "x"), (2, "y")]


@pytest.mark.parametrize(
    "text", ["ceiling", "ceiling=", "no such=1", "slots=9:1:1", "slots=1:9:0", "slots=a:b:c"]
)
def test_what_cannot_be_meant_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_axis(text)


def test_a_place_that_is_not_there_and_too_many_combinations_are_refused() -> None:
    axes = [parse_axis("pool[3].count=1")]
    with pytest.raises(ConfigError, match="has no 3"):
        varied({"pool": [{}]}, axes, (1,))
    with pytest.raises(ConfigError, match="combinations"):
        cells([parse_axis("a=0:99:1"), parse_axis("b=0:99:1")])
