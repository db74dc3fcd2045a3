"""Tests of operations: the claims that they need, the steps that they name, and declared limits."""

from __future__ import annotations

import pytest

from pymllm.history import operations as ops
from pymllm.history.asked import can_be_given, find_wrong_limit, is_optional, needs_of
from pymllm.history.operations import Key, Operation
from pymllm.history.spans import nodes_and_holds_of, spans_of, steps_of


def test_an_operation_names_steps_in_three_ways() -> None:
    """By spans, for a node, and for a hold."""
    insert = ops.Insert(ops.Key((1,)), (ops.Span(4, 0, 1), ops.Span(0, 3, 4)), state=ops.Span(5, 0, 1))
    assert spans_of(insert) == [ops.Span(4, 0, 1), ops.Span(0, 3, 4), ops.Span(5, 0, 1)]
    assert list(steps_of(insert)) == [4, 0, 5]
    assert spans_of(ops.Insert(ops.Key((1,)))) == []
    assert nodes_and_holds_of(ops.Lock(3)) == nodes_and_holds_of(ops.Hash(3)) == ((3,), ())
    assert nodes_and_holds_of(ops.Unlock(3)) == ((), (3,))
    assert nodes_and_holds_of(ops.Unlock(3, at=1, token=2)) == ((1,), (3, 2))
    assert nodes_and_holds_of(ops.Unlock(3, token=0)) == ((), (3,))
    assert nodes_and_holds_of(ops.Alloc(3)) == ((), ())


@pytest.mark.parametrize(
    ("kind", "operation", "claims", "needs"),
    [
        ("slots", ops.Alloc(1), (), ()),
        ("slots", ops.Merge(), (), ("merges",)),
        ("slots", ops.FreeSWA(()), (), ("swa",)),
        ("slots", ops.EndTransfer(1), (), ("transfers",)),
        ("rows", ops.ReadRows(), (), ()),
        ("prefix", ops.Alloc(1), (), ("pool",)),
        ("prefix", ops.ReadStates(0), (), ("mamba",)),
        ("states", ops.ReadStates(0), (), ()),
        ("prefix", ops.Insert(Key((1,))), ("pool",), ()),
        ("prefix", ops.Insert(Key((1,))), ("mamba",), ("bare_inserts",)),
        ("prefix", ops.Insert(Key((1,)), state=ops.Span(1, 0, 1)), ("mamba",), ()),
        ("prefix", ops.Match(Key(((1, 2),), "tenant")), (), ("extra_key", "bigrams")),
        ("prefix", ops.Match(Key((1,), (None, "b", None, 2))), (), ("lora", "embeddings")),
        (
            "hashes",
            ops.SliceKey(Key((1,), ("", 0, None, None, 0)), 0, 1),
            (),
            ("extra_key", "lora", "weights"),
        ),
        ("index", ops.FindBlocks((1,)), (), ()),
        ("index", ops.FindBlocks((1,), early=True), (), ("early_exit",)),
        ("index", ops.FindBlocks((1,), group=1, extra_key="salt"), (), ("layer_groups", "extra_key")),
        (
            "index",
            ops.StoreBlocks(1, (), None, 1, "CPU", (None, "b"), 0),
            (),
            ("layer_groups", "media", "event_numbers", "lora"),
        ),
        ("index", ops.RemoveBlocks(1, (), medium="CPU", number=3), (), ("media", "event_numbers")),
        ("index", ops.ClearWorker(1, 0), (), ("event_numbers",)),
    ],
)
def test_an_operation_needs_the_claims_of_its_kind_and_form(
    kind: str, operation: Operation, claims: tuple[str, ...], needs: tuple[str, ...]
) -> None:
    """X9: one table says of each kind what it takes to be asked."""
    assert needs_of(kind, operation, claims) == needs


@pytest.mark.parametrize(
    ("operation", "is_given"),
    [
        (ops.Malformed("free", "a list"), False),
        (ops.Fault("tea"), False),
        (ops.Fault("free"), True),
        (ops.Alloc(1), True),
        (ops.Match(Key((2**31,))), True),
        (ops.Match(Key((2**31,), form="tensor64")), True),
        (ops.Match(Key((2**31,), form="int32")), False),
        (ops.HashPage(Key(((1, 2**32),), form="array")), False),
    ],
)
def test_nobody_is_given_what_does_not_fit(operation: Operation, is_given: bool) -> None:
    """K1, X1: a token beyond its container, and a malformed call, cannot be passed everywhere."""
    assert can_be_given("prefix", operation) is is_given


def test_some_operations_are_left_to_each_implementation() -> None:
    """X9: whoever has no `clear` owes none; a free is owed."""
    assert is_optional("slots", ops.Clear)
    assert is_optional("prefix", ops.ReadHalves)
    assert not is_optional("slots", ops.ReadHalves)
    assert not is_optional("index", ops.Reset)


@pytest.mark.parametrize(
    ("limits", "wrong"),
    [
        ({}, None),
        ({"unlock": "a hold is released as it was taken"}, None),
        (["unlock"], "are ['unlock']; they must be a dict with a reason for each operation"),
        ({"unlok": "why"}, "name 'unlok', which is no operation of prefix; there are alloc, free, "),
        ({"read_rows": "why"}, "name 'read_rows', which is no operation of prefix; "),
        ({"unlock": " "}, "give ' ' as the reason for unlock; it must be a sentence"),
        ({"unlock": 1}, "give 1 as the reason for unlock; it must be a sentence"),
    ],
)
def test_a_limit_is_a_reason_for_an_operation(limits: object, wrong: str | None) -> None:
    """X9: whatever else is declared is named."""
    found = find_wrong_limit("prefix", limits)
    assert (found is None) if wrong is None else (found or "").startswith(wrong)
