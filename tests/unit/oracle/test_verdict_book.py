"""What the judge says and counts is what was approved: `verdicts` has the programs and the words."""

from __future__ import annotations

import pytest

from pymllm.history.operations import KINDS
from tests.unit.oracle.verdict_book import kinds_before, read_book, read_corpus, tell

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
