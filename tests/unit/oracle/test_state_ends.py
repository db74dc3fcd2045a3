"""Which pages end with a state."""

from __future__ import annotations

from pymllm.oracle.prefix_pages import Hold, Path, Space
from pymllm.oracle.state_ends import StateEnds

ONE, TWO = Path(Space(), (1,)), Path(Space(), (1, 2))
HOLDS = {7: Hold(TWO, 0), 8: Hold(TWO, 0), 9: Hold(ONE, 0)}


def test_a_state_is_locked_by_the_holds_at_exactly_its_place() -> None:
    """M4: not by those below it, and only while it is there."""
    ends = StateEnds()
    ends.slots[TWO] = 4
    assert (ends.locks(TWO, HOLDS), ends.locks(ONE, HOLDS)) == (2, 0)
    ends.slots[ONE] = 3
    assert ends.locks(ONE, HOLDS) == 1


def test_sizes_count_states() -> None:
    """M6: one each, however many tokens lie between them."""
    ends = StateEnds()
    ends.slots |= {ONE: 3, TWO: 4}
    assert ends.sizes({}) == {"mamba_evictable_size": 2, "mamba_protected_size": 0}
    assert ends.sizes({7: HOLDS[7]}) == {"mamba_evictable_size": 1, "mamba_protected_size": 1}


def test_a_state_that_was_removed_is_nowhere() -> None:
    """M5: its page may stay."""
    ends = StateEnds()
    ends.slots |= {ONE: 3, TWO: 4}
    ends.remove([ONE])
    assert ONE not in ends
    assert TWO in ends
