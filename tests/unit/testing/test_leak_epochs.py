"""Work done again and again."""

from __future__ import annotations

import pytest

from pymllm.instrument.leak_layers import Layer, Outcome
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


def test_too_few_epochs_are_refused() -> None:
    """X1: before the work is done once."""
    done: list[int] = []
    with pytest.raises(ValueError, match="at least 10, got 9"):
        run_epochs(lambda: done.append(1), epochs=9)
    assert done == []
