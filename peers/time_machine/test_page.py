"""The played results are of the table as it is, can be judged again, and stand on the page."""

from __future__ import annotations

import msgspec
import pytest

from peers.time_machine.bugs import read_bugs
from peers.time_machine.page import PAGE, render
from peers.time_machine.results import PROGRAMS, Result, read_results
from pymllm.history.files import load_history
from pymllm.oracle.judge import judge_steps

BUGS = {bug.id: bug for bug in read_bugs()}
RESULTS = read_results()
FOUND = [it for it in RESULTS.values() if it.found is not None]


def test_the_page_says_what_table_and_results_say() -> None:
    """docs/time-machine.md is up to date: python -m peers.time_machine page writes it anew."""
    assert PAGE.read_text(encoding="utf-8") == render(tuple(BUGS.values()), RESULTS)


@pytest.mark.parametrize("it", RESULTS.values(), ids=lambda it: it.id)
def test_a_result_is_of_a_row_as_it_is(it: Result) -> None:
    """Of one that can be reached, in its releases, and by a law that the row names, if it was found."""
    bug = BUGS[it.id]
    assert bug.reachable
    assert it.is_of(bug)
    assert it.found is None or (it.found.tells_apart and it.found.law in bug.expected)


def test_a_bug_that_was_missed_has_a_reason() -> None:
    """And no other bug has one."""
    assert {bug.id for bug in BUGS.values() if bug.missed} == RESULTS.keys() - {it.id for it in FOUND}


@pytest.mark.parametrize("it", FOUND, ids=lambda it: it.id)
def test_a_found_program_can_be_judged_again(it: Result) -> None:
    """The old release's answers break the law, in a program of a dozen operations at most.

    What a tree's own check finds (R9) shows in no outcome.
    """
    history = load_history(PROGRAMS / f"{it.id}.jsonl")
    _, found = judge_steps(history.header, history.steps)
    assert it.found is not None
    assert (found[1].law if found else "R9") == it.found.law
    assert len(history.steps) == it.found.operations <= 12


def test_no_program_is_left_over() -> None:
    """Each is of a bug that was found."""
    assert {path.stem for path in PROGRAMS.iterdir()} == {it.id for it in FOUND}


def test_every_bug_stands_on_the_page_once() -> None:
    """Found, missed, not played yet, or not reachable: the heading above it says which."""
    found = FOUND[0]
    missed = next(bug for bug in BUGS.values() if bug.reachable and bug.id != found.id)
    result = msgspec.structs.replace(found, id=missed.id, found=None)
    reason = msgspec.structs.replace(missed, missed="nobody looked at the other end")
    bugs = [reason if bug is missed else bug for bug in BUGS.values()]
    page = render(bugs, {found.id: found, missed.id: result})
    parts = dict(part.split("\n", 1) for part in page.split("\n## ")[1:])
    assert "nobody looked at the other end" in parts["Missed"]
    for bug in bugs:
        titles = [title for title, text in parts.items() if f"| {bug.title} (" in text]
        left = "Not played yet" if bug.reachable else "Not reachable"
        assert titles == [{found.id: "Found", missed.id: "Missed"}.get(bug.id, left)]
    reachable = sum(bug.reachable for bug in bugs)
    assert f"**Found 1 of {reachable} reachable bugs**" in page


def test_a_page_tells_what_a_fixed_release_still_does() -> None:
    """Its search breaks the law otherwise, the program breaks another one, or cannot go on."""
    it = FOUND[0]
    assert it.found is not None

    def page(found: dict[str, str], laws: tuple[str, ...] = ()) -> str:
        changed = msgspec.structs.replace(
            it,
            found=msgspec.structs.replace(it.found, **found),
            fixed=tuple(msgspec.structs.replace(search, laws=laws) for search in it.fixed),
        )
        return render(tuple(BUGS.values()), {it.id: changed})

    assert "| verify | silent |" in page({})
    loud = page({}, (it.found.law,))
    assert f"| the program is silent; others break {it.found.law}, by another bug |" in loud
    assert "; in 1 of these, searches break the same law by other programs." in loud
    assert "No program breaks its law in the fixed release." in page({})
    assert "| silent; the program breaks X9 there |" in page({"fixed": "X9"})
    assert "| silent; the program cannot go on there |" in page({"fixed_ends": "no such node"})
