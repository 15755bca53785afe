"""Files to dataclasses: everything wrong is told at once, with path and line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Literal

import pytest

from extproc.config.loader import dump, json_schema, load_file, load_text
from extproc.errors import ConfigError, Problem


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True, slots=True, kw_only=True)
class Square:
    type: Literal["square"] = "square"
    side_cm: float = 1.0

    def __post_init__(self) -> None:
        if self.side_cm <= 0:
            raise ValueError("side_cm: must be above 0; type: has no such square")


@dataclass(frozen=True, slots=True, kw_only=True)
class Circle:
    type: Literal["circle"] = "circle"
    radius_cm: int = 1

    def __post_init__(self) -> None:
        if self.radius_cm > 9:
            raise ConfigError([Problem("radius_cm", "must be at most 9")])


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    name: str
    is_open: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    shape: Square | Circle = field(default_factory=Square)
    inner: Inner | None = None
    weights: Mapping[int, float] = field(default_factory=dict)
    many: tuple[Square, ...] = ()
    colour: Colour = Colour.RED
    limit: int | None = None


def problems_of(text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_text(text, Root)
    return [str(problem) for problem in caught.value.problems]


def test_values_defaults_and_kinds() -> None:
    text = "shape: {type: circle, radius_cm: 3}\nweights: {10: 1, -1: 0.8}\nmany:\n- {}\n- side_cm: 2e0\n"
    value = load_text(text, Root)
    assert value == Root(
        shape=Circle(radius_cm=3), weights={10: 1.0, -1: 0.8}, many=(Square(), Square(side_cm=2.0))
    )
    assert dump(value)["shape"] == {"type": "circle", "radius_cm": 3}


def test_an_empty_file_and_an_empty_section_mean_the_defaults() -> None:
    assert load_text("", Root) == Root()
    assert load_text("many:\n  - # nothing set\n", Root).many == (Square(),)


def test_every_problem_is_listed_with_its_line() -> None:
    text = (
        "shape:\n  type: circle\n  radius: 3\ninner:\n  is_open: maybe\nlimit: many\nmany:\n  - side_cm: -1\n"
    )
    assert problems_of(text) == [
        'shape.radius (line 3): unknown key; did you mean "radius_cm"?',
        "inner.name (line 4): is required",
        "inner.is_open (line 5): should be a valid boolean, not 'maybe'",
        "limit (line 6): should be a valid integer, not 'many'",
        "many[0].side_cm (line 8): must be above 0",
        "many[0].type (line 8): has no such square",
    ]


def test_a_section_that_checks_itself_names_its_key() -> None:
    assert problems_of("shape:\n  type: circle\n  radius_cm: 10\n") == [
        "shape.radius_cm (line 3): must be at most 9"
    ]


def test_only_the_meant_member_of_a_union_is_reported() -> None:
    assert problems_of("shape: {type: circle, radius_cm: x}\n") == [
        "shape.radius_cm (line 1): should be a valid integer, not 'x'"
    ]
    assert problems_of("shape: {type: circel}\n") == [
        "shape.type (line 1): unknown type 'circel'; did you mean \"circle\"?"
    ]
    assert problems_of("shape: {radius_cm: 1}\n") == [
        "shape.type (line 1): `type` is missing (one of square, circle)"
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("limit: 1\nlimit: 2\n", "limit (line 2): given twice (first on line 1)"),
        ("limit: yes\n", "limit (line 1): should be a valid integer, not 'yes'"),
        ("limit: true\n", "limit (line 1): should be a valid integer, not True"),
        ("weights: {1: 1e999}\n", "weights.1 (line 1): must be a finite number"),
        (
            "weights: {x: 1}\n",
            "weights.x (line 1): should be a valid integer, unable to parse string as an integer, not 'x'",
        ),
        ("- 1\n", "(top level) (line 1): should be an object"),
        ("colour: blue\n", "colour (line 1): should be 'red', not 'blue'"),
        ("colour: rde\n", "colour (line 1): should be 'red', not 'rde'; did you mean \"red\"?"),
    ],
)
def test_one_problem(text: str, message: str) -> None:
    assert problems_of(text) == [message]


@pytest.mark.parametrize(
    "text",
    [
        "limit: [1\n",
        "limit: !!python/object/apply:os.system ['true']\n",
        "a: &a [1,1,1,1,1,1,1,1,1,1]\n"
        + "".join(
            f"{name}: &{name} [{', '.join(['*' + before] * 10)}]\n"
            for before, name in zip("abcdefgh", "bcdefghi", strict=True)
        ),
        "x: " + "[" * 5000,
        "#" * 2_000_000,
        "? [1, 2]\n: 3\n",
        "limit: \x00\n",
        "a: 1\n---\na: 2\n",
    ],
    ids=["broken", "tag", "aliases", "deep", "large", "complex-key", "nul", "two-documents"],
)
def test_hostile_text_is_refused_with_a_message(text: str) -> None:
    assert problems_of(text)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_file(tmp_path / "missing.yaml", Root)
    (tmp_path / "latin.yaml").write_bytes(b"colour: \xff\n")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_file(tmp_path / "latin.yaml", Root)


def test_checks_across_sections_get_the_line_of_the_nearest_key() -> None:
    def check(value: Root) -> list[Problem]:
        return [Problem("inner.is_open", "must be true when a limit is set")] if value.limit else []

    with pytest.raises(ConfigError) as caught:
        load_text("limit: 3\ninner:\n  name: x\n", Root, checks=[check])
    assert [str(problem) for problem in caught.value.problems] == [
        "inner.is_open (line 2): must be true when a limit is set"
    ]


def test_the_schema_refuses_unknown_keys_too() -> None:
    schema = json_schema(Root)
    assert schema["additionalProperties"] is False
    assert schema["$defs"]["Circle"]["additionalProperties"] is False
    assert "additionalProperties" not in schema["properties"]["weights"] or schema["properties"]["weights"][
        "additionalProperties"
    ] == {"type": "number"}
