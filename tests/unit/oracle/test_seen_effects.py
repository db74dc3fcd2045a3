"""Effects, sorted by what was called."""

from __future__ import annotations

import pytest

from pymllm.errors import ProgramError
from pymllm.history.outcomes import Effect
from pymllm.oracle.seen_effects import sort_effects


def test_effects_are_sorted_and_their_order_kept() -> None:
    """X2: what was called, in order, and the slots of all calls together."""
    callback = Effect("callback", node=3)
    effects = (
        Effect("move_swa", (1, 2), (3, 4)),
        Effect("free", (5,)),
        Effect("free", (6,)),
        Effect("free_swa", (7,)),
        Effect("free_state", (8,)),
        callback,
    )
    seen = sort_effects(effects)
    assert seen.calls == ["move_swa", "free", "free", "free_swa", "free_state", "callback"]
    assert (seen.freed, seen.halves, seen.moves) == ([5, 6], [7], {1: 3, 2: 4})
    assert (seen.states, seen.callbacks) == ([8], [callback])


@pytest.mark.parametrize("effect", [Effect("fry", (1,)), Effect("move_swa", (1, 2), (3,))])
def test_what_is_no_effect_has_no_meaning(effect: Effect) -> None:
    """X2: an adapter's mistake is not the implementation's."""
    with pytest.raises(ProgramError, match="no effect"):
        sort_effects((effect,))
