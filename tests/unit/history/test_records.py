"""Records as plain data: nothing is lost on the way, and what does not fit is named."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymllm.history.records import (
    decode,
    decode_tagged,
    encode,
    encode_tagged,
    name_of,
    schema_of,
    tagged_schema_of,
)


@dataclass(frozen=True)
class Point:
    """A point."""

    x: int
    y: int = 0


@dataclass(frozen=True)
class Drawing:
    """Points and how they look."""

    points: tuple[Point, ...]
    corners: tuple[int, str]
    scale: float = 1.0
    title: str | None = None
    is_closed: bool = False
    colours: dict[str, int] = field(default_factory=dict)


class FreeSWA:
    """Only its name matters."""


points = st.builds(Point, st.integers(), st.integers())
drawings = st.builds(
    Drawing,
    st.lists(points).map(tuple),
    st.tuples(st.integers(), st.text()),
    st.floats(allow_nan=False),
    st.none() | st.text(),
    st.booleans(),
    st.dictionaries(st.text(), st.integers()),
)


def test_a_name_is_the_class_in_snake_case() -> None:
    """Abbreviations stay in one piece."""
    assert [name_of(kind) for kind in (Point, FreeSWA)] == ["point", "free_swa"]


@given(drawings)
def test_a_record_survives_the_way_through_json(drawing: Drawing) -> None:
    """Whatever a field may hold is written and read."""
    assert decode(Drawing, json.loads(json.dumps(encode(drawing)))) == drawing


@given(points)
def test_a_tagged_record_names_its_kind_first(point: Point) -> None:
    """Readers need no other context."""
    plain = encode_tagged(point, "is")
    assert next(iter(plain.items())) == ("is", "point")
    assert decode_tagged([Drawing, Point], plain, "is") == point


def test_fields_at_their_default_are_left_out() -> None:
    """A history is short where nothing is said."""
    assert encode(Drawing((), (0, ""))) == {"points": [], "corners": [0, ""]}


GOOD: dict[str, Any] = {"points": [{"x": 1}], "corners": [1, "a"]}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"points": 5}, ".points is 5; it must be a list"),
        ({"points": [{"x": "1"}]}, ".points[0].x is '1'; it must be an integer"),
        ({"points": [{"x": True}]}, ".points[0].x is True; it must be an integer"),
        ({"points": [{}]}, ".points[0]: field 'x' is missing"),
        ({"points": [7]}, ".points[0] is 7; it must be an object"),
        ({"points": [{"x": 1, "z": 2}]}, ".points[0]: unknown field 'z'; it has x, y"),
        ({"corners": [1]}, ".corners is [1]; it must be a list of 2"),
        ({"scale": "big"}, ".scale is 'big'; it must be a number"),
        ({"title": 4}, ".title is 4; it must be a string or null"),
        ({"is_closed": 1}, ".is_closed is 1; it must be true or false"),
        ({"colours": []}, ".colours is []; it must be an object"),
        ({"colours": {"red": None}}, ".colours.red is None; it must be an integer"),
        ({"points": "x" * 80}, "it must be a list"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], says: str) -> None:
    """X1: the error says where, what, and what was expected."""
    with pytest.raises(ValueError, match=r"must be|unknown|missing") as caught:
        decode(Drawing, {**GOOD, **change})
    assert says in str(caught.value)
    assert len(str(caught.value)) < 200


def test_a_field_that_is_missing_at_the_top_is_named() -> None:
    """X1: also where there is nothing around it."""
    with pytest.raises(ValueError, match=r"^drawing: field 'points' is missing$"):
        decode(Drawing, {})


def test_a_union_of_lists_says_so() -> None:
    """X1: every kind that would do is listed."""
    with pytest.raises(ValueError, match="must be a list or an object"):
        decode(tuple[int, ...] | Point, 5)


@pytest.mark.parametrize("plain", [{"is": "square"}, {"x": 1}, {"is": ["point"]}])
def test_an_unknown_kind_is_refused_with_the_known_ones(plain: dict[str, Any]) -> None:
    """X1: who writes records by hand sees what there is."""
    with pytest.raises(ValueError, match="it must be one of point, drawing"):
        decode_tagged([Point, Drawing], plain, "is", "result")


def test_a_kind_says_where_its_fault_is() -> None:
    """X1: the kind is a part of the place."""
    with pytest.raises(ValueError, match=r"^result\.point\.x is None"):
        decode_tagged([Point], {"is": "point", "x": None}, "is", "result")
    with pytest.raises(ValueError, match=r"^point\.x is None"):
        decode_tagged([Point], {"is": "point", "x": None}, "is")


def test_the_schema_describes_every_field() -> None:
    """What `decode` takes, and nothing more."""
    assert schema_of(Drawing) == {
        "type": "object",
        "description": "Points and how they look.",
        "properties": {
            "points": {
                "type": "array",
                "items": {
                    "type": "object",
                    "description": "A point.",
                    "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
                    "required": ["x"],
                    "additionalProperties": False,
                },
            },
            "corners": {
                "type": "array",
                "prefixItems": [{"type": "integer"}, {"type": "string"}],
                "minItems": 2,
                "maxItems": 2,
            },
            "scale": {"type": "number"},
            "title": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "is_closed": {"type": "boolean"},
            "colours": {"type": "object", "additionalProperties": {"type": "integer"}},
        },
        "required": ["points", "corners"],
        "additionalProperties": False,
    }


class Colour(enum.Enum):
    """What a pen may have."""

    RED = "red"
    BLUE = "blue"


def test_the_schema_of_a_choice_names_the_values() -> None:
    """Plain data has them, and not the names in the code."""
    assert schema_of(Colour | None) == {"anyOf": [{"enum": ["red", "blue"]}, {"type": "null"}]}


def test_the_schema_of_several_kinds_tells_them_apart() -> None:
    """The tag is a constant of each."""
    (point,) = tagged_schema_of([Point], "is")["oneOf"]
    assert point["properties"]["is"] == {"const": "point"}
    assert point["required"] == ["is", "x"]
