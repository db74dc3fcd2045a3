"""Work done again and again."""

from __future__ import annotations

from typing import Any

import pytest

from pymllm.instrument.leaks import Layer, Outcome
from pymllm.testing.leak_epochs import run_epochs, why_unknown


def test_a_pool_that_loses_a_slot_each_time_leaks() -> None:
    """The layer is named, and how much an epoch loses."""
    lost: list[int] = []
    verdict = run_epochs(lambda: lost.extend([1, 2]), slots=lambda: len(lost))
    assert len(lost) == 24
    assert [it.layer for it in verdict.leaking] == [Layer.SLOTS]
    assert "leak of 2 slots per epoch" in str(verdict)


def test_a_pool_that_gets_everything_back_does_not() -> None:
    """One judged layer is enough to know something."""
    verdict = run_epochs(lambda: None, slots=lambda: 3, epochs=10)
    assert verdict.of(Layer.SLOTS).outcome is Outcome.NO_LEAK
    assert why_unknown(verdict) is None


def test_where_nothing_can_be_read_the_reasons_are_told() -> None:
    """A machine without a GPU holds nothing against anybody, and claims nothing."""
    verdict = run_epochs(lambda: None, device="GPU-of-nobody")
    assert not verdict.leaking
    assert "nobody said how to count slots" in str(why_unknown(verdict))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"work": None}, "work must be a function that is called for each epoch, got None"),
        ({"epochs": 9}, "at least 10, got 9"),
        ({"epochs": 12.0}, r"epochs must be a whole number, got 12.0"),
        ({"epochs": "12"}, r"epochs must be a whole number, got '12'"),
        ({"epochs": True}, r"epochs must be a whole number, got True"),
        ({"slots": 4}, r"slots must be a function that counts them, such as lambda: 0, got 4"),
    ],
)
def test_arguments_without_sense_are_refused(arguments: dict[str, Any], said: str) -> None:
    """X1: before the work is done once."""
    done: list[int] = []
    with pytest.raises((TypeError, ValueError), match=said):
        run_epochs(**({"work": lambda: done.append(1)} | arguments))
    assert done == []


@pytest.mark.parametrize("count", [None, "3", 2.5])
def test_slots_are_whole_numbers(count: object) -> None:
    """X1: a count that was forgotten is none."""
    with pytest.raises(TypeError, match=f"a whole number, got {count!r}"):
        run_epochs(lambda: None, slots=lambda: count)  # type: ignore[arg-type, return-value]
