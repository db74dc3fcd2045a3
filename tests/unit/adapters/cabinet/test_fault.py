"""A fault says what it is, or it is refused."""

from __future__ import annotations

from typing import Any

import pytest

from pymllm.adapters.cabinet.fault import ANY, SEARCHERS, Fault

GOOD: dict[str, Any] = {"id": "x", "title": "is wrong", "laws": ("R1",), "adapters": ("radix",)}


def test_a_fault_is_looked_for_by_everybody_unless_it_says_otherwise() -> None:
    """X3: by default all searchers, on all configurations, and no code is edited."""
    fault = Fault(**GOOD)
    assert (fault.searchers, fault.settings, fault.edits, fault.note) == (SEARCHERS, {}, (), "")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("id", ""),
        ("title", ("is wrong",)),
        ("laws", ()),
        ("laws", "R1"),
        ("adapters", ()),
        ("searchers", ()),
        ("searchers", ("machine", "nobody")),
    ],
)
def test_a_fault_that_says_too_little_is_refused(field: str, value: object) -> None:
    """X1: the message names the fault and what is wrong with it."""
    with pytest.raises(ValueError, match=r"fault '.*': .*(must be|no searcher)"):
        Fault(**{**GOOD, field: value})


def test_any_law_will_do_where_nobody_knows_better() -> None:
    """Else only those of its list."""
    assert Fault(**GOOD).may_be_caught_by("R1")
    assert not Fault(**GOOD).may_be_caught_by("R2")
    assert Fault(**{**GOOD, "laws": ANY}).may_be_caught_by("R2")
