"""The common part of adapters: numbering, naming, errors, and the forms of keys and indices."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest
import torch

from pymllm.adapters.base import CAPABILITIES, BaseAdapter, UnsupportedError, header_of
from pymllm.adapters.key_forms import (
    CONTAINERS,
    clobber,
    make_indices,
    make_radix_key,
    make_tokens,
    read_namespace,
    spell_namespace,
)
from pymllm.errors import AdapterError, InvariantViolation, ProgramError
from pymllm.history.claims import SPECIFICATION
from pymllm.history.files import Header
from pymllm.history.operations import Alloc, Free, FreeSWA, Key, Match, Merge, MoveSWA, Span
from pymllm.history.outcomes import Done, Effect, Failed, Outcome, Result, Slots, Unsupported
from pymllm.mem_cache.base_prefix_cache import RadixKey


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
    """A program names the slots that it frees by their step, for any slots of an implementation."""
    adapter.apply(1, Alloc(3))
    adapter.apply(5, Alloc(2))
    outcome = adapter.apply(6, Free((Span(5, 0, 1), Span(1, 1, 3), Span(0, 8, 9))))
    assert outcome == Outcome(Done(), (Effect("free", (4, 2, 3, 8)),), {"available_size": 4})


def test_effects_are_those_of_one_operation(adapter: Counter) -> None:
    """The effects of an earlier operation are not told again."""
    adapter.apply(1, Free((Span(0, 1, 2),)))
    assert adapter.apply(2, Alloc(1)).effects == ()


def test_whatever_the_implementation_raises_is_an_outcome_that_names_the_line(adapter: Counter) -> None:
    """A crash is something to judge, and to look for."""
    result = adapter.apply(1, Merge()).result
    assert isinstance(result, Failed)
    line = Counter.do_merge.__code__.co_firstlineno + 1
    assert (result.error, result.message) == ("KeyError", f"'lost' (line {line} of {__file__})")


@pytest.mark.parametrize("claimed", [{"pool"}, ["pool"], ("pool",), frozenset({"pool"}), {"pool": 1}])
def test_a_claim_is_any_collection_of_capabilities(
    claimed: Collection[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever writes an adapter need not know which."""
    monkeypatch.setattr(Counter, "claim", lambda self: claimed)
    assert Counter().capabilities == frozenset({"pool"})


@pytest.mark.parametrize(
    ("claimed", "says"),
    [
        ("pool", "claim() returned 'pool'; it must return a set, such as {'pool'}"),
        (None, "claim() returned None; it must return a set, such as {'pool'}"),
        (
            ["pol"],
            "claim() returned 'pol', which is no capability (did you mean 'pool'?); there are pool, swa, ",
        ),
        ([["pool"]], "claim() returned ['pool'], which is no capability"),
    ],
)
def test_a_claim_of_what_does_not_exist_is_refused(
    claimed: Any, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """X1: the method is named, and the word that is near."""
    monkeypatch.setattr(Counter, "claim", lambda self: claimed)
    with pytest.raises(AdapterError) as caught:
        Counter()
    assert caught.value.message.startswith(says)


def test_limits_are_declared_by_the_names_of_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """X9: they stand in the header of each history."""
    monkeypatch.setattr(Counter, "LIMITS", {"free": "it is hard"})
    assert header_of(Counter()).limits == {"free": "it is hard"}
    monkeypatch.setattr(Counter, "LIMITS", {"fre": "it is hard"})
    with pytest.raises(AdapterError, match="LIMITS name 'fre', which is no operation of slots; there are"):
        Counter()


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
        "counter", "slots", {"pages": 9}, ("groups", "pool"), 3, {"torch": "2"}, specification=SPECIFICATION
    )
    assert adapter.capabilities <= set(CAPABILITIES)


def test_an_adapter_claims_and_tells_nothing_of_itself() -> None:
    """A base adapter without additions claims nothing and tells no sizes."""

    class Bare(BaseAdapter):
        KIND = "rows"

    bare = Bare("bare", {})
    assert (bare.capabilities, bare.sizes(), bare.audit()) == (frozenset(), {}, ())
    bare.close()


@pytest.mark.parametrize(
    ("extra_key", "spelled"),
    [(None, None), ("1", "s:1"), (1, "i:1"), ("i:1", "s:i:1"), ("", "s:"), (-3, "i:-3")],
)
def test_a_namespace_is_read_as_it_was_spelled(extra_key: str | int | None, spelled: str | None) -> None:
    """K1: the text 1 and the number 1 are two namespaces, where others take texts alone."""
    assert spell_namespace(extra_key) == spelled
    assert read_namespace(spelled) == extra_key


@pytest.mark.parametrize("form", CONTAINERS)
def test_each_container_holds_the_same_tokens(form: str) -> None:
    """K1: containers do not matter."""
    key = make_radix_key(Key((7, 2**24), "a", form))
    assert list(key) == [7, 2**24]
    assert key.extra_key == "a"


def test_containers_are_told_apart_by_form() -> None:
    """K1: each form is another type, or another dtype."""
    made = [make_tokens(Key((1,), form=form)) for form in CONTAINERS]
    assert len({f"{type(tokens)} {getattr(tokens, 'dtype', '')}" for tokens in made}) == len(CONTAINERS)


@pytest.mark.parametrize("form", CONTAINERS)
def test_bigrams_come_in_lists_or_tuples(form: str) -> None:
    """K1: tuples as tokens stay tuples."""
    tokens = make_tokens(Key(((1, 2), (3, 4)), form=form))
    assert type(tokens) is (tuple if form == "tuple" else list)
    assert list(tokens) == [(1, 2), (3, 4)]


@pytest.mark.parametrize("form", CONTAINERS)
def test_a_clobbered_container_holds_nothing_of_the_key(form: str) -> None:
    """X5: a cache that kept the container would now hold another key; nobody can change a tuple."""
    tokens = make_tokens(Key((7, 8), form=form))
    clobber(tokens)
    assert list(RadixKey(tokens)) == ([7, 8] if form == "tuple" else [3, 3])


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "int64", "uint64"])
@pytest.mark.parametrize("layout", ["", " strided", " 2d"])
def test_indices_have_dtype_and_layout(dtype: str, layout: str) -> None:
    """Every consumer takes any integer dtype."""
    made = make_indices([4, 5, 6], dtype + layout)
    assert made.dtype == getattr(torch, dtype)
    assert made.reshape(-1).tolist() == [4, 5, 6]
    assert made.is_contiguous() is (layout != " strided")
    assert made.dim() == (2 if layout == " 2d" else 1)


@pytest.mark.parametrize(("number", "form"), [(-1, "uint8"), (256, "uint8 2d"), (2**31, "int32 strided")])
def test_a_number_that_does_not_fit_is_not_bent(number: int, form: str) -> None:
    """What is asked of an implementation is what the program says."""
    with pytest.raises(RuntimeError, match=f"{number}"):
        make_indices([1, number], form)


@pytest.mark.parametrize("form", ["", "integer", "int64 3d", "Tensor"])
def test_an_unknown_form_is_refused(form: str) -> None:
    """The message says which there are."""
    with pytest.raises(ValueError, match="it must be"):
        make_indices([1], form)
    with pytest.raises(ValueError, match="it must be"):
        make_tokens(Key((1,), form=form))
