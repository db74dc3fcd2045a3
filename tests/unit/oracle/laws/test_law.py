"""A law's text, taken apart."""

from __future__ import annotations

import pytest

from pymllm.oracle.laws.law import Law, law

TEXT = """
    KV stays where it is.

    A slot must not move.

    - Nor a page.

    Why
    ---
    Who reads it finds something else.

    Caller
    ------
    Nothing.
    """


def make(text: str = TEXT) -> Law:
    """A law of two kinds."""
    return law("Z1", text, page="slots", ways="so", kinds="slots prefix")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("KV stays where it is.", "KV stays where it is"),
        ("Every leaf is alive.", "every leaf is alive"),
        ("A state has one owner.", "a state has one owner"),
    ],
)
def test_the_first_line_is_the_sentence_of_tables(line: str, sentence: str) -> None:
    """Without its full stop, and in lower case unless it begins with an abbreviation."""
    assert make(f"{line}\n\nMore.").sentence == sentence


def test_what_is_demanded_ends_before_the_first_section() -> None:
    """Without the sentence, indented no more."""
    assert make().demands == "A slot must not move.\n\n- Nor a page."


def test_sections_go_by_their_names() -> None:
    """Those that there are, in order."""
    assert list(make().sections.items()) == [
        ("Why", "Who reads it finds something else."),
        ("Caller", "Nothing."),
    ]


def test_the_source_is_a_place_of_a_page() -> None:
    """Where a reader finds the text: a heading by its id."""
    assert make().source.rsplit("/", 1) == ["docs/specification", "slots.md#z1"]
