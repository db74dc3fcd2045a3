"""docs/faults.md has every fault of the cabinet, caught, and every entry that is not planted."""

from __future__ import annotations

import re
from pathlib import Path

from pymllm.adapters.cabinet.table import own_cabinet
from pymllm.adapters.cabinet.unplanted import UNPLANTED

PAGE = (Path(__file__).parents[2] / "docs" / "faults.md").read_text(encoding="utf-8")


def rows() -> dict[str, list[str]]:
    """Cells of the tables by the id that they begin with."""
    lines = re.findall(r"^\| (?!id |---)(.*) \|$", PAGE, flags=re.MULTILINE)
    cells = [line.split(" | ") for line in lines]
    return {row[0]: row[1:] for row in cells}


def test_the_page_has_every_fault_and_what_caught_it() -> None:
    """After a change of the cabinet: pymllm faults --full --page docs/faults.md."""
    found = rows()
    cabinet = {fault.id: fault for fault in own_cabinet()}
    assert list(found) == [*cabinet, *UNPLANTED]
    for id, fault in cabinet.items():
        title, laws, searchers = found[id][:3]
        assert title == fault.title
        assert set(laws.split(", ")) <= set(fault.laws)
        assert searchers


def test_the_page_has_every_reason() -> None:
    """An entry that nobody planted says why."""
    found = rows()
    for id, entry in UNPLANTED.items():
        assert found[id] == [entry.title, entry.reason]
