"""The machine of keys and hashes finds what is wrong with them, and knows the calls of its adapter."""

from __future__ import annotations

from typing import Any

import pytest

from pymllm.adapters.base import UnsupportedError
from pymllm.adapters.own_hashes import KeysAndHashes
from pymllm.conformance.acting import drive, make_machine
from pymllm.conformance.pool_machine import HashMachine
from pymllm.errors import InvariantViolation
from pymllm.history.operations import HashPage
from pymllm.history.outcomes import Failed, Hashes, Number, Tokens
from pymllm.oracle.situations import expected_situations


class LosesNamespace(KeysAndHashes):
    """Slices the tokens and forgets whose they are."""

    def do_slice_key(self, step: int, operation: Any) -> Tokens:
        return Tokens(super().do_slice_key(step, operation).tokens)


class LosesPrior(KeysAndHashes):
    """Hashes each page alone."""

    def do_hash_page(self, step: int, operation: Any) -> Hashes:
        return super().do_hash_page(step, HashPage(operation.key))


class Unsigned(KeysAndHashes):
    """Reads a digest without its sign."""

    def do_hash_int64(self, step: int, operation: Any) -> Number:
        return Number(super().do_hash_int64(step, operation).value % 2**64)


class Signed(KeysAndHashes):
    """Reads the hash of bytes with a sign."""

    def do_hash_bytes(self, step: int, operation: Any) -> Number:
        value = super().do_hash_bytes(step, operation).value
        return Number(value - 2**64 if value >= 2**63 else value)


class Forgiving(KeysAndHashes):
    """Takes an index beyond the end for the last one."""

    def do_pick_token(self, step: int, operation: Any) -> Tokens:
        last = len(operation.key.tokens) - 1
        return super().do_pick_token(step, type(operation)(operation.key, min(operation.at, last)))


class Hashless(KeysAndHashes):
    """Has keys and nothing else."""

    def do_hash_page(self, step: int, operation: Any) -> Hashes:
        raise UnsupportedError("hash_page")


class Plain(KeysAndHashes):
    """Has neither tuples nor refusals."""

    def claim(self) -> frozenset[str]:
        return frozenset({"extra_key"})


def machine_of(adapter_class: type[KeysAndHashes]) -> type[HashMachine]:
    build = {"make_adapter": classmethod(lambda cls: adapter_class("x", {}))}
    made: type[HashMachine] = type(adapter_class.__name__, (make_machine(HashMachine, "hashes", {}),), build)
    return made


@pytest.mark.parametrize(
    ("adapter_class", "law"),
    [(LosesNamespace, "K1"), (LosesPrior, "H1"), (Unsigned, "H1"), (Signed, "H1"), (Forgiving, "X1")],
)
@pytest.mark.parametrize("seed", range(3))
def test_wrong_keys_and_hashes_break_their_law(
    adapter_class: type[KeysAndHashes], law: str, seed: int
) -> None:
    """K1, H1, X1: found from each of three seeds."""
    with pytest.raises(InvariantViolation) as caught:
        drive(machine_of(adapter_class), seed, 300)
    assert caught.value.law == law


def test_the_machine_knows_every_malformed_call_of_the_adapter() -> None:
    """X1: and no other, so that none is passed over in silence."""
    assert {(call.call, call.wrong) for call in HashMachine.MALFORMED} == set(KeysAndHashes.MALFORMED)


def test_what_an_adapter_cannot_hash_is_passed_over() -> None:
    """H1: and chained to by nothing."""
    machine = drive(machine_of(Hashless), 2, 200)
    reached = set(machine.examiner.judge.evidence.reached)
    assert "a slice is empty" in reached
    assert not any("hashed" in situation or "chained" in situation for situation in reached)


def test_tuples_and_misuse_are_tried_only_where_they_are_claimed() -> None:
    """K1, X1: and what is left is what is expected."""
    machine = drive(machine_of(Plain), 2, 1_000)
    history = machine.examiner.history
    failed = [step for step in history.steps if step.outcome and isinstance(step.outcome.result, Failed)]
    assert failed == []
    assert set(machine.examiner.judge.evidence.reached) == expected_situations(history.header)
