"""These bugs are in the table of all of them, as they are here."""

from __future__ import annotations

from pymllm.adapters.cabinet.bugs import BUGS as ALL
from pymllm.adapters.cabinet.bugs_of_engines import BUGS


def test_each_is_in_the_table_in_its_order() -> None:
    """By its id, and not one of them twice."""
    assert [ALL[bug.id] for bug in BUGS] == list(BUGS)
    assert [bug.id for bug in BUGS] == [id for id in ALL if ALL[id] in BUGS]
