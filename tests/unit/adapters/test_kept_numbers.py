"""Answers of a class that stay as they were, and arguments that come back unchanged (X5)."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from pymllm.adapters.kept_numbers import KeptNumbers
from pymllm.errors import InvariantViolation

MUTABLE: list[Callable[[list[int]], Any]] = [list, np.array, torch.tensor, lambda it: array("q", it)]


@pytest.mark.parametrize("make", MUTABLE)
def test_an_answer_that_changes_later_breaks_x5(make: Callable[[list[int]], Any]) -> None:
    """A changed answer is told with the call that gave it, the old numbers and the new ones."""
    kept, answer = KeptNumbers(), make([4, 5])
    kept.answered("alloc of step 1", answer, (4, 5))
    assert kept.look() == ("X5",)
    answer[1] = 9
    with pytest.raises(InvariantViolation, match="alloc of step 1 returned") as found:
        kept.look()
    assert (found.value.law, found.value.expected, found.value.observed) == ("X5", "(4, 5)", "(4, 9)")


@pytest.mark.parametrize("answer", [(4, 5), range(4, 6), np.int64(4), torch.arange(2000), [*range(2000)]])
def test_what_cannot_change_and_what_is_long_is_not_kept(answer: Any) -> None:
    """Nothing is tested by it."""
    kept = KeptNumbers()
    kept.answered("alloc of step 1", answer, tuple(np.atleast_1d(answer).tolist()))
    assert kept.look() == ()


def test_of_many_answers_the_last_ones_are_looked_at() -> None:
    """So that a step takes as long at the end of a program as at its beginning."""
    kept, answers = KeptNumbers(), [[it] for it in range(40)]
    for number, answer in enumerate(answers):
        kept.answered(f"alloc of step {number}", answer, (*answer,))
    answers[0][0] = -1
    assert kept.look() == ("X5",)
    answers[30][0] = -1
    with pytest.raises(InvariantViolation, match="alloc of step 30 returned"):
        kept.look()


def test_what_can_be_read_no_more_has_changed() -> None:
    """A tensor whose memory is gone raises, and that is shown."""
    kept, answer = KeptNumbers(), torch.tensor([4, 5])
    kept.answered("match of step 2", answer, (4, 5))
    answer.untyped_storage().resize_(0)
    with pytest.raises(InvariantViolation, match="match of step 2 returned"):
        kept.look()


def test_what_was_lent_must_come_back_as_it_was() -> None:
    """A lent list is compared as its call ends, even by an error, and at no other time."""
    kept, slots, inner = KeptNumbers(), [4, 5], [6]
    with kept.lending():
        kept.lend("free", slots, (4, 5))
    kept.lend("free", inner, (6,))
    inner[0] = slots[0] = 9
    assert (kept.look(), kept.look()) == (("X5",), ())
    with pytest.raises(IndexError), kept.lending():
        empty_and_pop(kept, slots)
    with kept.lending():
        kept.lend("free", inner, (9,))
    with pytest.raises(InvariantViolation, match="passed to free"):
        kept.look()


def empty_and_pop(kept: KeptNumbers, slots: list[int]) -> None:
    """Free slots, and fail."""
    kept.lend("free", slots, (*slots,))
    slots.clear()
    slots.pop()
