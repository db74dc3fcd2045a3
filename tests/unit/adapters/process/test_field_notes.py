"""What the fields of a record mean."""

from __future__ import annotations

from pymllm.adapters.process.field_notes import field_notes, with_notes
from pymllm.history.operations import Fault, Insert, Reset, Unlock


class Pair:
    """Two numbers.

    Parameters
    ----------
    left, right : int
        Each of ``both``,
        from 1.
    third
        No type: nothing.

    Notes
    -----
    nothing : here
        Of it.
    """


def test_each_field_has_the_words_of_its_record() -> None:
    """Those that are told together share them; other sections say nothing of fields."""
    assert field_notes(Pair) == {
        "left": "Each of both, from 1.",
        "right": "Each of both, from 1.",
        "third": "No type: nothing.",
    }


def test_operations_say_what_a_program_cannot_guess() -> None:
    """Which calls may fail, and whose node is passed."""
    assert "calls the cache or the allocator, which must be refused" in field_notes(Fault)["call"]
    assert field_notes(Fault)["nth"] == "Which of these calls, from 1."
    assert field_notes(Unlock)["at"] == "Passes the node of another Match, Insert or Lock instead."
    assert field_notes(Insert)["prev_prefix_len"] == field_notes(Insert)["swa_evicted_seqlen"]


def test_a_record_that_says_nothing_of_its_fields_has_none() -> None:
    """And a class without a docstring."""
    assert field_notes(Reset) == {}
    assert field_notes(type("Bare", (), {})) == {}


def test_a_schema_keeps_everything_else() -> None:
    """What there is no word on is as it was."""
    fields = {"left": {"type": "integer"}, "say": {"const": "x"}}
    assert with_notes({"type": "object", "properties": fields}, Pair) == {
        "type": "object",
        "properties": {
            "left": {"type": "integer", "description": "Each of both, from 1."},
            "say": {"const": "x"},
        },
    }
    assert fields == {"left": {"type": "integer"}, "say": {"const": "x"}}
