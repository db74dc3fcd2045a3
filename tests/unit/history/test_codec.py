"""Records as plain data, as lines and as schemas: nothing is lost, and what does not fit is named."""

from __future__ import annotations

import copy
import dataclasses
import enum
import json
import math
import pickle
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymllm.history.codec import Record, decode, encode, fits, json_reader, name_of, snake_case, write_json
from pymllm.history.files import Step
from pymllm.history.operations import Evict, Fault, Insert, Inspect, Key, Match, Reset, Span, Unlock
from pymllm.history.outcomes import Done, Effect, Hashes, Inspected, Matched, NodeView, Outcome, Slots
from pymllm.history.schema import field_notes, schema_of


class Point(Record, frozen=True):
    """A point."""

    x: int
    y: int = 0


class Drawing(Record, frozen=True):
    """Points and how they look."""

    points: tuple[Point, ...]
    corners: tuple[int, str]
    scale: float = 1.0
    title: str | None = None
    is_closed: bool = False
    colours: dict[str, int] = msgspec.field(default_factory=dict)
    marks: dict[str, Point] = msgspec.field(default_factory=dict)


class Album(Record, frozen=True):
    """Drawings by their names."""

    drawings: dict[str, Drawing]


class Shape(Record, frozen=True, tag_field="is", tag=snake_case):
    """Is told apart."""


class Circle(Shape, frozen=True):
    """Round."""

    radius: int


class FreeSWA(Shape, frozen=True):
    """Only its name matters."""

    style: str = "dotted"


points = st.builds(Point, st.integers(), st.integers())
drawings = st.builds(
    Drawing,
    st.lists(points).map(tuple),
    st.tuples(st.integers(), st.text()),
    st.floats(allow_nan=False),
    st.none() | st.text(),
    st.booleans(),
    st.dictionaries(st.text(), st.integers()),
    st.dictionaries(st.text(), points),
)


def test_a_name_is_the_class_in_snake_case() -> None:
    """Abbreviations stay in one piece."""
    assert [name_of(kind) for kind in (Point, FreeSWA)] == ["point", "free_swa"]


# -- what a record is ----------------------------------------------------------------------------------------
def test_a_record_is_frozen_comparable_and_copyable() -> None:
    """Between processes too; and each has a dict of its own."""
    point = Point(1)
    with pytest.raises(AttributeError, match="immutable"):
        point.x = 2  # type: ignore[misc]
    assert point == Point(1, 0) != Point(2)
    assert len({point, Point(1), Point(1, 1)}) == 2
    assert pickle.loads(pickle.dumps(point)) == copy.deepcopy(point) == point
    assert Drawing((), (0, "")).colours is not Drawing((), (0, "")).colours
    match point:
        case Point(x, y):
            assert (x, y) == (1, 0)
    with pytest.raises(TypeError, match="z"):
        Point(1, z=2)  # type: ignore[call-arg]


def test_the_functions_of_dataclasses_take_a_record() -> None:
    """Adapters of other people replace fields of what they are given."""
    drawing = Drawing((Point(1),), (0, ""))
    assert dataclasses.replace(drawing, title="a") == Drawing((Point(1),), (0, ""), title="a")
    assert [field.name for field in dataclasses.fields(Point)] == ["x", "y"]
    required, optional = dataclasses.fields(Point)
    assert (required.default, optional.default) == (dataclasses.MISSING, 0)
    assert dataclasses.fields(Drawing)[-1].default_factory is dict
    assert dataclasses.asdict(Outcome(Slots((1,)))) == {"result": {"slots": (1,), "swa_slots": ()}} | {
        "effects": (),
        "sizes": {},
    }


# -- writing -------------------------------------------------------------------------------------------------
@given(drawings)
def test_a_record_survives_the_way_through_json(drawing: Drawing) -> None:
    """Every value of a field is written and read, and the line is that of `json.dumps`."""
    assert decode(Drawing, json.loads(json.dumps(encode(drawing)))) == drawing
    assert fits(drawing)


def test_fields_at_their_default_are_left_out() -> None:
    """A history is short where nothing is said, also where an equal value was read or computed."""
    assert encode(Drawing((), (0, ""))) == {"points": [], "corners": [0, ""]}
    assert encode(Drawing((), (0, ""), scale=float("1"))) == {"points": [], "corners": [0, ""]}
    form = "".join(["int", "64"])
    assert write_json(Insert(Key((), form="".join(["li", "st"])), form=form)) == (
        '{"op": "insert", "key": {"tokens": []}}'
    )
    assert write_json(Outcome(Matched((), 0, dtype=form))) == (
        '{"result": {"is": "matched", "slots": [], "prefix_len": 0}}'
    )
    assert encode((FreeSWA("".join(["dot", "ted"])), 1)) == [{"is": "free_swa"}, 1]
    assert encode({"a": (Point(1),)}) == {"a": [{"x": 1}]}
    album = Album({"a": Drawing((), (0, ""), scale=float("1"))})
    assert encode(album) == {"drawings": {"a": {"points": [], "corners": [0, ""]}}}


NODE = NodeView(1, None, (1,), None, (2,))
texts = st.text() | st.characters(categories=["Cs"]) | st.sampled_from(['"op": "x"', "\x7f", "\\", "null"])
times = st.none() | st.integers() | st.floats() | st.sampled_from([1e16, 1e-5, -0.0, 123456.75])


@given(texts, times, st.integers(-(2**127), 2**127 - 1))
def test_a_line_is_spelled_as_json_dumps_spells_it(text: str, time: float | None, number: int) -> None:
    """Digests of files stay what they were: spaces, escapes, small, large and impossible numbers."""
    node = dataclasses.replace(NODE, extra_key=text, last_access=time)
    for record in (
        Step(1, Match(Key((number,), text)), Outcome(Inspected((node,)), (), {"size": number})),
        Step(2, Inspect(), Outcome(Hashes((text,)), (Effect("callback", note=text),))),
        Step(3, Evict(number)),
    ):
        assert write_json(record) == json.dumps(encode(record))


# -- reading -------------------------------------------------------------------------------------------------
GOOD: dict[str, Any] = {"points": [{"x": 1}], "corners": [1, "a"]}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"points": 5}, "points is 5; it must be a list"),
        ({"points": [{"x": "1"}]}, "points[0].x is '1'; it must be an integer"),
        ({"points": [{"x": True}]}, "points[0].x is True; it must be an integer"),
        ({"points": [{"x": 1.0}]}, "points[0].x is 1.0; it must be an integer"),
        ({"points": [{}]}, "points[0]: field 'x' is missing"),
        ({"points": [7]}, "points[0] is 7; it must be an object"),
        ({"points": [{"x": 1, "z": 2}]}, "points[0]: unknown field 'z'; it has x, y"),
        ({"corners": [1]}, "corners is [1]; it must be a list of 2"),
        ({"corners": [1, 2]}, "corners[1] is 2; it must be a string"),
        ({"scale": "big"}, "scale is 'big'; it must be a number"),
        ({"title": 4}, "title is 4; it must be a string or null"),
        ({"is_closed": 1}, "is_closed is 1; it must be true or false"),
        ({"colours": []}, "colours is []; it must be an object"),
        ({"colours": {"blue": 1, "red": None}}, "colours.red is None; it must be an integer"),
        ({"marks": {"a": {"x": 1}, "b": {"x": "1"}}}, "marks.b.x is '1'; it must be an integer"),
        ({"marks": {"b": {}}}, "marks.b: field 'x' is missing"),
        ({"points": "x" * 80}, "it must be a list"),
        ({"x" * 80: 1}, "drawing: unknown field 'xxx"),
        ({"a\nb\x1b": 1}, r"drawing: unknown field 'a\nb\x1b'; it has points"),
        ({"a` - at `$.b": 1}, "drawing: unknown field 'a` - at `$.b'; it has points"),
        ({"points": [{"x": 1, "a` - at `$.b": 2}]}, "points[0]: unknown field 'a` - at `$.b'; it has x, y"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], says: str) -> None:
    """X1: the error says where, what, and what was expected."""
    with pytest.raises(ValueError, match=r"must be|unknown|missing") as caught:
        decode(Drawing, {**GOOD, **change})
    assert says in str(caught.value)
    assert len(str(caught.value)) < 200
    with pytest.raises(ValueError, match=r"must be|unknown|missing") as from_line:
        json_reader(Drawing)(json.dumps({**GOOD, **change}))
    assert str(from_line.value) == str(caught.value)


@pytest.mark.parametrize(
    ("plain", "says"),
    [
        ({}, "drawing: field 'points' is missing"),
        (5, "value is 5; it must be an object"),
        ([], "value is []; it must be an object"),
    ],
)
def test_what_is_wrong_at_the_top_is_named(plain: object, says: str) -> None:
    """X1: also where there is nothing around it."""
    with pytest.raises(ValueError, match=r".") as caught:
        decode(Drawing, plain)
    assert str(caught.value) == says


def test_a_union_says_so() -> None:
    """X1: every kind that would do is listed."""
    with pytest.raises(ValueError, match="must be a list or an object"):
        decode(tuple[int, ...] | Point, 5)


@pytest.mark.parametrize("plain", [{"is": "square"}, {"radius": 1}, {"is": ["circle"]}])
def test_an_unknown_kind_is_refused_with_the_known_ones(plain: dict[str, Any]) -> None:
    """X1: who writes records by hand sees what there is."""
    with pytest.raises(ValueError, match=r"^result: is is .*; it must be one of circle, free_swa$"):
        decode(Circle | FreeSWA, plain, "result")


def test_a_kind_says_where_its_fault_is() -> None:
    """X1: the kind is a part of the place."""
    with pytest.raises(ValueError, match=r"^result\.circle\.radius is None"):
        decode(Circle | FreeSWA, {"is": "circle", "radius": None}, "result")
    with pytest.raises(ValueError, match=r"^circle: field 'radius' is missing"):
        decode(Circle | FreeSWA, {"is": "circle"})


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"x": 1, "x": 2}', "an object names 'x' twice"),
        ('{"x": 1, "y": 0, "y": 0}', "an object names 'y' twice"),
        ('{"x": 1, "y": 2, "\\u0079": 2}', "an object names 'y' twice"),
        ('{"x": ' + "9" * 40 + "}", "does not fit into 128 bits"),
        ('{"x": ' + "9" * 5_000 + "}", "does not fit into 128 bits"),
        ('{"x": NaN}', "NaN is no number that JSON has"),
        ('{"x": 1e400}', "larger than every float"),
        ('{"x": ' + "[" * 5_000, "more than 64 lists and objects"),
        ('{"x": ' + "[" * 70 + "]" * 70 + "}", "more than 64 lists and objects"),
        ('{"x": "\\ud800"}', "half of a surrogate pair"),
        ('{"x": 1} {}', "not JSON: Extra data"),
        ('{"x": 01}', "not JSON"),
        ('{"x": "\t"}', "not JSON"),
    ],
)
def test_a_line_of_a_broken_hand_is_refused(line: str, says: str) -> None:
    """X1: msgspec alone would take the last of two fields, and numbers of thousands of digits."""
    with pytest.raises(ValueError, match=r".") as caught:
        json_reader(Point)(line)
    assert says in str(caught.value)


def test_no_colon_hides_a_field_that_is_named_twice() -> None:
    """Neither one in a string nor one that is spelled by an escape."""
    read = json_reader(Outcome)
    line = '{"result": {"is": "hashes", "digests": ["a:b"]}, "sizes": {"a:": 1}}'
    assert read(line) == Outcome(Hashes(("a:b",)), (), {"a:": 1})
    escaped = '{"result": {"is": "hashes", "digests": ["a\\u003ab"]}, "sizes": {"a": 1, "a": 1}}'
    with pytest.raises(ValueError, match="names 'a' twice"):
        read(escaped)


@pytest.mark.parametrize("number", [2**64, -(2**127), 2**127 - 1])
def test_a_number_of_128_bits_is_read(number: int) -> None:
    """A wrong slot may be any integer."""
    assert json_reader(Point)(f'{{"x": {number}}}') == Point(number)


# -- looking -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "drawing",
    [
        Drawing([], (1, "a")),  # type: ignore[arg-type]
        Drawing((Point(True),), (1, "a")),
        Drawing((1,), (1, "a")),  # type: ignore[arg-type]
        Drawing((), (1, "a", 2)),  # type: ignore[arg-type]
        Drawing((), [1, "a"]),  # type: ignore[arg-type]
        Drawing((), ("a", "a")),  # type: ignore[arg-type]
        Drawing((), (1, "a"), scale="1"),  # type: ignore[arg-type]
        Drawing((), (1, "a"), title=1),  # type: ignore[arg-type]
        Drawing((), (1, "a"), colours={"red": None}),  # type: ignore[dict-item]
        Drawing((), (1, "a"), colours={1: 1}),  # type: ignore[dict-item]
        Drawing((), (1, "a"), colours=()),  # type: ignore[arg-type]
        Drawing((), (1, "a"), title=object()),  # type: ignore[arg-type]
        Outcome(Done, ()),  # type: ignore[arg-type]
        Outcome(Span(1, 0, 1)),  # type: ignore[arg-type]
        Slots((1, 2.0)),  # type: ignore[arg-type]
        Slots(((1,), (2,))),  # type: ignore[arg-type]
    ],
)
def test_a_record_with_a_wrong_field_does_not_fit(drawing: Record) -> None:
    """X1: a list is no tuple, and True no int."""
    assert not fits(drawing)


@pytest.mark.parametrize("time", [1, 1.5, math.inf, None])
@pytest.mark.parametrize("name", ["a", "\ud800", 7, None])
def test_a_record_fits_whatever_json_makes_of_it(time: float | None, name: str | int | None) -> None:
    """Also with what a file cannot keep."""
    assert fits(Outcome(Inspected((dataclasses.replace(NODE, last_access=time, extra_key=name),))))


class Colour(enum.Enum):
    """What a pen may have."""

    RED = "red"
    BLUE = "blue"


class Dot(Record, frozen=True):
    """A point.

    - ``x``, ``y``: Each of `both`,
      from 1.
    """

    x: int
    y: int = 0


class Sketch(Record, frozen=True):
    """Points and how they look.

    Not a picture.
    """

    points: tuple[Dot, ...]
    corners: tuple[int, str]
    scale: int | float = 1.0
    title: str | None = None
    is_closed: bool = False
    colours: dict[str, Colour] | None = None


class Frame(Record, frozen=True):
    """What is of one kind only needs no tag."""

    circle: Circle
    shapes: tuple[Circle | FreeSWA, ...]


def test_it_describes_every_field() -> None:
    """The schema has every field that is read, and nothing more."""
    number = {"type": "integer", "description": "Each of both, from 1."}
    assert schema_of(Sketch) == {
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
    circle, line = schema_of(Circle | FreeSWA)["oneOf"]
    assert circle == schema_of(Circle)
    assert circle["properties"]["is"] == {"const": "circle"}
    assert circle["required"] == ["is", "radius"]
    assert line["properties"] == {"is": {"const": "free_swa"}, "style": {"type": "string"}}
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


def test_a_field_that_may_hold_anything_has_a_schema_that_lets_all_pass() -> None:
    """Such as what a step of a vector must come to."""

    class Open(Record, frozen=True):
        """Holds anything."""

        held: dict[str, Any]

    assert schema_of(Open)["properties"]["held"] == {"type": "object", "additionalProperties": {}}


class Counted(Record, frozen=True):
    """So many."""

    times: Annotated[int, msgspec.Meta(ge=0)]


def test_a_schema_has_the_least_that_a_number_may_be() -> None:
    """The schema has the least value of a number, for writers of files in other languages."""
    assert schema_of(Counted)["properties"]["times"] == {"type": "integer", "minimum": 0}
    with pytest.raises(msgspec.ValidationError, match=">= 0"):
        msgspec.convert({"times": -1}, Counted)
