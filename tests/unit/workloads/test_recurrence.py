"""Fingerprints and states are exact, and tell prefixes, namespaces, layers and parts apart (law E1)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pymllm.errors import UsageError
from pymllm.mem_cache.bit_view import bit_view
from pymllm.workloads.fingerprint import KVPart, kv_fingerprints, prefix_fingerprints, token_fingerprints
from pymllm.workloads.recurrence import EXACT_PRIMES, Recurrence, RecurrentStates, bits_of, values_of

TOKENS = np.array([5, 6, 5, 7, 0, 0, 4_294_967_295], dtype=np.uint32)


@pytest.mark.parametrize("changed", [0, 2, 4])
def test_changed_token_changes_every_fingerprint_from_there_on(changed: int) -> None:
    """E1: a value depends on the whole prefix in its order, its own token included, and on nothing behind."""
    fingerprints = prefix_fingerprints(TOKENS)
    other = TOKENS.copy()
    other[changed] += 1
    assert (fingerprints == prefix_fingerprints(other)).tolist() == [
        at < changed for at in range(len(TOKENS))
    ]
    assert np.array_equal(fingerprints[:changed], prefix_fingerprints(TOKENS[:changed]))
    swapped = prefix_fingerprints(TOKENS[[0, 2, 1, 3, 4, 5, 6]])
    assert not (fingerprints[1:] == swapped[1:]).any()


def test_namespaces_share_no_fingerprint() -> None:
    """E1: equal tokens of other namespaces are other content, even for 1 and "1"."""
    first = [int(prefix_fingerprints(TOKENS, namespace)[0]) for namespace in (None, "None", 1, "1", "a")]
    assert len(set(first)) == 5


def test_layers_and_parts_hold_different_values() -> None:
    """E1: reading K for V, a wrong layer or the other half is noticed."""
    prefixes = prefix_fingerprints(TOKENS)
    places = tuple((layer, part) for layer in range(3) for part in KVPart)
    values = kv_fingerprints(prefixes, places)
    assert (values.dtype, values.shape) == (np.int64, (len(places), len(TOKENS)))
    assert len(np.unique(values)) == values.size
    for place, row in zip(places, values, strict=True):
        assert np.array_equal(kv_fingerprints(prefixes[2:], (place,)), [row[2:]])


def test_token_has_one_fingerprint_wherever_it_stands() -> None:
    """E1: it depends on token and namespace alone."""
    values = token_fingerprints(TOKENS, "a")
    equal = TOKENS[:, None] == TOKENS
    assert np.array_equal(values[:, None] == values, equal)
    assert not (values == token_fingerprints(TOKENS, "b")).any()
    assert not (token_fingerprints(TOKENS, 1) == token_fingerprints(TOKENS, "1")).any()


@pytest.mark.parametrize("dtype", EXACT_PRIMES)
def test_bits_are_those_that_torch_writes(dtype: torch.dtype) -> None:
    """E1: of every number up to 2,000 that the dtype holds, and of its largest."""
    prime = EXACT_PRIMES[dtype]
    values = np.array([*range(min(prime, 2000)), prime - 1], dtype=np.int64).reshape(1, -1)
    expected = bit_view(torch.from_numpy(values).to(dtype)).numpy()
    found = bits_of(values, dtype)
    assert found.dtype == expected.dtype
    assert np.array_equal(found, expected)
    assert np.array_equal(values_of(found, dtype), values)


@pytest.mark.parametrize("dtype", EXACT_PRIMES)
def test_bits_with_gaps_between_them_are_read(dtype: torch.dtype) -> None:
    """E1: as a view of some rows of a buffer has them."""
    values = np.arange(24, dtype=np.int64).reshape(2, 3, 4)
    assert np.array_equal(values_of(bits_of(values, dtype)[:, 1:, ::2], dtype), values[:, 1:, ::2])


CHUNK = np.array([5, 6, 5, 7, 0, 0, 4_294_967_295, 8, 9, 10, 11], dtype=np.uint32)
PRIMES = [251, 16_777_213]


def one_by_one(recurrence: Recurrence, tokens: np.ndarray, namespace: str | int | None) -> list[int]:
    """Take tokens in with Python's own integers."""
    state = [0] * recurrence.elements
    for added in recurrence.inputs(tokens, namespace).tolist():
        decayed = zip(recurrence._decay.tolist(), state, added, strict=True)
        state = [(decay * old + new) % int(recurrence._prime) for decay, old, new in decayed]
    return state


@pytest.mark.parametrize("prime", PRIMES)
@pytest.mark.parametrize("length", range(len(CHUNK) + 1))
def test_chunk_is_what_its_tokens_come_to_one_by_one(length: int, prime: int) -> None:
    """E1: the sum over a chunk is checked against a plain loop."""
    recurrence = Recurrence(4, prime, salt=1)
    assert recurrence.cold(CHUNK[:length], "a").tolist() == one_by_one(recurrence, CHUNK[:length], "a")


@pytest.mark.parametrize("prime", PRIMES)
@pytest.mark.parametrize("cut", [0, 1, 2, 5, 8, 11])
def test_state_does_not_depend_on_where_the_sequence_was_cut(cut: int, prime: int) -> None:
    """E1: chunks and single steps end in the state of a cold run, bit for bit."""
    recurrence = Recurrence(4, prime, salt=1)
    state = recurrence.advance(recurrence.cold(CHUNK[:cut], None), CHUNK[cut:], None)
    assert state.tolist() == recurrence.cold(CHUNK, None).tolist()
    stepped = np.stack([recurrence.cold(CHUNK[:cut], None), recurrence.cold(CHUNK[:0], None)])
    for at in range(cut, len(CHUNK)):
        stepped = recurrence.step(stepped, recurrence.inputs(CHUNK[[at, at]], None))
    assert stepped[0].tolist() == state.tolist()
    assert stepped[1].tolist() == recurrence.cold(CHUNK[cut:], None).tolist()


def test_long_sequence_stays_exact() -> None:
    """E1: no product overflows, however many tokens there are."""
    tokens = np.arange(5_000, dtype=np.uint32)
    recurrence = Recurrence(2, 16_777_213, salt=1)
    last = one_by_one(recurrence, tokens, 7)
    assert recurrence.cold(tokens, 7).tolist() == last
    assert recurrence.cold_run(recurrence.inputs(tokens, 7))[-1].tolist() == last


@pytest.mark.parametrize("prime", PRIMES)
@pytest.mark.parametrize("length", range(len(CHUNK) + 1))
def test_cold_run_has_the_state_after_every_number_of_tokens(length: int, prime: int) -> None:
    """E1: what is computed for all lengths at once is what a plain loop says of each."""
    recurrence = Recurrence(4, prime, salt=1)
    states = recurrence.cold_run(recurrence.inputs(CHUNK[:length], "a"))
    assert states.tolist() == [one_by_one(recurrence, CHUNK[:at], "a") for at in range(length + 1)]


@pytest.mark.parametrize("prime", PRIMES)
@pytest.mark.parametrize(
    "changed",
    [CHUNK[1:], CHUNK[:-1], CHUNK[::-1], np.delete(CHUNK, 5)],
)
def test_every_token_and_its_place_count(changed: np.ndarray, prime: int) -> None:
    """E1: a state after one token more, less, or in another order is another state."""
    recurrence = Recurrence(12, prime, salt=1)
    assert recurrence.cold(changed, None).tolist() != recurrence.cold(CHUNK, None).tolist()


def test_namespaces_elements_and_kinds_differ() -> None:
    """E1: so a state of another request, layer or buffer is noticed."""
    recurrence = Recurrence(8, 16_777_213, salt=1)
    states = [recurrence.cold(CHUNK, namespace).tolist() for namespace in (None, "None", 1, "1")]
    states.append(Recurrence(8, 16_777_213, salt=2).cold(CHUNK, None).tolist())
    flat = [value for state in states for value in state]
    assert len(set(flat)) == len(flat)


def test_recurrences_side_by_side_are_each_what_they_were() -> None:
    """E1: inputs, steps, chunks and cold runs of kinds with other primes, in one row of numbers."""
    parts = [Recurrence(3, 16_777_213, salt=1), Recurrence(5, 251, salt=2)]
    joined = Recurrence.side_by_side(parts)
    assert joined.elements == 8
    inputs = joined.inputs(CHUNK, "a")
    assert inputs.tolist() == np.concatenate([part.inputs(CHUNK, "a") for part in parts], axis=1).tolist()
    for found, expected in (
        (joined.cold(CHUNK, "a"), [part.cold(CHUNK, "a") for part in parts]),
        (joined.cold(CHUNK[:3], "a"), [part.cold(CHUNK[:3], "a") for part in parts]),
        (joined.cold_run(inputs)[7], [part.cold(CHUNK[:7], "a") for part in parts]),
        (
            joined.step(inputs, inputs)[2],
            [part.step(*[part.inputs(CHUNK, "a")] * 2)[2] for part in parts],
        ),
    ):
        assert found.tolist() == np.concatenate(expected).tolist()


MANY_TOKENS = np.random.default_rng(1).integers(0, 2**32, 100).astype(np.uint32)


@pytest.mark.parametrize("dtype", EXACT_PRIMES)
def test_a_sequence_may_be_cut_anywhere(dtype: torch.dtype) -> None:
    """E1: through the buffer's dtype and back between two chunks, bit for bit."""
    model = RecurrentStates((2, 3), dtype, salt=5)
    cold = model.cold(MANY_TOKENS)
    assert (cold.shape, cold.dtype) == ((2, 3), dtype)
    for cut in (0, 1, 50, 99, 100):
        buffer = torch.zeros((2, 4, 3), dtype=dtype)
        buffer[:, 1] = model.cold(MANY_TOKENS[:cut])
        [value] = model.values(buffer[:, 1:2])
        buffer[:, 1] = model.states(model.recurrence.advance(value, MANY_TOKENS[cut:], None)[None])[:, 0]
        assert torch.equal(buffer[:, 1], cold)


@pytest.mark.parametrize("dtype", EXACT_PRIMES)
def test_every_value_below_the_prime_is_held_exactly(dtype: torch.dtype) -> None:
    """E1: the largest whole numbers of a dtype, its limit included, are told apart."""
    model = RecurrentStates((2, 1, 2), dtype, salt=1)
    prime = EXACT_PRIMES[dtype]
    values = np.arange(prime - 8, prime, dtype=np.int64).reshape(2, 4)
    states = model.states(values)
    assert states.shape == (2, 2, 1, 2)
    assert np.array_equal(model.values(states), values)


def test_a_dtype_that_rounds_is_refused() -> None:
    """X1: a state that is rounded could hide a wrong one."""
    with pytest.raises(UsageError, match="float8_e4m3fn hold no exact numbers"):
        RecurrentStates((1, 1), torch.float8_e4m3fn, salt=0)
