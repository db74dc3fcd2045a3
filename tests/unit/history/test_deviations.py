"""A deviation covers just what it says."""

from __future__ import annotations

from typing import Any

import pytest

from pymllm.errors import InvariantViolation
from pymllm.history.files import Deviation, Header
from pymllm.history.operations import Alloc


def known(**fields: Any) -> Deviation:
    return Deviation(**{"name": "it", "law": "X4", "reason": "because", **fields})


def violation() -> InvariantViolation:
    return InvariantViolation("X4", "pages of an allocation", expected="[2]", observed="[1]")


@pytest.mark.parametrize(
    ("deviation", "covers"),
    [
        (known(), True),
        (known(law="A3"), False),
        (known(operation="alloc"), True),
        (known(operation="free"), False),
        (known(operation="alloc", where={"tokens": 3}), True),
        (known(operation="alloc", where={"tokens": 4}), False),
        (known(says="pages of an"), True),
        (known(says="expected [2]"), True),
        (known(says="rows"), False),
    ],
)
def test_a_deviation_covers_just_what_it_says(deviation: Deviation, covers: bool) -> None:
    assert deviation.covers(Alloc(3), violation()) is covers
    header = Header("radix", "slots", deviations=(known(law="A1"), deviation))
    assert header.known(Alloc(3), violation()) is (deviation if covers else None)


def test_a_violation_before_any_operation_is_of_none() -> None:
    assert known().covers(None, violation())
    assert not known(operation="alloc").covers(None, violation())


def test_a_deviation_is_of_adapters_and_configurations() -> None:
    it = known(adapter="sglang-*", config={"page_size": 1})
    assert it.is_of("sglang-token", {"page_size": 1, "pages": 4})
    assert not it.is_of("sglang-token", {"page_size": 4})
    assert not it.is_of("token-slots", {"page_size": 1})
