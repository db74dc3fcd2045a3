"""Tests of simulated models, which write as a cold run does, exactly, and notice any other content."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from pymllm.errors import InvariantViolation, UsageError
from pymllm.mem_cache.memory_pool import GDNPool, KVPool, SWATokenToKVPoolAllocator
from pymllm.mem_cache.pools.rows import bit_view
from pymllm.workloads.engine_config import EngineConfig
from pymllm.workloads.engine_forward import SimulatedForward, SimulatedRecurrent, padded
from pymllm.workloads.exact_values import (
    EXACT_PRIMES,
    KVPart,
    Recurrence,
    RecurrentStates,
    bits_of,
    kv_fingerprints,
    prefix_fingerprints,
    token_fingerprints,
    values_of,
)
from pymllm.workloads.live_request import LiveRequest
from pymllm.workloads.request import Request

Ask = Callable[..., Request]


PREFIXES = prefix_fingerprints(np.arange(10, dtype=np.uint32))
SLOTS = torch.arange(3, 13, dtype=torch.int32)


@pytest.fixture(params=[True, False])
def has_pools(request: pytest.FixtureRequest) -> bool:
    """Tell whether KV lies in pools or in plain arrays."""
    found: bool = request.param
    return found


@pytest.fixture
def full(has_pools: bool) -> SimulatedForward:
    """Make a model of full attention over 16 slots."""
    return SimulatedForward(EngineConfig(capacity=16).rounded(), None, has_pools=has_pools)


@pytest.fixture
def windowed(has_pools: bool) -> tuple[SimulatedForward, SWATokenToKVPoolAllocator, torch.Tensor]:
    """Make a model with a window of 4, and ten slots of it."""
    config = EngineConfig(capacity=16, sliding_window_size=4).rounded()
    allocator = SWATokenToKVPoolAllocator(16, 16, "cpu")
    slots = allocator.alloc(12)
    assert slots is not None
    allocator.free(slots[:2])
    return SimulatedForward(config, allocator, has_pools=has_pools), allocator, slots[2:]


@pytest.mark.notices("B148", "B152")
def test_batch_is_padded_with_slot_and_row_zero() -> None:
    """E5: padding names what is reserved for it."""
    assert padded(np.array([5, 6, 7])).tolist() == [5, 6, 7, 0, 0, 0, 0, 0]
    assert padded(np.arange(8)).tolist() == list(range(8))


def test_row_reads_back_as_written(full: SimulatedForward) -> None:
    """E1: written in two batches, read in one, counted once per row."""
    full.write(SLOTS[:3], PREFIXES[:3])
    full.write(SLOTS[3:], PREFIXES[3:])
    full.check_row(7, SLOTS, PREFIXES)
    assert full.checked_tokens == 10
    full.check_untouched()


@pytest.mark.parametrize("wrong", [[4, 3, *range(5, 13)], [3, 4, 5, 6, 7, 8, 9, 10, 11, 2]])
def test_foreign_slot_in_a_row_is_noticed(full: SimulatedForward, wrong: list[int]) -> None:
    """E1: the message names request, position, slot, layer, and both values."""
    full.write(SLOTS, PREFIXES)
    with pytest.raises(
        InvariantViolation,
        match=r"E1: request 7: position \d, slot \d, layer 0, FULL_K: expected -?\d+, .* found",
    ):
        full.check_row(7, torch.tensor(wrong), PREFIXES)


def test_other_prefix_of_the_same_token_is_noticed(full: SimulatedForward) -> None:
    """E1: KV of the same token behind another prefix is other KV."""
    full.write(SLOTS[:2], prefix_fingerprints(np.array([9, 1], dtype=np.uint32)))
    with pytest.raises(InvariantViolation, match="position 0"):
        full.check_row(7, SLOTS[:2], PREFIXES[:2])


def test_window_is_read_through_its_half(
    windowed: tuple[SimulatedForward, SWATokenToKVPoolAllocator, torch.Tensor],
) -> None:
    """S1: halves behind the window may be gone, those inside it are read and compared."""
    forward, allocator, slots = windowed
    forward.write(slots, PREFIXES)
    allocator.free_swa(slots[:6])
    forward.check_row(7, slots, PREFIXES)
    assert forward.checked_tokens == 14
    with pytest.raises(InvariantViolation, match=r"S1: request 7: position 5, slot 8 has no SWA half"):
        forward.check_row(7, slots[:9], PREFIXES[:9])


def test_moved_half_with_other_content_is_noticed(
    windowed: tuple[SimulatedForward, SWATokenToKVPoolAllocator, torch.Tensor],
) -> None:
    """E1: the full half being right does not excuse the SWA half."""
    forward, allocator, slots = windowed
    forward.write(slots, PREFIXES)
    allocator.free_swa(slots[9:])
    allocator.move_swa(slots[:1], slots[9:])
    with pytest.raises(InvariantViolation, match=r"E1: .* position 9, .* SWA_K"):
        forward.check_row(7, slots, PREFIXES)


@pytest.mark.parametrize("has_pools", [True], indirect=True)
def test_padding_that_lands_in_a_live_slot_is_noticed(
    full: SimulatedForward, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E5: planted as the bug of -1 used as a padding index, which hits the last slot."""
    write: Callable[..., None] = KVPool.set_kv_buffer

    def astray(pool: KVPool, layer: int, indices: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        write(pool, layer, torch.where(indices == 0, 16, indices), k, v)

    full.write(SLOTS[:3], PREFIXES[:3])
    full.check_untouched()
    monkeypatch.setattr(KVPool, "set_kv_buffer", astray)
    full.write(SLOTS[3:6], PREFIXES[3:6])
    full.check_row(7, SLOTS[:6], PREFIXES[:6])
    with pytest.raises(InvariantViolation, match="E5: slot 16, layer 0, FULL_K holds"):
        full.check_untouched()


def test_slots_may_have_higher_numbers_than_there_are_in_use() -> None:
    """E1: where the other half is the smaller one, not all slots can be handed out at one time."""
    forward = SimulatedForward(EngineConfig(capacity=8).rounded(), None, slots=16)
    forward.write(SLOTS[-2:], PREFIXES[:2])
    forward.check_row(7, SLOTS[-2:], PREFIXES[:2])
    assert forward.unchecked_writes == 1
    forward.check_untouched()
    assert forward.unchecked_writes == 0


@pytest.mark.parametrize("stray", [-1, 3])
def test_padding_that_names_another_slot_is_noticed(
    full: SimulatedForward, monkeypatch: pytest.MonkeyPatch, stray: int
) -> None:
    """E5: before anything is written."""

    def pad(values: np.ndarray, padding: int = 0) -> np.ndarray:
        return np.concatenate([values, [stray]])

    monkeypatch.setattr("pymllm.workloads.engine_forward.padded", pad)
    with pytest.raises(InvariantViolation, match=f"E5: the padding of a batch names slot {stray}"):
        full.write(SLOTS[:3], PREFIXES[:3])


TRACK_SLOT = 10


@pytest.fixture
def pool() -> GDNPool:
    """Make room for nine working states and two snapshots."""
    return GDNPool(9, 2, 1, 2, 2, 2, 2, device="cpu", max_track_slots=2)


@pytest.fixture
def model(pool: GDNPool) -> SimulatedRecurrent:
    """Make a model over the pool."""
    return SimulatedRecurrent(pool, seed=0)


def live_in(row: int, request: Request) -> LiveRequest:
    """Give a request a row."""
    live = LiveRequest(request, place=1)
    live.row = row
    return live


def prefilled(model: SimulatedRecurrent, live: LiveRequest, *ends: int) -> LiveRequest:
    """Let a request take in its tokens up to each of some ends."""
    for end in ends:
        start, live.length = live.length, end
        model.prefill(live, start)
    return live


def test_chunks_end_in_the_state_of_a_cold_run(pool: GDNPool, model: SimulatedRecurrent, ask: Ask) -> None:
    """E1: the same state however the prompt is cut, in whole numbers that the dtypes hold exactly."""
    one = prefilled(model, live_in(3, ask(0, 20)), 20)
    many = prefilled(model, live_in(4, ask(0, 20)), 1, 7, 19, 20)
    for live in (one, many):
        model.check(live)
    assert torch.equal(pool.recurrent_state[:, 3], pool.recurrent_state[:, 4])
    assert torch.equal(pool.conv_state[:, 3], pool.conv_state[:, 4])
    for state in (pool.recurrent_state, pool.conv_state):
        assert state[:, 3].count_nonzero() > 0
        assert torch.equal(state[:, 3], state[:, 3].round())
    assert model.checked_states == 2
    model.check_untouched()


def test_decoded_tokens_are_taken_in_by_the_whole_batch(model: SimulatedRecurrent, ask: Ask) -> None:
    """E1: each request of a batch takes in its own token, in its own namespace."""
    lives = [
        prefilled(model, live_in(2, ask(0, 6, 5)), 6),
        prefilled(model, live_in(5, ask(1, 9, 5, namespace="a")), 9),
    ]
    for step in range(3):
        model.decode(lives, np.array([2, 5]), np.array([6 + step, 9 + step]))
    for live in lives:
        live.length += 3
        model.check(live)
    model.check_untouched()


@pytest.mark.parametrize("start", [6, 8])
def test_state_of_another_length_is_noticed(start: int, model: SimulatedRecurrent, ask: Ask) -> None:
    """E1: a token taken in twice, or left out; the message names request, row, length and element."""
    live = prefilled(model, live_in(3, ask(0, 20)), 7)
    live.length = 20
    model.prefill(live, start)
    with pytest.raises(
        InvariantViolation,
        match=r"E1: request 0: recurrent_state of row 3 after 20 tokens, layer 0, element 0: expected \d+",
    ):
        model.check(live)


def test_wrong_state_stays_wrong_whatever_is_taken_in(
    pool: GDNPool, model: SimulatedRecurrent, ask: Ask
) -> None:
    """E1: a step goes on from what the pool has, so that no chunk and no token mends what was lost."""
    lives = [prefilled(model, live_in(row, ask(row, 20, 9)), 7) for row in (2, 3)]
    pool.recurrent_state[0, 3].view(-1)[0] += 1
    for live in lives:
        prefilled(model, live, 20)
    model.decode(lives, np.array([2, 3]), np.array([20, 20]))
    for live in lives:
        live.length += 1
    model.check(lives[0])
    with pytest.raises(InvariantViolation, match="E1: request 3: recurrent_state of row 3 after 21 tokens"):
        model.check(lives[1])


def test_snapshot_brings_the_state_back(pool: GDNPool, model: SimulatedRecurrent, ask: Ask) -> None:
    """E1, P5: a copy there and back is the state; one of a row that went on is another."""
    live = prefilled(model, live_in(3, ask(0, 20)), 7)
    pool.copy_states(3, TRACK_SLOT)
    model.note_copy(3, TRACK_SLOT)
    prefilled(model, live, 20)
    again = live_in(6, ask(0, 20))
    pool.copy_states(TRACK_SLOT, 6)
    model.note_copy(TRACK_SLOT, 6)
    again.length = 7
    model.check(again)
    prefilled(model, again, 20)
    model.check(again)
    pool.reset_states(6)
    model.note_reset(6)
    model.check_untouched()
    with pytest.raises(InvariantViolation, match="E1"):
        model.check(again)


@pytest.mark.parametrize("name", ["recurrent_state", "conv_state"])
def test_one_changed_bit_is_noticed(name: str, pool: GDNPool, model: SimulatedRecurrent, ask: Ask) -> None:
    """E1: minus zero equals zero, and is another state."""
    live = live_in(3, ask(0, 20))
    model.check(live)
    getattr(pool, name)[1, 3].view(-1)[-1] = -0.0
    with pytest.raises(InvariantViolation, match=f"E1: request 0: {name} of row 3"):
        model.check(live)


@pytest.mark.parametrize("name", ["recurrent_state", "conv_state"])
def test_write_into_another_row_is_noticed(name: str, pool: GDNPool, model: SimulatedRecurrent) -> None:
    """E5: row 0 may hold anything, every other row only what was written to it."""
    getattr(pool, name)[:, 0] = 9
    model.check_untouched()
    getattr(pool, name)[1, TRACK_SLOT].view(-1)[1] = 9
    with pytest.raises(InvariantViolation, match=f"E5: {name} of row 10, layer 1, element 1 holds 9"):
        model.check_untouched()


def test_padding_goes_to_row_zero(pool: GDNPool, model: SimulatedRecurrent, ask: Ask) -> None:
    """E5: a batch of one is padded, and its garbage is nobody's state."""
    prefilled(model, live_in(3, ask(0, 20)), 7)
    assert pool.recurrent_state[:, 0].count_nonzero() > 0
    untouched = [row for row in range(1, 12) if row != 3]
    assert pool.recurrent_state[:, untouched].count_nonzero() == 0
    model.check_untouched()


def test_it_has_the_state_of_every_prefix_in_each_buffer(ask: Ask) -> None:
    """E1: bit for bit what each buffer's own model says of as many tokens, and what each token adds."""
    pool = GDNPool(9, 2, 1, 2, 2, 2, 2, device="cpu", max_track_slots=2)
    model = SimulatedRecurrent(pool, seed=0)
    live = LiveRequest(ask(0, 20, namespace="a"), place=1)
    live.row, live.length = 3, 1
    model.prefill(live, 0)
    run = live.cold_run
    assert run is not None
    kinds = [RecurrentStates((2, 4), torch.float32, 1), RecurrentStates((2, 2), torch.bfloat16, 2)]
    for kind, bits in zip(kinds, run.bits, strict=True):
        for length in range(len(live.tokens) + 1):
            expected = bit_view(kind.cold(live.tokens[:length], "a")).numpy()
            assert np.array_equal(bits[:, length], expected)
    inputs = [kind.recurrence.inputs(live.tokens, "a") for kind in kinds]
    assert np.array_equal(run.inputs, np.concatenate(inputs, axis=1))


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
    """E1: what is computed for all lengths at once, or for one, is what a plain loop says of it."""
    recurrence = Recurrence(4, prime, salt=1)
    states = recurrence.cold_run(recurrence.inputs(CHUNK[:length], "a"))
    assert states.tolist() == [one_by_one(recurrence, CHUNK[:at], "a") for at in range(length + 1)]
    assert recurrence.cold(CHUNK[:length], "a").tolist() == states[-1].tolist()


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
