"""What takes the place of what."""

from __future__ import annotations

import pytest

from pymllm.conformance.reduction import Program, Reduction, count_tokens, weigh
from pymllm.history.operations import AddRequest, Alloc, Evict, Free, Key, Match, Operation, Span
from tests.unit.tiny_player import TinyPlayer, found_in, reduction_in, reduction_of


def program(*operations: Operation, **config: int) -> Program:
    return Program(dict(config), operations)


@pytest.mark.parametrize(
    ("smaller", "larger"),
    [
        (program(Match(Key((9,) * 9))), program(Match(Key(())), Match(Key(())))),
        (program(Alloc(9), Alloc(9)), program(Alloc(1), Free((Span(1, 0, 1),)))),
        (program(Match(Key((7, 7)))), program(Match(Key((1, 1, 1))))),
        (program(AddRequest((7, 7))), program(AddRequest((1, 1, 1)))),
        (program(Match(Key((9,))), slots=1), program(Match(Key((1,))), slots=2)),
        (program(Match(Key((9,)))), program(Match(Key((1,), form="array")))),
        (program(Evict(3)), program(Evict(4))),
    ],
)
def test_what_matters_most_decides(smaller: Program, larger: Program) -> None:
    """Operations, references, tokens, pools, what is unusual, numbers."""
    assert weigh(smaller) < weigh(larger)


def test_only_what_is_smaller_is_played() -> None:
    """And nothing twice."""
    player = TinyPlayer(lambda program: Evict(2) in program.operations)
    start = Program({}, (Evict(2), Evict(3)))
    reduction = Reduction(player, start, found_in(start))
    assert not reduction.attempt((Evict(2), Evict(3)))
    assert not reduction.attempt((Evict(2), Evict(4)))
    assert player.played == []
    assert not reduction.attempt((Evict(3),))
    assert not reduction.attempt((Evict(3),))
    assert len(player.played) == 1
    assert reduction.attempt((Evict(2),))
    assert reduction.operations == (Evict(2),)
    assert [step.operation for step in reduction.found.history.steps] == [Evict(2)]


def test_another_configuration_can_be_tried() -> None:
    """What is not named stays."""
    reduction = reduction_in([Evict(1)], lambda it: it.config["slots"] in (5, 3), {"slots": 5, "pages": 2})
    assert reduction.attempt(reduction.operations, slots=3)
    assert reduction.program.config == {"slots": 3, "pages": 2}
    assert not reduction.attempt(reduction.operations, slots=2)


def test_an_empty_program_weighs_nothing() -> None:
    """Nothing is smaller."""
    assert weigh(program()) == (0, 0, 0, 0, 0, 0)
    assert reduction_of([], lambda them: True).attempt(()) is False


def test_tokens_of_a_history_are_counted() -> None:
    """Those of keys, and of prompts."""
    history = found_in(program(Match(Key((1, 2))), AddRequest((1,)), Evict(4))).history
    assert count_tokens(history) == 3
