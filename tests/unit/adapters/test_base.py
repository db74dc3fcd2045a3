"""The common part of adapters: numbering, naming, errors."""

from __future__ import annotations

import pytest

from pymllm.adapters.base import CAPABILITIES, BaseAdapter, UnsupportedError, header_of
from pymllm.errors import AdapterError, InvariantViolation, ProgramError
from pymllm.history.files import Header
from pymllm.history.operations import Alloc, Free, FreeSWA, Key, Match, Merge, MoveSWA, Span
from pymllm.history.outcomes import Done, Effect, Failed, Outcome, Result, Slots, Unsupported


class Counter(BaseAdapter):
    """Hands out numbers and never takes one back."""

    KIND = "slots"

    def __init__(self) -> None:
        super().__init__("counter", {"pages": 9})
        self.last = 0
        self.error: Exception = KeyError("lost")

    def claim(self) -> frozenset[str]:
        return frozenset({"pool", "groups"})

    def sizes(self) -> dict[str, int]:
        return {"available_size": 9 - self.last}

    def do_alloc(self, step: int, operation: Alloc) -> Result:
        first, self.last = self.last + 1, self.last + operation.tokens
        return Slots(tuple(range(first, self.last + 1)))

    def do_free(self, step: int, operation: Free) -> Result:
        self.effects.append(Effect("free", tuple(self.numbers(operation.slots))))
        return Done()

    def do_merge(self, step: int, operation: Merge) -> Result:
        raise self.error

    def do_free_swa(self, step: int, operation: FreeSWA) -> Result:
        raise UnsupportedError("it has no halves")

    def do_match(self, step: int, operation: Match) -> Result:
        raise AssertionError("a slot allocator is never asked to match")


@pytest.fixture
def adapter() -> Counter:
    return Counter()


def test_slots_are_named_by_the_step_that_gave_them(adapter: Counter) -> None:
    """A program says what it frees without knowing what an implementation chose."""
    adapter.apply(1, Alloc(3))
    adapter.apply(5, Alloc(2))
    outcome = adapter.apply(6, Free((Span(5, 0, 1), Span(1, 1, 3), Span(0, 8, 9))))
    assert outcome == Outcome(Done(), (Effect("free", (4, 2, 3, 8)),), {"available_size": 4})


def test_effects_are_those_of_one_operation(adapter: Counter) -> None:
    """What an earlier operation did is not told again."""
    adapter.apply(1, Free((Span(0, 1, 2),)))
    assert adapter.apply(2, Alloc(1)).effects == ()


def test_whatever_the_implementation_raises_is_an_outcome(adapter: Counter) -> None:
    """A crash is something to judge."""
    result = adapter.apply(1, Merge()).result
    assert isinstance(result, Failed)
    assert (result.error, result.message) == ("KeyError", "'lost'")


@pytest.mark.parametrize(
    "error", [AdapterError("counter", "broken"), ProgramError("no"), InvariantViolation("A1", "slot 0")]
)
def test_faults_of_others_are_not_outcomes(adapter: Counter, error: Exception) -> None:
    """Neither the adapter's own fault nor a broken program is booked as the implementation's."""
    adapter.error = error
    with pytest.raises(type(error)):
        adapter.apply(1, Merge())


@pytest.mark.parametrize("operation", [MoveSWA((), ()), Match(Key((1,))), FreeSWA(())])
def test_what_an_adapter_cannot_do_is_an_answer(adapter: Counter, operation: object) -> None:
    """No method for it, not an operation of its kind, or found impossible on the way."""
    outcome = adapter.apply(1, operation)  # type: ignore[arg-type]
    assert isinstance(outcome.result, Unsupported)
    assert outcome.sizes == {"available_size": 9}


def test_a_header_says_what_is_examined(adapter: Counter) -> None:
    """Enough to judge a history without the adapter."""
    assert header_of(adapter, 3, {"torch": "2"}) == Header(
        "counter", "slots", {"pages": 9}, ("groups", "pool"), 3, {"torch": "2"}
    )
    assert adapter.capabilities <= set(CAPABILITIES)


def test_an_adapter_claims_and_tells_nothing_of_itself() -> None:
    """What a subclass does not add is not there."""

    class Bare(BaseAdapter):
        KIND = "rows"

    bare = Bare("bare", {})
    assert (bare.capabilities, bare.sizes(), bare.audit()) == (frozenset(), {}, ())
    bare.close()
