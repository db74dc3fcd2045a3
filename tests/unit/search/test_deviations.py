"""Tests of searches behind known deviations, which tell the deviations that are gone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pymllm.adapters.registry import find_adapter
from pymllm.documents.searches import AdapterRow, ViolationRow
from pymllm.errors import UsageError
from pymllm.history.files import Deviation, History, load_history, write_history
from pymllm.history.operations import Alloc
from pymllm.machines.acting import Unwanted, drive, make_machine
from pymllm.machines.registry import DEV
from pymllm.machines.rows import RowMachine
from pymllm.machines.slots import SlotMachine
from pymllm.oracle.laws import find_law
from pymllm.oracle.verdicts import Verdict
from pymllm.search.deviations import (
    begin_deviations,
    is_of_version,
    read_deviations,
    tell_deviations,
)
from pymllm.search.program import rerun_history
from pymllm.search.runner import verify
from pymllm.search.search import SearchPlan, search
from pymllm.search.shrinker import shrink
from pymllm.search.tasks import VerifyPlan
from tests.unit.plugins import READS_A_CHECKOUT
from tests.unit.tiny_adapters import TinyRows

MERGES = "faulty-merging-failure"
CONFIG = {"page_size": 1, "pages": 8, "need_sort": True, "check_ownership": False, "store": "host"}


def known(**fields: Any) -> Deviation:
    return Deviation(**{"name": "it", "law": "X4", "reason": "because", **fields})


GOOD = """
[merges]
law = "X4"
reason = "a failed allocation merges"
kind = "other contract"
adapter = "sglang-*"
operation = "alloc"
then = "go on"
versions = "sglang>=0.5.15,<0.6"
where = {tokens = 3}
config = {page_size = 1}
"""


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    path.write_text(GOOD)
    (it,) = read_deviations(path)
    assert (it.name, it.law, it.then, it.where) == ("merges", "X4", "go on", {"tokens": 3})


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("[a", "it is no TOML: "),
        ("a = 3", "[a] is 3; it must be a table with law and reason"),
        ("[a]\nlaw = 'X4'", "[a]: field 'reason' is missing"),
        ("[a]\nlaw = 'X4'\nreason = ' '", "[a]: reason is empty; explain the deviation"),
        ("[a]\nlaw = 'X99'\nreason = 'r'", "[a]: "),
        ("[a]\nlaw = 'X4'\nreason = 'r'\nwhy = 'r'", "[a]"),
        (
            "[a]\nlaw = 'X4'\nreason = 'r'\nkind = 'bug'",
            "[a]: kind is 'bug'; it must be one of defect, other",
        ),
        ("[a]\nlaw = 'X4'\nreason = 'r'\nthen = 'stop'", "[a]: then is 'stop'; it must be one of end, go on"),
        (
            "[a]\nlaw = 'X4'\nreason = 'r'\noperation = 'aloc'",
            "[a]: there is no operation 'aloc' (did you mean",
        ),
        ("[a]\nlaw = 'X4'\nreason = 'r'\nwhere = {tokens = 3}", "[a]: where names fields of an operation"),
        (
            "[a]\nlaw = 'X4'\nreason = 'r'\noperation = 'alloc'\nwhere = {token = 3}",
            "[a]: where: alloc has no field 'token'; it has tokens",
        ),
        ("[a]\nlaw = 'X4'\nreason = 'r'\nversions = '>=1'", "[a]: versions is '>=1'; it must be a package"),
        (
            "[a]\nlaw = 'X4'\nreason = 'r'\nversions = 'sglang@1234567'",
            "[a]: versions is 'sglang@1234567'; a checkout is ",
        ),
        ("[a]\nlaw = 'X4'\nreason = 'r'\nversions = 'mllm@main'", "[a]: versions is 'mllm@main'; a checkout"),
    ],
)
def test_a_file_that_says_nonsense_is_refused(tmp_path: Path, text: str, refusal: str) -> None:
    path = tmp_path / "known.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=f"^{re.escape(refusal)}"):
        read_deviations(path)


@pytest.mark.parametrize(
    ("versions", "is_here"),
    [("", True), ("msgspec>=0.1", True), ("msgspec<0.1", False), ("no-such-package-at-all>=1", False)],
)
def test_a_deviation_is_of_the_version_that_is_installed(versions: str, is_here: bool) -> None:
    assert is_of_version(known(versions=versions)) is is_here


@pytest.mark.parametrize(
    ("versions", "is_here"),
    [("Their-Cache@d98e8a6", True), ("their-cache @ d98e8a6", True), ("Their-Cache@1234567", False)],
)
def test_a_deviation_is_of_the_commit_that_is_checked_out(
    versions: str, is_here: bool, plug_in: Callable[[str, str], None]
) -> None:
    """Whose sources a plug-in's adapters read."""
    plug_in("their_plugin", READS_A_CHECKOUT)
    assert is_of_version(known(versions=versions)) is is_here


def test_each_deviation_is_told_of() -> None:
    rows = tell_deviations(
        [
            known(name="a"),
            known(name="b", adapter="other-*"),
            known(name="c", adapter="one"),
            known(name="d", versions="msgspec<0.1"),
            known(name="e", law="A4"),
        ],
        {"one": ({"X4"}, Counter(a=3)), "two": ({"X4"}, Counter())},
    )
    assert [(row.name, row.status, row.programs, row.adapters) for row in rows] == [
        ("a", "shows", 3, ("one",)),
        ("b", "not searched", 0, ()),
        ("c", "gone", 0, ()),
        ("d", "other version", 0, ()),
        ("e", "not searched", 0, ()),
    ]


def plan(
    adapter: str,
    *deviations: Deviation,
    laws: tuple[str, ...] = (),
    strict: bool = False,
    examples: int = 20,
) -> VerifyPlan:
    wanted = tuple(map(find_law, laws))
    return VerifyPlan(
        (find_adapter(adapter),), wanted, DEV, 0, examples, 0, deviations=deviations, is_strict=strict
    )


def test_a_known_deviation_is_no_violation_and_one_that_is_gone_is_told() -> None:
    """X4 holds but for what is known; without the list it is broken."""
    assert verify(plan(MERGES)).verdict is Verdict.VIOLATED
    gone = known(name="gone", law="A1")
    report = verify(plan(MERGES, known(operation="alloc"), gone))
    assert report.verdict is Verdict.HOLDS
    assert [(row.status, bool(row.programs)) for row in report.deviations] == [
        ("shows", True),
        ("gone", False),
    ]
    assert report.exit_status == 0
    assert verify(plan(MERGES, known(), gone, strict=True)).exit_status == 1


def test_what_is_known_otherwise_is_found_all_the_same() -> None:
    """X4: by another operation, or of another adapter, is not what is known."""
    for other in (known(operation="free"), known(adapter="sglang-*"), known(config={"page_size": 3})):
        assert verify(plan(MERGES, other)).verdict is Verdict.VIOLATED, other


def test_a_law_is_searched_for_behind_violations_of_others() -> None:
    """A2: X4 is broken beside it, which nobody asked for."""
    report = verify(plan(MERGES, laws=("A2",)))
    assert [row.id for row in report.laws] == ["A2"]
    assert report.verdict is Verdict.HOLDS
    (adapter,) = report.adapters
    assert adapter.passed_over["X4"] > 0
    assert not adapter.known


def test_a_judge_that_goes_on_sees_what_is_behind() -> None:
    """X4: the model takes the pages that were given, and judges what follows."""
    machine = make_machine(SlotMachine, MERGES, dict(CONFIG), unwanted=Unwanted((known(then="go on"),)))
    played = [drive(machine, seed, 40) for seed in range(8)]
    assert machine.found is None
    met = [it for it in played if it.examiner.judge.evidence.known]
    assert met, "some program met it"
    assert all(len(it.acts_played) > 40 for it in met), "they were played and cleaned up to their end"


@pytest.mark.parametrize(
    ("adapter", "laws"),
    [
        ("faulty-stale-matches", "R8"),
        ("faulty-forgotten-halves", "A1 A2 A3 A7 X4"),
    ],
)
def test_what_no_model_can_follow_ends_the_program(adapter: str, laws: str) -> None:
    """No violation is left, nothing breaks and everything comes to an end."""
    listed = tuple(known(name=law, law=law, then="go on") for law in laws.split())
    report = verify(plan(adapter, *listed, examples=5))
    assert report.exit_status in (0, 1)
    assert any(row.programs for row in report.deviations)


def test_a_program_says_what_was_known_of_it(tmp_path: Path) -> None:
    """X4: whoever runs it again goes on where the search went on, and by itself it breaks the law."""
    machine = make_machine(SlotMachine, MERGES, dict(CONFIG), unwanted=Unwanted((known(then="go on"),)))
    history = next(
        it.examiner.history
        for it in (drive(machine, seed, 40) for seed in range(8))
        if it.examiner.judge.evidence.known
    )
    path = tmp_path / "known.jsonl"
    write_history(history, path)
    again = load_history(path)
    assert again.header.deviations == (known(then="go on"),)
    assert rerun_history(again, MERGES).violation is None
    bare = History(msgspec.structs.replace(again.header, deviations=()), again.steps)
    broken = rerun_history(bare, MERGES).violation
    assert broken is not None
    assert broken.law == "X4"


def test_a_smaller_program_is_not_one_that_is_known() -> None:
    """X4: what is found with three tokens does not slip to what is known with two."""
    machine = make_machine(SlotMachine, MERGES, dict(CONFIG))
    search(machine, SearchPlan(0, 30, 25, shrinks=0, driven=100))
    assert machine.found is not None
    small = shrink(machine.found, seconds=None, plays=300)
    tokens = small.history.steps[-1].operation.tokens  # type: ignore[attr-defined]
    unwanted = Unwanted((known(operation="alloc", where={"tokens": tokens}),))
    other = make_machine(SlotMachine, MERGES, dict(CONFIG), unwanted=unwanted)
    search(other, SearchPlan(0, 30, 25, shrinks=0, driven=100))
    assert other.found is not None
    last = shrink(other.found, seconds=None, plays=300).history.steps[-1].operation
    assert isinstance(last, Alloc)
    assert last.tokens != tokens


@pytest.mark.parametrize(
    ("adapter", "laws"), [("Moody", "X1 X3 X4 X7 X8"), ("WrongInside", "P1"), ("KeepsEntries", "P2")]
)
def test_whoever_sees_it_passes_over_what_is_known(tiny: str, adapter: str, laws: str) -> None:
    """The end of a program, run again, the walk from inside and the judge; each sees it without the list."""
    name, plan = f"{tiny}:{adapter}", SearchPlan(2, 20, 40, shrinks=0)
    config = TinyRows.CONFIGURATIONS[0]
    listed = tuple(known(name=law, law=law) for law in laws.split())
    for deviations in ((), listed):
        machine = make_machine(RowMachine, name, dict(config), unwanted=Unwanted(deviations))
        result = search(machine, plan)
        assert result.crash is None
        assert bool(result.found) is not bool(deviations)
        assert {it.law for it in result.found} <= {*laws.split()}
        assert bool(result.known) is bool(deviations)


def test_what_was_found_begins_a_file() -> None:
    """The names are new, and what is written can be read."""
    report = verify(plan(MERGES))
    rows = report.document().adapters
    text = "\n".join(begin_deviations(rows, ["faulty-merging-failure-X4"]))
    (name,) = msgspec.toml.decode(text)
    assert name == "faulty-merging-failure-X4-2"
    fields = msgspec.toml.decode(text)[name]
    assert (fields["law"], fields["operation"], fields["adapter"]) == ("X4", "alloc", MERGES)
    assert fields["says"] == "pages of an allocation"


@pytest.mark.parametrize(
    ("message", "observed", "says"),
    [
        ("bytes that the slots of node 2006 keep", "16", "bytes that the slots of node"),
        ("write_kv", "Failed(error='IndexError', message='index 25 is out of bounds')", "is out of bounds"),
        ("reset", 'Failed(error="KeyError", message="it\'s gone")', "it's gone"),
        (
            "reset",
            "Failed(error='KeyError', message='gone (line 3 of a.py, from there line 4 of b.py)')",
            "gone",
        ),
        ("reset", """Failed(error='KeyError', message="'it' (line 3 of a.py)")""", "'it'"),
        ("evictable_size", None, "evictable_size"),
    ],
)
def test_what_is_written_down_says_what_was_seen(message: str, observed: str | None, says: str) -> None:
    """Or a file that was written for one fault would hide others of its law and operation."""
    row = ViolationRow(
        law="X7", message=message, expected="done", observed=observed, config={}, step=1, steps=1, program="",
        file=None, rerun_shows_it=True, judge_shows_it=True, smallest=True, operation="reset",
    )  # fmt: skip
    adapter = AdapterRow("mine", "rows", Verdict.VIOLATED, (), (), (row,), ())
    (text,) = begin_deviations([adapter])
    assert msgspec.toml.decode(text)["mine-X7"]["says"] == says
