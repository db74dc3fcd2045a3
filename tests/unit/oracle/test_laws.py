"""The registry of laws."""

from __future__ import annotations

from pathlib import Path

import pytest

from pymllm.adapters.base import CAPABILITIES
from pymllm.history.operations import KINDS
from pymllm.oracle.laws import INVARIANTS, LAWS, SECTIONS, find_audit_fault, find_law, laws_of
from pymllm.oracle.laws.law import Found, Law, TextLaw, enter_in, law

# -- A law's text, taken apart -------------------------------------------------------------------------------


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

    def check(before: object, operation: object, seen: object) -> Found:
        return None

    check.__doc__ = text
    return law("Z1", page="slots", ways="so", kinds="slots prefix")(check)


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
    """A law's sections go by their names, in order."""
    assert list(make().sections.items()) == [
        ("Why", "Who reads it finds something else."),
        ("Caller", "Nothing."),
    ]


def test_what_a_law_is_about_is_told_with_what_it_takes() -> None:
    """Kinds; behind one what an adapter must claim there, an engine in words."""
    assert make().about == "`slots`, `prefix`"
    assert find_law("E5").about == "`rows`, `buffers`, `prefix` in an engine, `requests`"
    assert find_law("E6").about == "`prefix` in an engine, `requests` in an engine with `reserve`"
    assert "`slots` with `swa`, `rows`" in find_law("X8").about


def test_the_source_is_a_place_of_a_page() -> None:
    """Where a reader finds the text: a heading by its id."""
    assert make().source.rsplit("/", 1) == ["docs/specification", "slots.md#z1"]


# -- The registry of laws ------------------------------------------------------------------------------------


SPECIFICATION = Path(__file__).parents[3] / "docs" / "specification"

each_law = pytest.mark.parametrize("law", LAWS, ids=lambda law: law.id)


def test_ids_are_unique_and_complete() -> None:
    """Each law once, in the order of the specification's pages."""
    numbers = {"X": 10, "A": 7, "P": 5, "K": 2, "H": 3, "R": 11, "S": 7, "M": 8, "C": 9, "E": 6, "I": 16}
    expected = [f"{letter}{number}" for letter, last in numbers.items() for number in range(1, last + 1)]
    assert [law.id for law in LAWS] == expected


@each_law
def test_every_law_is_checked_in_two_ways(law: Law) -> None:
    """A check that nobody checks proves nothing."""
    assert len(law.ways) >= 2


@each_law
def test_every_law_can_be_read_and_placed(law: Law) -> None:
    """One short sentence, a page, kinds and capabilities that there are."""
    assert len(law.sentence) < 100
    assert (SPECIFICATION / f"{law.page}.md").is_file()
    assert set(law.kinds) <= set(KINDS)
    assert {part for need in law.needs for part in need.split("|")} <= set(CAPABILITIES)


@each_law
def test_every_law_has_its_whole_text(law: Law) -> None:
    """A sentence, the demand, the reason, the choices, the duties of a caller, and how the field does it."""
    assert law.text.partition("\n")[0].endswith(".")
    assert len(law.demands) > 100
    assert tuple(law.sections) == SECTIONS
    assert all(law.sections.values())


def test_a_law_is_found_in_either_case() -> None:
    """A law in small letters is found: r6 is R6."""
    assert find_law("r6") is find_law("R6")
    with pytest.raises(ValueError, match="no law 'R99'; there are X1, X2"):
        find_law("R99")


def test_a_law_is_claimed_with_all_its_capabilities() -> None:
    """One that is missing is enough: not claimed."""
    law = find_law("A7")
    assert law.is_claimed_by({"pool", "swa", "inspect"})
    assert not law.is_claimed_by({"pool"})


def test_a_law_of_what_is_kept_says_nothing_where_nothing_is() -> None:
    """A cache that keeps nothing has no tree to be well formed; its matches are judged all the same."""
    tree, match = find_law("R9"), find_law("R2")
    assert tree.applies_to({"page_size": 1}, frozenset())
    assert not tree.applies_to({"page_size": 1, "retains": False}, frozenset())
    assert match.applies_to({"page_size": 1, "retains": False}, frozenset())
    assert not find_law("S1").applies_to({"page_size": 1}, frozenset())


def test_a_law_of_tails_says_nothing_of_pages_of_one_token() -> None:
    """R1: every key has whole pages then; only who claims refusals can still be wrong about its slots."""
    assert find_law("R1").applies_to({"page_size": 2}, {"pool"})
    assert not find_law("R1").applies_to({"page_size": 1}, {"pool"})
    assert find_law("R1").applies_to({"page_size": 1}, {"pool", "refusals"})
    assert find_law("R2").applies_to({"page_size": 1}, {"pool"})


def test_a_law_of_splits_says_nothing_of_who_splits_no_node() -> None:
    """M3: what can never be tested is not claimed; M1 and M2 are."""
    claims = frozenset({"mamba", "inspect"})
    assert find_law("M3").applies_to({"page_size": 1}, claims)
    assert find_law("M3").applies_to({"page_size": 1, "splits": True}, claims)
    assert not find_law("M3").applies_to({"page_size": 1, "splits": False}, claims)
    assert find_law("M1").applies_to({"page_size": 1, "splits": False}, claims)


def test_every_kind_has_laws() -> None:
    """There is something to judge of each, and S laws are about prefix caches only."""
    assert all(laws_of(kind) for kind in KINDS)
    assert {kind for kind in KINDS if find_law("S4") in laws_of(kind)} == {"prefix"}


def test_every_invariant_is_made_of_laws() -> None:
    """Every invariant that users ask for by name is made of laws by id."""
    assert [find_law(id).id for laws in INVARIANTS.values() for id in laws] == [
        *("R6", "S6"),
        *("A1", "P1", "P5"),
        *("S1", "S4", "S5"),
        "M4",
    ]


def test_a_law_of_the_engine_is_claimed_with_an_engine() -> None:
    """E5: of a prefix cache that no engine drives nothing is said, of rows and buffers it always is."""
    padding = find_law("E5")
    assert padding.is_claimed_by((), "rows")
    assert padding.is_claimed_by({"engine"}, "prefix")
    assert not padding.applies_to({}, {"pool"}, "prefix")


def test_an_audit_names_laws_of_its_kind() -> None:
    """A context of requests stands on blocks, and may look at them, too."""
    assert find_audit_fault("prefix", ("R6", "X2")) is None
    assert find_audit_fault("requests", ("C4", "C8")) is None
    fault = find_audit_fault("blocks", ("C4", "C8"))
    assert fault is not None
    assert fault.startswith("names 'C8', which is no law of kind blocks; its laws are X1, ")
    assert "no law of kind rows" in str(find_audit_fault("rows", ("Z" * 10_000,)))
    assert len(str(find_audit_fault("rows", ("Z" * 10_000,)))) < 300


def test_a_law_of_no_kind_of_class_has_its_text_from_a_docstring() -> None:
    """Its sentence is the first line, as tables have it."""

    def v0() -> None:
        """An answer comes.

        Some day.
        """

    laws: dict[str, TextLaw] = {}
    assert enter_in(laws)(v0) is v0
    [law] = laws.values()
    assert (law.id, law.text, law.sentence) == ("V0", "An answer comes.\n\nSome day.", "an answer comes")
