"""Schemas say what is read, and what each field means."""

from __future__ import annotations

import enum

from pymllm.history.codec import Record, snake_case
from pymllm.history.operations import Fault, Insert, Reset, Unlock
from pymllm.history.schema import field_notes, schema_of


class Colour(enum.Enum):
    """What a pen may have."""

    RED = "red"
    BLUE = "blue"


class Point(Record, frozen=True):
    """A point.

    - ``x``, ``y``: Each of `both`,
      from 1.
    """

    x: int
    y: int = 0


class Drawing(Record, frozen=True):
    """Points and how they look.

    Not a picture.
    """

    points: tuple[Point, ...]
    corners: tuple[int, str]
    scale: int | float = 1.0
    title: str | None = None
    is_closed: bool = False
    colours: dict[str, Colour] | None = None


class Shape(Record, frozen=True, tag_field="is", tag=snake_case):
    """Is told apart."""


class Circle(Shape, frozen=True):
    """Round."""

    radius: int


class FreeLine(Shape, frozen=True):
    """Anything else."""


class Frame(Record, frozen=True):
    """What is of one kind only needs no tag."""

    circle: Circle
    shapes: tuple[Circle | FreeLine, ...]


def test_it_describes_every_field() -> None:
    """What is read, and nothing more."""
    number = {"type": "integer", "description": "Each of both, from 1."}
    assert schema_of(Drawing) == {
        "type": "object",
        "description": "Points and how they look.",
        "properties": {
            "points": {
                "type": "array",
                "items": {
                    "type": "object",
                    "description": "A point.",
                    "properties": {"x": number, "y": number},
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
            "colours": {
                "anyOf": [
                    {"type": "object", "additionalProperties": {"enum": ["red", "blue"]}},
                    {"type": "null"},
                ]
            },
        },
        "required": ["points", "corners"],
        "additionalProperties": False,
    }


def test_kinds_are_told_apart_by_a_constant() -> None:
    """Where there are several; what is of one kind only has none."""
    circle, line = schema_of(Circle | FreeLine)["oneOf"]
    assert circle == schema_of(Circle)
    assert circle["properties"]["is"] == {"const": "circle"}
    assert circle["required"] == ["is", "radius"]
    assert line["properties"] == {"is": {"const": "free_line"}}
    frame = schema_of(Frame)["properties"]
    assert [*frame["circle"]["properties"]] == ["radius"]
    assert frame["shapes"]["items"] == {"oneOf": [circle, line]}


def test_operations_say_what_a_program_cannot_guess() -> None:
    """Which calls may fail, and whose node is passed."""
    assert "calls the cache or the allocator, which must be refused" in field_notes(Fault)["call"]
    assert field_notes(Fault)["nth"] == "Which of these calls, from 1."
    assert field_notes(Unlock)["at"] == "Passes the node of another Match, Insert or Lock instead."
    assert field_notes(Insert)["prev_prefix_len"] == field_notes(Insert)["swa_evicted_seqlen"]
    assert field_notes(Reset) == {}
