"""docs/faults.md has every fault of the cabinet, caught, and every bug with its source."""

from __future__ import annotations

from pathlib import Path

from pymllm.adapters.cabinet.bugs import BUGS
from pymllm.adapters.cabinet.table import PLANTED, own_cabinet
from pymllm.cli.faults_page import print_anew, rows_of

PAGE = (Path(__file__).parents[2] / "docs" / "faults.md").read_text(encoding="utf-8")


def test_the_page_has_every_fault_and_what_caught_it() -> None:
    """After a change of the cabinet: pymllm faults ID... --full --page docs/faults.md."""
    found = rows_of(PAGE)
    cabinet = {fault.id: fault for fault in own_cabinet()}
    assert list(found) == list(cabinet)
    for id, fault in cabinet.items():
        laws, searchers = found[id][:2]
        assert set(laws.split(", ")) <= set(fault.laws)
        assert searchers


def test_the_texts_of_the_page_are_those_of_the_source() -> None:
    """After a change of a bug or of a plant: python docs/builder/faults_page.py."""
    assert print_anew(PAGE) == PAGE


def test_every_bug_has_a_place_to_link_to() -> None:
    """Each system that it is planted in, too."""
    suffixed = [fault.id for fault in PLANTED if fault.id != fault.entry]
    places = [*(f"### {id}\n" for id in BUGS), *(f'<a id="{id.lower()}"></a>' for id in suffixed)]
    assert [place for place in places if place not in PAGE] == []
