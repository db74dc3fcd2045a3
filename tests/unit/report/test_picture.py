"""A program as a picture: what is in it, and that nothing of a stranger's file gets out of it."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from msgspec.structs import replace

from pymllm.errors import InvariantViolation, ProgramError
from pymllm.history.files import History, Step, dump_history, load_histories
from pymllm.history.operations import Alloc, Free, Span
from pymllm.history.outcomes import Done, Inspected, Outcome, Slots
from pymllm.report.picture import MOST_CELLS, MOST_LINES, MOST_STEPS, draw_program, picture_of

FOLDER = Path(__file__).parents[3] / "docs" / "specification" / "programs"
PROGRAMS = {name: it for path in sorted(FOLDER.iterdir()) for name, it in load_histories(path).items()}
SVG = "{http://www.w3.org/2000/svg}"


def words_of(picture: str) -> list[str]:
    return ["".join(it.itertext()) for it in ET.fromstring(picture).iter(f"{SVG}text")]


def cells_of(picture: str, tone: str) -> list[str]:
    """Return the title of each cell of a tone."""
    return [
        str(it.findtext(f"{SVG}title"))
        for it in ET.fromstring(picture).iter(f"{SVG}rect")
        if f"pp-{tone}" in it.get("class", "").split() and len(it)
    ]


def slots(*steps: Step, pages: int = 4, adapter: str = "token-slots") -> History:
    header = PROGRAMS["A1-keeps"].header
    config = {**header.config, "page_size": 1, "pages": pages}
    return History(replace(header, config=config, adapter=adapter), list(steps))


def step(number: int) -> Step:
    """Allocate a slot in odd steps, and give it back in even ones."""
    if number % 2:
        return Step(number, Alloc(1), Outcome(Slots(((number + 1) // 2,))))
    return Step(number, Free((Span(number - 1, 0, 1),)), Outcome(Done()))


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_of_the_specification_can_be_drawn(name: str) -> None:
    """One that breaks a law says which; X3 shows only in a second run."""
    history = PROGRAMS[name]
    words = words_of(draw_program(history))
    law, _, how = name.partition("-")
    assert any(f"violates {law}:" in line for line in words) is (how == "breaks" and law != "X3")
    assert {str(it.number) for it in history.steps} <= set(words)


def test_owners_and_trees_are_those_of_each_step() -> None:
    """R6: allocated, cached, locked; then an eviction takes what is locked."""
    picture = draw_program(PROGRAMS["R6-breaks"])
    words = words_of(picture)
    assert cells_of(picture, "caller") == ["slot 1: in the caller's hands"]
    assert cells_of(picture, "cache") == ["slot 1: the cache's, at the end of [1]"]
    assert cells_of(picture, "held") == ["slot 1: the cache's, locked, at the end of [1]"] * 2
    assert words.index("the tree at first") < words.index("empty") < words.index("the tree after step 2")
    assert words[words.index("before the violation") - 1 :][:2] == [
        "the tree after step 3",
        "before the violation",
    ]
    assert "[1] · slots 1 · locks 1" in words
    assert "expected none, observed [(1,)]" in words


@pytest.mark.parametrize(
    ("name", "after"),
    [
        ("R6-breaks", ["after the violation", "without what was freed", "empty"]),
        ("R10-breaks", ["after the violation", "as it was inspected", "[1] · slots 1", "[1] · slots 1"]),
        ("R2-breaks", ["The tree after the violation is not known: the outcome does not show it."]),
    ],
)
def test_the_tree_after_a_violation_is_what_the_outcome_shows(name: str, after: list[str]) -> None:
    """The picture ends with the tree that the outcome shows, or with words that the tree is unknown."""
    words = words_of(draw_program(PROGRAMS[name]))
    assert words[words.index(after[0]) :] == after


def test_a_tree_that_makes_no_sense_is_drawn_all_the_same() -> None:
    """A file may be anybody's: one id for all nodes, or each below the one before, ends somewhere."""
    history = PROGRAMS["R10-breaks"]
    last = history.steps[-1]
    assert last.outcome is not None
    assert isinstance(last.outcome.result, Inspected)
    (view, *_) = last.outcome.result.nodes
    for ids in ([7] * 5_000, range(5_000)):
        nodes = tuple(replace(view, id=id, parent=id - 1 if id else None) for id in ids)
        outcome = replace(last.outcome, result=Inspected(nodes))
        steps = [*history.steps[:-1], Step(last.number, last.operation, outcome)]
        words = words_of(draw_program(History(history.header, steps)))
        assert "as it was inspected" in words


def test_what_the_outcomes_do_not_show_can_be_told() -> None:
    """A violation that was seen by running something twice."""
    history = slots(step(1))
    assert not any("violates" in line for line in words_of(draw_program(history)))
    words = words_of(draw_program(history, InvariantViolation("X3", "run again", expected="1", observed="2")))
    assert "expected 1, observed 2" in words
    assert words[0].startswith("token-slots violates X3: ")


def test_a_long_program_and_a_large_pool_stay_a_picture() -> None:
    """The last steps, and the first slots."""
    history = slots(*map(step, range(1, 301)), pages=100_000)
    picture = draw_program(history)
    words = words_of(picture)
    assert f"{300 - MOST_STEPS} steps before these" in words
    assert "300" in words
    assert str(300 - MOST_STEPS) not in words
    assert len(cells_of(picture, "caller") + cells_of(picture, "free")) == MOST_STEPS * MOST_CELLS


def test_words_of_a_file_stay_words() -> None:
    """A name is somebody else's, and a page shows the picture as it is."""
    name = '"><script>alert(1)</script>&'
    picture = draw_program(slots(step(1), adapter=name))
    assert "<script" not in picture
    assert any(name in line for line in words_of(picture))


def test_a_program_that_was_not_run_has_no_picture() -> None:
    """It says at which step."""
    with pytest.raises(ProgramError, match="step 2: it has no outcome"):
        draw_program(slots(step(1), Step(2, Alloc(1))))


def test_a_card_of_the_page_has_the_picture_of_a_short_program() -> None:
    """A long program, or a text that is no program, has no picture, and the page is made all the same."""
    lines = list(dump_history(PROGRAMS["R6-breaks"]))
    assert picture_of(lines) == draw_program(PROGRAMS["R6-breaks"])
    assert picture_of([*lines, *[""] * MOST_LINES]) == ""
    assert picture_of(['{"format": "pymllm-history"}']) == picture_of([]) == ""
