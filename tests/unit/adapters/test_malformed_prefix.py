"""Arguments that no caller may pass."""

from __future__ import annotations

import pytest

from pymllm.adapters.base import UnsupportedError
from pymllm.adapters.malformed import MALFORMED_CALLS, call_malformed
from pymllm.adapters.own_caches import Mamba, OwnTree, WindowedRadix
from pymllm.history.operations import Alloc, Insert, Key, Lock, Malformed, Span
from pymllm.history.outcomes import Failed, Unsupported

STATES = {wrong for _, wrong in MALFORMED_CALLS if "state" in wrong}
REFUSALS = {"TypeError", "ValueError", "IndexError", "LockError", "StaleNodeError"}


def adapter(window: int | None = 4, pool: str = "swa", page_size: int = 4) -> WindowedRadix:
    config = {"page_size": page_size, "window": window, "pool": pool, "slots": 24, "swa_slots": 24}
    return WindowedRadix("radix", config)


def hybrid() -> Mamba:
    return Mamba("mamba", {"page_size": 4, "window": None, "pool": "token", "slots": 24, "track_slots": 3})


def with_a_hold(made: OwnTree) -> OwnTree:
    made.apply(1, Alloc(8))
    made.apply(2, Insert(Key((7,) * 8), (Span(1, 0, 8),)))
    made.apply(3, Lock(2))
    return made


@pytest.mark.parametrize(("call", "wrong"), MALFORMED_CALLS)
def test_each_is_refused_and_changes_nothing(call: str, wrong: str) -> None:
    """X1: with everything that the call needs at hand, it raises what malformed arguments raise."""
    target = with_a_hold(hybrid() if wrong in STATES else adapter())
    before = target.sizes()
    outcome = target.apply(4, Malformed(call, wrong))
    assert isinstance(outcome.result, Failed)
    assert outcome.result.error in REFUSALS
    assert (outcome.effects, outcome.sizes) == ((), before)
    assert target.audit()


@pytest.mark.parametrize(
    ("target", "call", "wrong"),
    [
        (adapter(), "unlock", "a bool for a token"),
        (adapter(window=None), "unlock", "a negative token"),
        (adapter(window=None), "insert", "a float prev_prefix_len"),
        (adapter(pool="none"), "build", "a pool of other pages"),
        (adapter(), "match", "a bad temper"),
        (adapter(), "insert", "two states"),
        (hybrid(), "build", "a window of no token"),
    ],
)
def test_what_cannot_be_made_is_unsupported(target: OwnTree, call: str, wrong: str) -> None:
    """X1: without a hold, a window, a pool or states there is nothing to spoil."""
    with pytest.raises(UnsupportedError):
        call_malformed(MALFORMED_CALLS, Malformed(call, wrong), target)
    assert isinstance(target.apply(1, Malformed(call, wrong)).result, Unsupported)


@pytest.mark.parametrize(("call", "wrong"), MALFORMED_CALLS)
def test_a_hybrid_cache_refuses_what_it_can_be_asked(call: str, wrong: str) -> None:
    """X1: every call is refused, or cannot be made, and nothing changes."""
    target = with_a_hold(hybrid())
    before = target.sizes()
    outcome = target.apply(4, Malformed(call, wrong))
    assert isinstance(outcome.result, Failed | Unsupported)
    assert getattr(outcome.result, "error", "TypeError") in REFUSALS
    assert (outcome.effects, outcome.sizes) == ((), before)
