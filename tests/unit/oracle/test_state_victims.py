"""What an eviction from a hybrid cache takes."""

from __future__ import annotations

import pytest

from pymllm.oracle.prefix_model import PrefixModel
from pymllm.oracle.prefix_pages import Hold, Path, Space
from pymllm.oracle.state_ends import StateEnds
from pymllm.oracle.state_victims import is_state_eviction_explained, plan_state_eviction

STEM, LEFT, RIGHT = (1, 2), (1, 2, 3, 4), (1, 2, 5)


def path(tokens: tuple[int, ...]) -> Path:
    return Path(Space(), tokens)


def paths(*tokens: tuple[int, ...]) -> set[Path]:
    return {path(each) for each in tokens}


def make(*states: tuple[int, ...], held: tuple[int, ...] | None = None) -> tuple[PrefixModel, StateEnds]:
    """Two branches of a stem, the left one older, with states at the ends of some prefixes."""
    ends = StateEnds()
    model = PrefixModel(1, states=ends)
    for key in (LEFT, RIGHT):
        model.commit_insert(model.plan_insert(path(key), range(len(key))))
    ends.slots |= {path(tokens): 10 + at for at, tokens in enumerate(states)}
    if held is not None:
        model.commit_lock(1, Hold(path(held), 0))
    return model, ends


@pytest.mark.parametrize(
    ("states", "held", "tokens", "wanted", "removed", "freed"),
    [
        ((LEFT, RIGHT), None, 0, 0, (), ()),
        ((LEFT, RIGHT), None, 1, 0, (LEFT, LEFT[:3]), (LEFT,)),
        ((LEFT, RIGHT), None, 3, 0, (LEFT, LEFT[:3], RIGHT, STEM, (1,)), (LEFT, RIGHT)),
        ((LEFT, RIGHT, STEM), None, 3, 0, (LEFT, LEFT[:3], RIGHT), (LEFT, RIGHT)),
        ((LEFT, RIGHT, STEM), None, 4, 0, (LEFT, LEFT[:3], RIGHT, STEM, (1,)), (LEFT, RIGHT, STEM)),
        ((LEFT, RIGHT), LEFT, 9, 0, (RIGHT,), (RIGHT,)),
        ((LEFT, RIGHT), STEM, 9, 0, (LEFT, LEFT[:3], RIGHT), (LEFT, RIGHT)),
        ((LEFT, RIGHT), None, 0, 1, (LEFT, LEFT[:3]), (LEFT,)),
        ((STEM, RIGHT), None, 0, 1, (), (STEM,)),
        ((STEM, RIGHT), None, 0, 2, (RIGHT,), (STEM, RIGHT)),
        ((STEM, RIGHT, LEFT), None, 0, 9, (*(LEFT, LEFT[:3], RIGHT, STEM), (1,)), (LEFT, STEM, RIGHT)),
        ((STEM,), STEM, 0, 1, (), ()),
        ((STEM,), RIGHT, 0, 1, (), (STEM,)),
        ((LEFT, RIGHT), None, 1, 1, (LEFT, LEFT[:3]), (LEFT,)),
        ((LEFT, RIGHT), None, 1, 2, (LEFT, LEFT[:3], RIGHT, STEM, (1,)), (LEFT, RIGHT)),
    ],
)
def test_what_goes_is_determined(
    states: tuple[tuple[int, ...], ...],
    held: tuple[int, ...] | None,
    tokens: int,
    wanted: int,
    removed: tuple[tuple[int, ...], ...],
    freed: tuple[tuple[int, ...], ...],
) -> None:
    """R5, M5: leaves by recency, then states; what is left without a state and a child goes too."""
    model, ends = make(*states, held=held)
    taken = plan_state_eviction(model, ends, tokens, wanted)
    assert taken.removed == tuple(path(each) for each in removed)
    assert taken.states == paths(*freed)
    assert taken.full == len(removed)
    assert len(model.pages) == 5
    assert len(ends.slots) == len(states)


def test_pages_that_follow_are_told_from_those_chosen() -> None:
    """M5: a page goes by itself, or because nothing is below it any more."""
    taken = plan_state_eviction(*make(LEFT, RIGHT), 3, 0)
    assert taken.cascaded == paths(LEFT[:3], STEM, (1,))


@pytest.mark.parametrize(
    ("removed", "freed", "tokens", "wanted", "is_told"),
    [
        ((), (), 0, 0, True),
        ((LEFT, LEFT[:3]), (LEFT,), 1, 0, True),
        ((LEFT, LEFT[:3], RIGHT), (LEFT, RIGHT), 1, 0, False),
        ((LEFT, LEFT[:3], RIGHT), (LEFT, RIGHT), 2, 0, True),
        ((RIGHT,), (RIGHT,), 0, 1, True),
        ((), (STEM,), 0, 1, True),
        ((), (STEM,), 0, 0, False),
        ((RIGHT,), (RIGHT, STEM), 0, 1, False),
    ],
)
def test_the_last_victim_was_still_needed(
    removed: tuple[tuple[int, ...], ...],
    freed: tuple[tuple[int, ...], ...],
    tokens: int,
    wanted: int,
    is_told: bool,
) -> None:
    """R5, M5: in any order, one leaf or one state fewer would have been too few."""
    model, _ = make(LEFT, RIGHT, STEM)
    assert is_state_eviction_explained(model, paths(*removed), paths(*freed), tokens, wanted) is is_told
