"""A memory of cells: what each may hold, and who is blamed for what stands there instead."""

from __future__ import annotations

import pytest

from pymllm.errors import InvariantViolation
from pymllm.oracle.evidence import Evidence
from pymllm.oracle.expected_cells import BlankCells, ExpectedCells

BLANK = {("a", row): (0, 0) for row in range(3)}


@pytest.fixture
def cells() -> ExpectedCells[tuple[str, int]]:
    return ExpectedCells("buffer {}, row {}", "P2", BLANK)


def look(cells: ExpectedCells[tuple[str, int]], **changes: tuple[int, int]) -> dict[str, int]:
    """Read blank cells but for ``row1=...``, and return what the reading counted."""
    evidence = Evidence()
    cells.test(evidence, {cell: changes.get(f"row{cell[1]}", (0, 0)) for cell in BLANK})
    return dict(evidence.exercised)


def blamed(cells: ExpectedCells[tuple[str, int]], **changes: tuple[int, int]) -> str:
    with pytest.raises(InvariantViolation) as caught:
        look(cells, **changes)
    return caught.value.law


def test_a_memory_that_nobody_touched_is_blank(cells: ExpectedCells[tuple[str, int]]) -> None:
    """P2: its own law is blamed, and reading it proves nothing."""
    assert look(cells) == {}
    assert blamed(cells, row1=(1, 0)) == "P2"


def test_a_written_cell_blames_its_write(cells: ExpectedCells[tuple[str, int]]) -> None:
    """P3: whatever stands there instead."""
    cells.put("P3", ("a", 1), (4, 5))
    cells.suspect("X1")
    assert blamed(cells, row1=(4, 6)) == "P3"


def test_another_cell_blames_the_last_operation(cells: ExpectedCells[tuple[str, int]]) -> None:
    """X1: what changed is not what was written."""
    cells.put("P3", ("a", 1), (4, 5))
    cells.suspect("X1")
    assert blamed(cells, row1=(4, 5), row2=(1, 1)) == "X1"


def test_a_content_that_strayed_blames_its_write(cells: ExpectedCells[tuple[str, int]]) -> None:
    """E5: padding that lands in a cell of somebody's is padding's fault, not the next write's."""
    cells.put("E5", ("a", 0), (7, 7))
    cells.put("P3", ("a", 1), (4, 5))
    assert blamed(cells, row0=(7, 7), row1=(4, 5), row2=(7, 7)) == "E5"


def test_a_foreign_content_was_there_before(cells: ExpectedCells[tuple[str, int]]) -> None:
    """P2: until somebody has read the cell, or again once what the law is about has happened."""
    cells = ExpectedCells("buffer {}, row {}", "P2", BLANK, lambda content: content[0] < 0)
    cells.suspect("X1")
    assert blamed(cells, row1=(1, 0)) == "X1"
    assert blamed(cells, row1=(-1, 0)) == "P2"
    look(cells)
    cells.suspect("X1")
    assert blamed(cells, row1=(-1, 0)) == "X1"
    cells.suspect("P2")
    cells.suspect("X1")
    assert blamed(cells, row1=(-1, 0)) == "P2"


def test_a_refused_content_that_stands_somewhere_blames_its_refusal() -> None:
    """X1: it was written all the same, be it foreign or not."""
    cells = ExpectedCells("buffer {}, row {}", "P2", BLANK, lambda content: content[0] < 0)
    cells.suspect("X1")
    cells.bring("X1", [(-1, 0), (5, 5)])
    cells.put("P3", ("a", 1), (4, 5))
    assert blamed(cells, row1=(4, 5), row2=(-1, 0)) == "X1"
    assert blamed(cells, row1=(4, 5), row2=(5, 5)) == "X1"
    assert blamed(cells, row1=(4, 5), row2=(4, 5)) == "P3"


def test_a_reading_counts_what_could_have_failed(cells: ExpectedCells[tuple[str, int]]) -> None:
    """A write of what stood there already proves nothing, and each law counts once."""
    cells.put("P3", ("a", 1), (4, 5))
    cells.put("P3", ("a", 2), (4, 5))
    cells.put("E5", ("a", 0), (0, 0))
    assert look(cells, row1=(4, 5), row2=(4, 5)) == {"P3": 1}
    assert look(cells, row1=(4, 5), row2=(4, 5)) == {}


def test_a_reading_settles_what_was_open(cells: ExpectedCells[tuple[str, int]]) -> None:
    """E5: any of the padded rows may have come last, but it stays the one that was seen."""
    cells.put("E5", ("a", 0), (1, 1), (2, 2))
    assert cells.holds(("a", 0)) == ((1, 1), (2, 2))
    assert look(cells, row0=(2, 2)) == {"E5": 1}
    assert cells.holds(("a", 0)) == ((2, 2),)
    assert blamed(cells, row0=(1, 1)) == "P2"


def test_writes_that_race_may_race_for_each_element(cells: ExpectedCells[tuple[str, int]]) -> None:
    """E5: a mixture of padded rows is nobody's loss, a number that no one wrote there is."""
    cells.put("E5", ("a", 0), (1, 3), (2, 4))
    assert look(cells, row0=(1, 4)) == {"E5": 1}
    cells.put("E5", ("a", 0), (1, 3), (2, 4))
    assert blamed(cells, row0=(3, 1)) == "E5"


def test_what_nobody_owns_may_hold_anything(cells: ExpectedCells[tuple[str, int]]) -> None:
    """P5: until it is read, and then that."""
    cells.release(("a", 2))
    assert cells.holds(("a", 2)) == ()
    look(cells, row2=(9, 9))
    assert blamed(cells, row2=(8, 8)) == "P2"


def test_a_wipe_is_tested_where_something_stood(cells: ExpectedCells[tuple[str, int]]) -> None:
    """X7: a blank memory that is wiped proves nothing."""
    cells.wipe("X7")
    assert look(cells) == {}
    cells.put("P3", ("a", 1), (4, 5))
    look(cells, row1=(4, 5))
    cells.wipe("X7")
    assert blamed(cells, row1=(4, 5)) == "X7"
    cells.wipe("X7")
    assert look(cells) == {"X7": 1}


def test_a_violation_names_the_cell_and_both_contents(cells: ExpectedCells[tuple[str, int]]) -> None:
    """The message needs no other context; a single number stands without brackets."""
    cells.put("E5", ("a", 0), (1, 1), (2, 2))
    with pytest.raises(
        InvariantViolation, match=r"buffer a, row 0: expected \(1, 1\) or \(2, 2\), obs.* \(3, 3\)"
    ):
        look(cells, row0=(3, 3))
    narrow = ExpectedCells("row {}", "P2", {(0,): (5,)})
    with pytest.raises(InvariantViolation, match="row 0: expected 5, observed 6"):
        narrow.test(Evidence(), {(0,): (6,)})


def test_blank_cells_are_not_kept() -> None:
    """Of any number; they are a mapping all the same."""
    blank = BlankCells({"a": (0,), "b": (1, 1)}, 10**12)
    assert (blank["b", 10**12 - 1], len(blank)) == ((1, 1), 2 * 10**12)
    assert next(iter(blank)) == ("a", 0)
    for cell in (("a", 10**12), ("a", -1), ("c", 0)):
        assert cell not in blank
    assert {("a", 0), ("b", 0)} == BlankCells({"a": (0,), "b": (0,)}, 1).keys()


def test_a_memory_that_nobody_owns_holds_anything_until_it_is_wiped(
    cells: ExpectedCells[tuple[str, int]],
) -> None:
    """X7: whatever was there."""
    cells.put("P3", ("a", 1), (4, 5))
    cells.release_all()
    assert cells.holds(("a", 0)) == cells.holds(("a", 1)) == ()
    cells.wipe("X7")
    assert cells.holds(("a", 0)) == ((0, 0),)
