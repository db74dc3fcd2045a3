"""A recurrence takes in the same tokens to the same state, however they are cut."""

from __future__ import annotations

import numpy as np
import pytest

from pymllm.workloads.recurrence import Recurrence

TOKENS = np.array([5, 6, 5, 7, 0, 0, 4_294_967_295, 8, 9, 10, 11], dtype=np.uint32)
PRIMES = [251, 16_777_213]


def one_by_one(recurrence: Recurrence, tokens: np.ndarray, namespace: str | int | None) -> list[int]:
    """Take tokens in with Python's own integers."""
    state = [0] * recurrence.elements
    for added in recurrence.inputs(tokens, namespace).tolist():
        decayed = zip(recurrence._decay.tolist(), state, added, strict=True)
        state = [(decay * old + new) % int(recurrence._prime) for decay, old, new in decayed]
    return state


@pytest.mark.parametrize("prime", PRIMES)
@pytest.mark.parametrize("length", range(len(TOKENS) + 1))
def test_chunk_is_what_its_tokens_come_to_one_by_one(length: int, prime: int) -> None:
    """E1: the sum over a chunk is checked against a plain loop."""
    recurrence = Recurrence(4, prime, salt=1)
    assert recurrence.cold(TOKENS[:length], "a").tolist() == one_by_one(recurrence, TOKENS[:length], "a")


@pytest.mark.parametrize("prime", PRIMES)
@pytest.mark.parametrize("cut", [0, 1, 2, 5, 8, 11])
def test_state_does_not_depend_on_where_the_sequence_was_cut(cut: int, prime: int) -> None:
    """E1: chunks and single steps end in the state of a cold run, bit for bit."""
    recurrence = Recurrence(4, prime, salt=1)
    state = recurrence.advance(recurrence.cold(TOKENS[:cut], None), TOKENS[cut:], None)
    assert state.tolist() == recurrence.cold(TOKENS, None).tolist()
    stepped = np.stack([recurrence.cold(TOKENS[:cut], None), recurrence.cold(TOKENS[:0], None)])
    for at in range(cut, len(TOKENS)):
        stepped = recurrence.step(stepped, recurrence.inputs(TOKENS[[at, at]], None))
    assert stepped[0].tolist() == state.tolist()
    assert stepped[1].tolist() == recurrence.cold(TOKENS[cut:], None).tolist()


def test_long_sequence_stays_exact() -> None:
    """E1: no product overflows, however many tokens there are."""
    tokens = np.arange(5_000, dtype=np.uint32)
    recurrence = Recurrence(2, 16_777_213, salt=1)
    last = one_by_one(recurrence, tokens, 7)
    assert recurrence.cold(tokens, 7).tolist() == last
    assert recurrence.cold_run(recurrence.inputs(tokens, 7))[-1].tolist() == last


@pytest.mark.parametrize("prime", PRIMES)
@pytest.mark.parametrize("length", range(len(TOKENS) + 1))
def test_cold_run_has_the_state_after_every_number_of_tokens(length: int, prime: int) -> None:
    """E1: what is computed for all lengths at once is what a plain loop says of each."""
    recurrence = Recurrence(4, prime, salt=1)
    states = recurrence.cold_run(recurrence.inputs(TOKENS[:length], "a"))
    assert states.tolist() == [one_by_one(recurrence, TOKENS[:at], "a") for at in range(length + 1)]


@pytest.mark.parametrize("prime", PRIMES)
@pytest.mark.parametrize("changed", [TOKENS[1:], TOKENS[:-1], TOKENS[::-1], np.delete(TOKENS, 5)])
def test_every_token_and_its_place_count(changed: np.ndarray, prime: int) -> None:
    """E1: a state after one token more, less, or in another order is another state."""
    recurrence = Recurrence(12, prime, salt=1)
    assert recurrence.cold(changed, None).tolist() != recurrence.cold(TOKENS, None).tolist()


def test_namespaces_elements_and_kinds_differ() -> None:
    """E1: so a state of another request, layer or buffer is noticed."""
    recurrence = Recurrence(8, 16_777_213, salt=1)
    states = [recurrence.cold(TOKENS, namespace).tolist() for namespace in (None, "None", 1, "1")]
    states.append(Recurrence(8, 16_777_213, salt=2).cold(TOKENS, None).tolist())
    flat = [value for state in states for value in state]
    assert len(set(flat)) == len(flat)


def test_recurrences_side_by_side_are_each_what_they_were() -> None:
    """E1: inputs, steps, chunks and cold runs of kinds with other primes, in one row of numbers."""
    parts = [Recurrence(3, 16_777_213, salt=1), Recurrence(5, 251, salt=2)]
    joined = Recurrence.side_by_side(parts)
    assert joined.elements == 8
    inputs = joined.inputs(TOKENS, "a")
    assert inputs.tolist() == np.concatenate([part.inputs(TOKENS, "a") for part in parts], axis=1).tolist()
    for found, expected in (
        (joined.cold(TOKENS, "a"), [part.cold(TOKENS, "a") for part in parts]),
        (joined.cold(TOKENS[:3], "a"), [part.cold(TOKENS[:3], "a") for part in parts]),
        (joined.cold_run(inputs)[7], [part.cold(TOKENS[:7], "a") for part in parts]),
        (joined.step(inputs, inputs)[2], [part.step(*[part.inputs(TOKENS, "a")] * 2)[2] for part in parts]),
    ):
        assert found.tolist() == np.concatenate(expected).tolist()
