"""The badge."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pymllm.report.badge import make_badge
from tests.unit.report import samples

HOLDS, VIOLATED, UNKNOWN = (
    samples.law(*it) for it in (("P1", "holds"), ("P2", "violated"), ("P3", "unknown"))
)


@pytest.mark.parametrize(
    ("laws", "message", "color"),
    [
        ([HOLDS], "1 holds", "brightgreen"),
        ([HOLDS, HOLDS], "2 hold", "brightgreen"),
        ([HOLDS, UNKNOWN], "1 unknown, 1 holds", "yellow"),
        ([HOLDS, UNKNOWN, VIOLATED], "1 violated, 1 unknown, 1 holds", "red"),
    ],
)
def test_the_worst_verdict_gives_the_colour(laws: list[Any], message: str, color: str) -> None:
    """The words have all of them."""
    badge = json.loads(make_badge([samples.run(samples.verify(samples.adapter("rows", "rows", laws)))]))
    assert badge == {"schemaVersion": 1, "label": "laws", "message": message, "color": color}


def test_an_implementation_that_could_not_be_examined_makes_it_yellow() -> None:
    """Although no law is unknown by name."""
    adapters = (samples.adapter("rows", "rows", [HOLDS]), samples.adapter("x", None, [], verdict="unknown"))
    assert json.loads(make_badge([samples.run(samples.verify(*adapters))]))["color"] == "yellow"


def test_where_nothing_was_searched_it_is_grey() -> None:
    """Green would be a claim."""
    badge = json.loads(make_badge([samples.run(samples.faults())]))
    assert (badge["message"], badge["color"]) == ("not searched", "lightgrey")
