"""The cabinet has every fault once, and takes in those of others."""

from __future__ import annotations

import pytest

from pymllm.adapters.cabinet.fault import Fault
from pymllm.adapters.cabinet.table import (
    PLANTED,
    find_faults,
    join_cabinets,
    load_cabinet,
    own_cabinet,
)
from pymllm.adapters.registry import FAULTY, find_adapter, load_adapter
from pymllm.errors import UsageError
from pymllm.oracle.laws import find_law

CABINET = own_cabinet()

each_fault = pytest.mark.parametrize("fault", CABINET, ids=lambda fault: fault.id)


def test_the_cabinet_is_what_is_planted_and_who_is_wrong() -> None:
    """Each once, the planted bugs in the order of their ids."""
    ids = [fault.id for fault in CABINET]
    assert ids == [*(fault.id for fault in PLANTED), *(entry.name for entry in FAULTY)]
    assert len(set(ids)) == len(ids)
    numbers = [int(fault.entry[1:]) for fault in PLANTED]
    assert numbers == sorted(numbers)


@each_fault
def test_a_law_of_every_fault_is_about_one_of_its_adapters(fault: Fault) -> None:
    """An accusation by a law that says nothing of a kind would prove nothing."""
    kinds = {load_adapter(find_adapter(name)).KIND for name in fault.adapters}
    assert any(kinds & set(find_law(law).kinds) for law in fault.laws)


def test_somebody_elses_table_is_loaded(tiny: str) -> None:
    """By module and name."""
    assert [fault.id for fault in load_cabinet("tiny_cabinet:TABLE")] == ["dirty", "keeping"]
    assert [fault.laws for fault in load_cabinet("tiny_cabinet:BY_ANY")] == [("any",)]


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("tiny_cabinet", "give module:TABLE"),
        ("no_such_module:TABLE", "cannot import no_such_module"),
        ("tiny_cabinet:NOTHING", "has no NOTHING"),
        ("tiny_cabinet:NUMBER", "must be a sequence of Fault"),
        ("tiny_cabinet:EMPTY", "not an empty one"),
        ("tiny_cabinet:STRANGE", "entry 2 is 'dirty', which is no Fault"),
        ("tiny_cabinet:TWICE", "dirty is there twice"),
        ("tiny_cabinet:LAWLESS", "lawless: no law 'Z9'"),
        ("tiny_cabinet:NOBODY", "nobody: no adapter 'no-such-adapter'"),
    ],
)
def test_a_table_that_makes_no_sense_is_refused(tiny: str, place: str, message: str) -> None:
    """X1: the message names the table, the entry and what is wrong."""
    with pytest.raises(UsageError, match=message):
        load_cabinet(place)


def test_two_cabinets_share_no_id(tiny: str) -> None:
    """Or nobody could ask for one of them."""
    table = load_cabinet("tiny_cabinet:TABLE")
    assert len(join_cabinets([PLANTED, table])) == len(PLANTED) + 2
    with pytest.raises(UsageError, match="two faults are called dirty"):
        join_cabinets([table, table])


def test_faults_are_found_by_their_ids() -> None:
    """In either case, each once, in the order asked for; all where nobody asks."""
    assert [fault.id for fault in find_faults(["b02", "B01", "B02"], PLANTED)] == ["B02", "B01"]
    assert find_faults([], PLANTED) == PLANTED
    with pytest.raises(UsageError, match="no fault 'B999'"):
        find_faults(["B999"], PLANTED)
