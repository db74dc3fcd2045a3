"""What the observer of blocks was told, saw and met."""

from __future__ import annotations

import pytest

from pymllm.errors import InvariantViolation
from pymllm.history.operations import Fault
from pymllm.history.outcomes import INJECTED, Done, Effect, Failed, Outcome, Result
from pymllm.oracle.evidence import Evidence
from pymllm.oracle.seen_observer import SeenObserver

SIZES = {"pool_avail": 3, "evictable_blocks": 1}
TWO = (Effect("callback", (4,), (44,), sizes={"pool_avail": 2}), Effect("callback", (2, 0), sizes=SIZES))


def seen(fault: Fault | None = None, result: Result | None = None, *effects: Effect) -> SeenObserver:
    return SeenObserver(Evidence(), Outcome(result or Done(), effects or TWO), fault)


def test_several_calls_tell_as_much_as_one() -> None:
    """C6: all blocks and hashes, in order; only the last must see everything gone."""
    observer = seen()
    assert observer.blocks == [4, 2, 0]
    observer.check("C6", [0, 2, 4], [44])
    observer.check_inside(SIZES)
    assert not observer.raised


@pytest.mark.parametrize(("blocks", "hashes"), [([0, 2], [44]), ([0, 2, 4], []), ([0, 2, 4, 4], [44])])
def test_other_blocks_or_hashes_break_the_law(blocks: list[int], hashes: list[int]) -> None:
    """C6: none may be left out, or named that did not go."""
    with pytest.raises(InvariantViolation, match="C6"):
        seen().check("C6", blocks, hashes)


def test_nobody_is_told_of_nothing() -> None:
    """X4: what failed has no effect."""
    with pytest.raises(InvariantViolation, match="X4"):
        seen().check_quiet("X4")
    SeenObserver(Evidence(), Outcome(Done()), None).check_quiet("X4")


@pytest.mark.parametrize(
    ("observer", "law"),
    [
        (seen(None, None, Effect("callback", (4,), sizes={"pool_avail": 2})), "X6"),
        (seen(Fault("callback")), "X2"),
        (seen(Fault("callback", 2), Failed("KeyError")), "X2"),
        (seen(Fault("reenter")), "X6"),
    ],
)
def test_what_it_saw_and_met_is_judged(observer: SeenObserver, law: str) -> None:
    """X2, X6: written books, its own error, and no call but to read."""
    with pytest.raises(InvariantViolation, match=law):
        observer.check_inside(SIZES)


@pytest.mark.parametrize(("free", "law"), [(2, "C1"), (3, "X6")])
def test_written_books_that_are_wrong_are_no_fault_of_the_order(free: int, law: str) -> None:
    """C1, X6: what it saw is what is told at the end, or it was called too early."""
    observer = seen(None, None, Effect("callback", (4,), sizes={"pool_avail": 2}))
    with pytest.raises(InvariantViolation, match=law):
        observer.check_inside(SIZES, {"pool_avail": free, "evictable_blocks": 1})


def test_an_error_that_keeps_the_books_from_being_written_is_of_the_order() -> None:
    """X6: the sizes are wrong to the end, and would not be if it had been called last."""
    call = Effect("callback", (4,), sizes={"pool_avail": 2})
    observer = seen(Fault("callback"), Failed(INJECTED), call)
    with pytest.raises(InvariantViolation, match="X6"):
        observer.check_inside(SIZES, {"pool_avail": 2, "evictable_blocks": 1})


def test_a_fault_that_strikes_is_seen() -> None:
    """X2, X6: and one that nothing reached is not."""
    raised = seen(Fault("callback", 2), Failed(INJECTED))
    raised.check_inside(SIZES)
    assert raised.raised
    late = seen(Fault("callback", 3))
    late.check_inside(SIZES)
    assert not late.raised
    met = seen(Fault("reenter"), None, Effect("callback", (4,), note="RuntimeError"))
    met.check_inside(SIZES)
    assert not met.raised
