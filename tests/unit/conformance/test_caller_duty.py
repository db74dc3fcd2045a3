"""What makes no sense is seen before it is done."""

from __future__ import annotations

import pytest

from pymllm.adapters.registry import make_adapter
from pymllm.conformance.examiner import Examiner
from pymllm.conformance.shrink_trials import makes_sense
from pymllm.history.operations import (
    Alloc,
    Free,
    FreeSWA,
    Insert,
    Key,
    Match,
    MoveSWA,
    Operation,
    ReadRows,
    Span,
)

CONFIG = {"page_size": 1, "window": 4, "pool": "swa", "slots": 24, "swa_slots": 18}
DONE: list[Operation] = [
    Alloc(4),  # 1
    Insert(Key((1, 2)), (Span(1, 0, 2),)),  # 2
    FreeSWA((Span(1, 2, 3),)),  # 3
]


@pytest.fixture
def examiner() -> Examiner:
    examiner = Examiner(make_adapter("radix-window", dict(CONFIG)))
    for operation in DONE:
        examiner.do(operation)
    return examiner


@pytest.mark.parametrize(
    "operation",
    [
        Free((Span(1, 2, 4),)),
        FreeSWA((Span(1, 3, 4),)),
        MoveSWA((Span(1, 3, 4),), (Span(1, 2, 3),)),
        Insert(Key((1, 2, 3)), (Span(1, 0, 2), Span(1, 3, 4))),
        Insert(Key((1, 2)), None),
        Match(Key((5,))),
    ],
)
def test_what_is_the_callers_may_be_named(examiner: Examiner, operation: Operation) -> None:
    """So may what the cache has at the same place."""
    assert makes_sense(examiner.judge, operation)


@pytest.mark.parametrize(
    "operation",
    [
        Free((Span(1, 0, 1),)),
        Free((Span(1, 2, 3), Span(1, 2, 3))),
        Free((Span(0, 20, 21),)),
        Free((Span(9, 0, 1),)),
        FreeSWA((Span(1, 2, 3),)),
        MoveSWA((Span(1, 2, 3),), (Span(1, 3, 4),)),
        MoveSWA((Span(1, 3, 4),), (Span(1, 3, 4),)),
        Insert(Key((2, 1)), (Span(1, 0, 2),)),
        Insert(Key((8, 8)), (Span(1, 3, 4), Span(1, 3, 4))),
    ],
)
def test_what_is_not_may_not(examiner: Examiner, operation: Operation) -> None:
    """The judge would refuse to judge it, once it is done."""
    assert not makes_sense(examiner.judge, operation)


def test_of_other_kinds_everything_is_let_pass() -> None:
    """Their judges say afterwards what made no sense."""
    rows = Examiner(make_adapter("rows", {"max_reqs": 1, "max_context_len": 1}))
    assert makes_sense(rows.judge, ReadRows())
    config = {**CONFIG, "window": None, "pool": "none"}
    without = Examiner(make_adapter("radix", config))
    assert makes_sense(without.judge, Insert(Key((1,)), (Span(0, 5, 6),)))
