"""Programs as Python text."""

from __future__ import annotations

import pytest

from pymllm.conformance.program import run_program
from pymllm.conformance.program_text import write_program, write_record
from pymllm.errors import InvariantViolation
from pymllm.history.files import Header, History, Step
from pymllm.history.operations import AllocRows, FreeRow, Insert, Key, Merge, Span, Unlock, WriteRow
from pymllm.history.outcomes import Effect, Evicted, Outcome, Slots


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (Merge(), "Merge()"),
        (Unlock(3, token=0), "Unlock(3, token=0)"),
        (
            Insert(Key(((1, 2),), "a"), (Span(1, 0, 1),)),
            "Insert(Key(((1, 2),), extra_key='a'), slots=(Span(1, 0, 1),))",
        ),
        (Effect("callback", node=3, sizes={"a": 1}), "Effect('callback', node=3, sizes={'a': 1})"),
        ((), "()"),
    ],
)
def test_a_record_is_written_without_its_defaults(record: object, text: str) -> None:
    """The text is an expression whose value is the record."""
    assert write_record(record) == text
    assert eval(text, {kind.__name__: kind for kind in (Effect, Insert, Key, Merge, Span, Unlock)}) == record


def test_a_program_says_what_came_of_each_step() -> None:
    """One line per step, its outcome beside it."""
    steps = [
        Step(1, AllocRows(2), Outcome(Slots((1, 2)))),
        Step(2, FreeRow(Span(1, 0, 1)), Outcome(Evicted(4), (Effect("free", (4, 5)),))),
        Step(3, WriteRow(Span(1, 1, 2), 0, 1, (7,)), Outcome(Slots(tuple(range(99))))),
    ]
    lines = write_program(History(Header("rows", "rows", {"max_reqs": 2}), steps)).splitlines()
    assert lines[:8] == [
        "from pymllm.conformance.program import run_program",
        "from pymllm.history.operations import AllocRows, FreeRow, Span, WriteRow",
        "",
        "run_program(",
        "    'rows',",
        "    {'max_reqs': 2},",
        "    [",
        "        AllocRows(2),  # 1: Slots((1, 2))",
    ]
    assert lines[8] == "        FreeRow(Span(1, 0, 1)),  # 2: Evicted(4), Effect('free', slots=(4, 5))"
    assert lines[9].endswith("...")
    assert lines[10:] == ["    ],", ")"]


def test_numbers_with_gaps_are_written_down() -> None:
    """References stay right; a step that was not run says so."""
    text = write_program(History(Header("rows", "rows"), [Step(4, AllocRows(2)), Step(7, AllocRows(1))]))
    assert (
        "    {\n        4: AllocRows(2),  # 4: not run\n        7: AllocRows(1),  # 7: not run\n    },\n"
        in text
    )


def test_an_empty_program_is_a_program() -> None:
    """Nothing is imported that is not used."""
    text = write_program(History(Header("rows", "rows")))
    assert text.splitlines()[:2] == ["from pymllm.conformance.program import run_program", ""]
    assert "    [\n    ],\n" in text


def test_a_pasted_program_breaks_the_same_law(tiny: str) -> None:
    """P2: what is printed runs."""
    program = [AllocRows(1), WriteRow(Span(1, 0, 1), 0, 1, (7,)), FreeRow(Span(1, 0, 1)), AllocRows(0)]
    history = run_program(f"{tiny}:TinyRows", {"max_reqs": 1, "max_context_len": 2}, program)
    text = write_program(history).replace("TinyRows", "KeepsEntries").replace("AllocRows(0)", "ReadRows()")
    text = text.replace("import AllocRows", "import AllocRows, ReadRows")
    with pytest.raises(InvariantViolation) as caught:
        exec(text, {})
    assert caught.value.law == "P2"
