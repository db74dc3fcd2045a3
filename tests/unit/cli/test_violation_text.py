"""How a broken law is put into words."""

from __future__ import annotations

from pymllm.cli.violation_text import again_lines, explain
from pymllm.conformance.finding import Finding
from pymllm.errors import InvariantViolation
from pymllm.history.files import Header, History, Step
from pymllm.history.operations import Clear

HISTORY = History(Header("rows", "rows", {"max_reqs": 3, "store": "a\nb"}), [Step(7, Clear())])
VIOLATION = InvariantViolation("P2", "row 1", expected="0", observed="7")


def test_a_violation_is_explained_line_by_line() -> None:
    """What was looked at, expected, observed, and at which step of which program."""
    assert explain(VIOLATION, HISTORY) == [
        "    looked at  row 1",
        "    expected   0",
        "    observed   7",
        "    at         step 7, in a program of 1 step (max_reqs 3, store a\\nb)",
    ]


def test_what_is_not_known_is_left_out() -> None:
    """A walk from inside may have nothing to set side by side; a program may be empty."""
    lines = explain(InvariantViolation("P2", "a hole"), History(Header("rows", "rows")))
    assert lines == [
        "    looked at  a hole",
        "    at         step 0, in a program of 0 steps (no configuration)",
    ]


def test_only_commands_that_show_it_again_are_named() -> None:
    """A name that a shell would take apart is quoted."""
    both = again_lines(Finding(VIOLATION, HISTORY, True, True), "rows", "my runs/a.jsonl", 3)
    assert both == [
        "    again      pymllm rerun 'my runs/a.jsonl' --adapter rows",
        "               pymllm judge 'my runs/a.jsonl'",
    ]
    inside = again_lines(Finding(VIOLATION, HISTORY, True, False), "rows", "a.jsonl", 3)
    assert inside == ["    again      pymllm rerun a.jsonl --adapter rows"]
    (engine,) = again_lines(Finding(VIOLATION, HISTORY, False, False), "rows", "a.jsonl", 3)
    assert engine.startswith("    again      pymllm verify --adapter rows --law P2 --seed 3")
    assert again_lines(Finding(VIOLATION, HISTORY, True, True), "rows", None, 3) == []
