"""Slots of cached states: who gets one, who loses one, and who goes without."""

from __future__ import annotations

from pymllm.oracle.context_slots import ContextSlots, Kept, Leaving, priority


def test_prompt_ends_go_first_then_the_deepest_then_the_lower_row() -> None:
    """C7: and each block once."""
    leaving = [
        Leaving(True, -8, 0, 4),
        Leaving(True, -4, 0, 2),
        Leaving(True, -8, 1, 5),
        Leaving(False, -2, 1, 1),
        Leaving(False, -6, 0, 4),
    ]
    assert priority(leaving) == [4, 1, 5, 2]


def test_a_commit_fills_what_is_free_and_then_takes_from_released_blocks() -> None:
    """C5, C6: the oldest first, the lowest block among equals; blocks that have a slot keep it."""
    slots = ContextSlots(4)
    slots.of_block.update({7: 0, 8: 1, 9: 2})
    assert slots.free == 1
    assert slots.commit([1, 9], {}) == Kept((1,), (), ())
    assert slots.commit([1, 2, 9], {8: 5, 7: 5}) == Kept((1, 2), (7,), ())
    assert slots.commit([1, 2, 3, 4], {8: 4, 7: 5}) == Kept((1, 2, 3), (8, 7), (4,))
    slots.drop([7, 1])
    assert slots.of_block == {8: 1, 9: 2}
