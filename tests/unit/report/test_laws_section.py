"""The table of laws."""

from __future__ import annotations

from pymllm.report.laws_section import make_laws_section, newest_searches
from tests.unit.report import samples
from tests.unit.report.looking import cards, cells, tables, texts


def test_a_table_has_a_column_for_each_implementation_wrong_ones_last() -> None:
    """One table for each kind; numbers are tests."""
    section = make_laws_section([samples.run(samples.verify())])
    assert tables(section) == {
        "rows: 3 laws, 2 implementations": [
            ["P2", "sentence of P2", "✓ 1,234", "✗ violated"],
            ["X1", "sentence of X1", "not claimed", "not about it"],
            ["X4", "sentence of X4", "✓ 7", "? unknown"],
        ]
    }
    assert section is not None
    assert [(tile.value, tile.name) for tile in section.tiles] == [
        ("2", "laws hold"),
        ("1", "laws violated"),
        ("1", "laws unknown"),
    ]


def test_a_violation_leads_to_its_program() -> None:
    """The cell to a card, the card to the file."""
    run = samples.run(samples.verify(), programs={"runs/faulty-x-P2-0.jsonl": samples.PROGRAM})
    section = make_laws_section([run])
    (cell,) = cells(section, "✗ violated")
    (card,) = cards(section)
    assert cell.href == f"#{card.id}"
    assert (card.file, card.lines) == ("faulty-x-P2-0.jsonl", samples.PROGRAM)
    facts = {fact.name: fact.value for fact in card.facts[:4]}
    assert facts == {
        "looked at": "row 1 <position 3>",
        "expected": "0",
        "observed": "1",
        "at": "step 4 of 5 (max_reqs 1, window None); the smallest found",
    }
    commands = [fact.value for fact in card.facts if fact.is_code]
    assert commands == [
        "pymllm rerun runs/faulty-x-P2-0.jsonl --adapter faulty-x",
        "pymllm judge runs/faulty-x-P2-0.jsonl",
    ]


def test_a_violation_says_what_shows_it_again_and_no_more() -> None:
    """Of one that a rerun does not show, the search; without a file, nothing to save."""
    row = samples.violation(
        "P2", file=None, rerun_shows_it=False, judge_shows_it=False, expected=None, observed=None, config={},
        smallest=False,
    )  # fmt: skip
    adapter = samples.adapter("faulty-x", "rows", [samples.law("P2", "violated")], violations=[row])
    (card,) = cards(make_laws_section([samples.run(samples.verify(adapter))]))
    assert card.file == ""
    assert [fact.value for fact in card.facts if fact.is_code] == [
        "pymllm verify --adapter faulty-x --law P2 --seed 3"
    ]
    at = next(fact.value for fact in card.facts if fact.name == "at")
    assert at == "step 4 of 5 (no configuration); perhaps not the smallest: the search was cut short"


def test_a_command_on_a_page_is_quoted() -> None:
    """A document may be anybody's; what runs from outside is named again."""
    name, law = "command:./x y", "P2; touch x"
    row = samples.violation(law, file="a b.jsonl", rerun_shows_it=True, judge_shows_it=False)
    searched = samples.violation("$(x)", file=None, rerun_shows_it=False, judge_shows_it=False)
    laws = [samples.law(law, "violated"), samples.law("$(x)", "violated")]
    adapter = samples.adapter(name, "rows", laws, violations=[row, searched])
    found = cards(make_laws_section([samples.run(samples.verify(adapter))]))
    assert [fact.value for card in found for fact in card.facts if fact.is_code] == [
        "pymllm rerun 'a b.jsonl' --adapter 'command:./x y'",
        "pymllm verify --adapter 'command:./x y' --law '$(x)' --seed 3",
    ]


def test_the_newest_search_of_an_implementation_counts() -> None:
    """In order of time, whatever the command was called."""
    old = samples.run(samples.verify(samples.adapter("rows", "rows", [samples.law("P2", "violated")])))
    new = samples.run(
        samples.verify(samples.adapter("rows", "rows", [samples.law("P2", "holds")]))
        | {"schema": "pymllm.compare"},
        time="2026-11-22T00:00:00Z",
    )
    (it,) = newest_searches([old, new])
    assert it.adapter.laws[0].verdict == "holds"
    assert cards(make_laws_section([old, new])) == []


def test_what_could_not_be_examined_is_told() -> None:
    """It has no laws and no kind, and must not be missing."""
    broken = samples.adapter(
        "my:Cache", None, [], problems=[{"message": "cannot be loaded", "file": "crash.jsonl"}]
    )
    section = make_laws_section([samples.run(samples.verify(broken))])
    assert tables(section) == {}
    assert texts(section) == [
        "my:Cache could not be examined to the end: cannot be loaded. The program until there: crash.jsonl."
    ]


def test_without_a_search_there_is_no_section() -> None:
    """It would be empty."""
    assert make_laws_section([samples.run(samples.faults())]) is None
