"""Verdicts: the heavier one prevails, and what the judge says of the approved programs."""

from __future__ import annotations

import itertools

import pytest

from pymllm.history.operations import KINDS
from pymllm.oracle.verdicts import Verdict, merge_verdicts
from tests.unit.oracle.verdict_book import kinds_before, read_book, read_corpus, tell

# -- Verdicts: the heavier one prevails ----------------------------------------------------------------------


HOLDS, VIOLATED, UNKNOWN, NOT_CLAIMED = Verdict.HOLDS, Verdict.VIOLATED, Verdict.UNKNOWN, Verdict.NOT_CLAIMED


@pytest.mark.parametrize(
    ("verdicts", "merged"),
    [
        ([], NOT_CLAIMED),
        ([NOT_CLAIMED, HOLDS], HOLDS),
        ([HOLDS, UNKNOWN], UNKNOWN),
        ([HOLDS, UNKNOWN, VIOLATED], VIOLATED),
    ],
)
def test_the_heavier_verdict_prevails(verdicts: list[Verdict], merged: Verdict) -> None:
    """Violated outranks unknown outranks holds, in any order."""
    assert {merge_verdicts(order) for order in itertools.permutations(verdicts)} == {merged}


def test_exit_statuses_are_those_of_the_command_line() -> None:
    """0 holds, 1 violated, 3 unknown; 2 is usage and no verdict."""
    assert {verdict: verdict.exit_status for verdict in Verdict} == {
        HOLDS: 0,
        NOT_CLAIMED: 0,
        VIOLATED: 1,
        UNKNOWN: 3,
    }


# -- What the judge says and counts is what was approved: `verdicts` has the programs and the words ----------


CORPUS = read_corpus()
BOOK = read_book()


@pytest.mark.parametrize("name", CORPUS)
def test_the_judge_says_and_counts_what_was_approved(name: str) -> None:
    """X3: of a program and of each small change of it; if it is meant, write the book anew."""
    said = tell(name, CORPUS[name], kinds_before(name, BOOK))
    assert said.splitlines() == BOOK[name].splitlines()


def test_the_book_is_of_these_programs_and_of_every_kind() -> None:
    """No page is left over, and no kind of implementation is left out."""
    assert list(BOOK) == list(CORPUS)
    assert {name.rpartition("-")[0] for name in CORPUS} == set(KINDS)


def test_no_program_of_the_corpus_is_accused() -> None:
    """What sound implementations did breaks no law."""
    assert {name for name, text in BOOK.items() if "\nrefused: no\n" not in text} == set()
