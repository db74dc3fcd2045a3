"""What a page is made of."""

from __future__ import annotations

import re

import pytest

from pymllm.report.blocks import Card, Cell, Choice, Column, Plot, Table, Text, anchor_of


def test_an_anchor_is_an_id_and_different_words_have_different_ones() -> None:
    """Names of adapters may be whole commands."""
    names = ["radix", "my_package:My Cache", "command:./x --flag", "command:./x -flag", "größe"]
    anchors = [anchor_of("violation", name, "R6") for name in names]
    assert all(re.fullmatch(r"[A-Za-z0-9_-]+", anchor) for anchor in anchors)
    assert len(set(anchors)) == len(names)


def test_a_row_is_as_long_as_its_head() -> None:
    """Or numbers would stand under another name."""
    with pytest.raises(AssertionError, match="Caption"):
        Table("Caption", (Column("a"), Column("b")), ((Cell("1"),),))


@pytest.mark.parametrize("values", [(1.0,), (3.0, 3.0), (1.0, 2.0, 0.5)])
def test_a_spark_stays_in_its_picture(values: tuple[float, ...]) -> None:
    """Also where nothing changes."""
    points = [tuple(map(float, point.split(","))) for point in Cell("", spark=values).spark_points.split()]
    assert len(points) == len(values)
    assert all(0 <= x <= 100 and 0 <= y <= 24 for x, y in points)


def test_each_block_names_its_template() -> None:
    """The page looks them up by it."""
    plot = Plot("p", "t", "l", (Choice("one", ({"x": [1]},), {"height": 3}, "note"),))
    blocks = [Table("c", (), ()), plot, Text("t"), Card("i", "t", "bad", (), lines=("a", "b"))]
    assert [block.kind for block in blocks] == ["table", "plot", "text", "card"]  # type: ignore[attr-defined]
    assert plot.plain == {
        "id": "p",
        "choices": [{"name": "one", "data": [{"x": [1]}], "layout": {"height": 3}, "note": "note"}],
    }
    assert Card("i", "t", "bad", (), lines=("a", "b")).contents == "a\nb\n"
