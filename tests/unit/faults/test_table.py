"""The cabinet has every bug and every fault once, and takes in the faults of others."""

from __future__ import annotations

import re
from typing import Any

import pytest

from pymllm.adapters.registry import find_adapter, load_adapter
from pymllm.documents.faults import SEARCHERS
from pymllm.errors import UsageError
from pymllm.faults.adapters import FAULTY
from pymllm.faults.fault import ANY, EVIDENCE, Bug, Fault
from pymllm.faults.plant import planted
from pymllm.faults.table import (
    BUGS,
    PLANTED,
    UNPLANTED,
    WRONG,
    bug_of,
    find_faults,
    join_cabinets,
    load_cabinet,
    own_cabinet,
)
from pymllm.history.files import Config
from pymllm.oracle.laws import find_law

LINK = r"https://github\.com/[\w.-]+/[\w.-]+/(issues/\d+|pull/\d+|commit/[0-9a-f]{40}|blob/[0-9a-f]{40}/[\w/]+\.py)"
ALL: tuple[Config, ...] = (
    {"page_size": 4, "pool": "none"},
    {"page_size": 4, "pool": "token"},
    {"page_size": 1, "pool": "none"},
)
GOOD: dict[str, Any] = {"id": "x", "title": "is wrong", "laws": ("R1",), "adapters": ("radix",)}


# -- a fault -------------------------------------------------------------------------------------------------


def test_a_fault_is_looked_for_by_everybody_unless_it_says_otherwise() -> None:
    """X3: by default all searchers, on all configurations, and no code is edited."""
    fault = Fault(**GOOD)
    assert (fault.searchers, fault.settings, fault.edits, fault.note) == (SEARCHERS, {}, (), "")
    assert fault.shows_in(ALL) == ALL


def test_a_fault_shows_in_the_configurations_that_it_names() -> None:
    """X3: those with all of its settings, but for those with all settings that hide it."""
    assert Fault(**GOOD, settings={"page_size": 4, "pool": "none"}).shows_in(ALL) == ALL[:1]
    assert Fault(**GOOD, except_for={"page_size": 4, "pool": "none"}).shows_in(ALL) == ALL[1:]
    assert Fault(**GOOD, settings={"page_size": 4}, except_for={"pool": "none"}).shows_in(ALL) == ALL[1:2]
    assert Fault(**GOOD, except_for={"pool": None}).shows_in(ALL) == ALL


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


# -- bugs ----------------------------------------------------------------------------------------------------


def test_each_bug_is_there_once_and_in_order() -> None:
    """Under its id, and with a title of its own."""
    numbers = [int(id[1:]) for id in BUGS]
    assert numbers == sorted(set(numbers))
    assert [bug.id for bug in BUGS.values()] == list(BUGS)
    assert len({bug.title for bug in BUGS.values()}) == len(BUGS)


@pytest.mark.parametrize("bug", BUGS.values(), ids=lambda bug: bug.id)
def test_a_bug_can_be_read_alone_and_followed(bug: Bug) -> None:
    """A title that refers to no other, two sentences, and links that are absolute."""
    assert re.fullmatch(r"B\d+", bug.id)
    assert 15 <= len(bug.title) <= 90
    assert not bug.title.endswith(".")
    assert not re.search(r"^(the )?same\b|\bas above\b", bug.title.lower())
    assert bug.engine
    assert bug.links
    assert [link for link in bug.links if not re.fullmatch(LINK, link)] == []
    assert all(text.endswith(".") and len(text) > 25 for text in (bug.mechanism, bug.seen))
    assert bug.evidence in EVIDENCE.values()


def test_every_reason_not_to_plant_a_bug_is_one_clause() -> None:
    """A reader of the page learns what our classes lack."""
    assert UNPLANTED.keys() <= BUGS.keys()
    assert [reason for reason in UNPLANTED.values() if len(reason) <= 20 or reason.endswith(".")] == []


def test_a_fault_knows_its_bug() -> None:
    """A stranger's fault with an id like ours is no bug of ours."""
    assert [bug_of(fault) for fault in PLANTED if fault.entry == "B79"] == [BUGS["B79"]] * 3
    assert bug_of(Fault("B79", "something else", ("C1",), ("requests",))) is None
    assert bug_of(Fault("mine", "something else", ("C1",), ("requests",))) is None


# -- the table -----------------------------------------------------------------------------------------------


def test_the_cabinet_is_what_is_planted_and_who_is_wrong() -> None:
    """Each once, the planted bugs in the order of their ids."""
    ids = [fault.id for fault in own_cabinet()]
    assert ids == [*(fault.id for fault in PLANTED), *(fault.id for fault in WRONG)]
    assert [(fault.id, fault.title) for fault in WRONG] == [(entry.name, entry.summary) for entry in FAULTY]
    assert len(set(ids)) == len(ids)
    numbers = [int(fault.entry[1:]) for fault in PLANTED]
    assert numbers == sorted(numbers)


@pytest.mark.parametrize("fault", own_cabinet(), ids=lambda fault: fault.id)
def test_every_fault_can_be_planted_and_blamed(fault: Fault) -> None:
    """A fault whose code has changed goes stale loudly; a law that says nothing of a kind proves nothing."""
    kinds = {load_adapter(find_adapter(name)).KIND for name in fault.adapters}
    assert any(kinds & set(find_law(law).kinds) for law in fault.laws)
    assert fault.edits
    with planted(fault.edits):
        assert fault.shows_in(load_adapter(find_adapter(fault.adapters[0])).CONFIGURATIONS)


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
    """Two cabinets with a fault of the same id are refused, since the id would be ambiguous."""
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
