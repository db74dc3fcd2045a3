"""What a context knows of a request: its tokens, its next chunk, and what may be read into it."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pymllm.core.inference.contexts.live_request import (
    LiveRequest,
    Region,
    check_next_tokens,
    read_prompt,
    refuse_batch,
)


def make_live(**changes: Any) -> LiveRequest:
    return LiveRequest(object(), np.arange(10, 15, dtype=np.uint32), [], [], **changes)


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        (0, 5, [10, 11, 12, 13, 14]),
        (2, 4, [12, 13]),
        (3, 7, [13, 14, 90, 91]),
        (5, 6, [90]),
        (6, 8, [91, 92]),
    ],
)
def test_tokens_run_from_the_prompt_into_what_was_generated(
    start: int, stop: int, expected: list[int]
) -> None:
    """C3: a block may have tokens of both."""
    live = make_live(generated=[90, 91, 92])
    found = live.tokens(start, stop)
    assert found.tolist() == expected
    assert found.dtype == np.uint32


@pytest.mark.parametrize(
    ("computed", "skip", "limit", "expected"),
    [(0, 0, None, 5), (0, 4, None, 5), (0, 2, 1, 3), (3, 0, 9, 2), (2, 0, 2, 2)],
)
def test_a_chunk_counts_what_it_skips(computed: int, skip: int, limit: int | None, expected: int) -> None:
    """Reference: the chunk's length is before skipping, while a limit is on what is computed."""
    assert make_live(computed=computed, skip=skip).plan_chunk(limit) == expected


def test_a_prompt_is_done_when_all_of_it_is_computed() -> None:
    """E4: the first next token comes with its last."""
    assert not make_live(computed=4).is_prefilled
    assert make_live(computed=5).is_prefilled
    assert make_live().region is Region.WAITING


@pytest.mark.parametrize(
    "tokens",
    [[1, 2, 2**32 - 1], (1, 2, 2**32 - 1), array("q", [1, 2, 2**32 - 1]), torch.tensor([1, 2, 2**32 - 1])],
)
def test_a_prompt_may_be_anything_with_tokens(tokens: Any) -> None:
    """K1: and is copied, so nobody changes it later."""
    prompt = read_prompt(SimpleNamespace(prompt_tokens=tokens))
    assert prompt.tolist() == [1, 2, 2**32 - 1]


@pytest.mark.parametrize(
    ("tokens", "error"),
    [
        *[
            ([], ValueError),
            ([-1], ValueError),
            ([1.5], TypeError),
            ([(1, 2)], ValueError),
            (None, TypeError),
        ],
        *[([(1,)], ValueError), ("12", TypeError), (5, TypeError)],
    ],
)
def test_a_prompt_that_is_none_is_refused(tokens: Any, error: type[Exception]) -> None:
    """X1, E4: a request computes at least one token."""
    with pytest.raises(error):
        read_prompt(SimpleNamespace(prompt_tokens=tokens))


@pytest.mark.parametrize("batch", [torch.ones((1, 3), dtype=torch.int64), np.ones((3, 1), int), [[1, 2, 3]]])
def test_a_batch_is_no_prompt(batch: Any) -> None:
    """K1, X1: whoever counts or reads the tokens of a prompt refuses a batch and says what to give."""
    for read in (refuse_batch, lambda given: read_prompt(SimpleNamespace(prompt_tokens=given))):
        with pytest.raises(ValueError, match=r"prompt_tokens has 2 dimensions.*\(prompt_tokens\[0\]\)"):
            read(batch)


def test_next_tokens_are_looked_at_where_they_are_used() -> None:
    """A chunk that does not end its prompt has none."""
    assert check_next_tokens([7, None, 2**32 - 1], [True, False, True]) == [7, 0, 2**32 - 1]
    assert check_next_tokens([], []) == []


@pytest.mark.parametrize(
    ("tokens", "error"),
    [([1], ValueError), ([1, None], TypeError), ([1, -1], ValueError), ([1, 2**32], ValueError)],
)
def test_next_tokens_that_are_none_are_refused(tokens: list[Any], error: type[Exception]) -> None:
    """X1."""
    with pytest.raises(error, match="next token"):
        check_next_tokens(tokens, [True, True])
