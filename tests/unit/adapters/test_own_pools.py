"""Adapters of our rows, buffers, states, keys and hashes: what they pass on, show and refuse."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pymllm.adapters.key_forms import CONTAINERS
from pymllm.adapters.own_pools import (
    GDNStates,
    KeysAndHashes,
    KVBuffers,
    OwnPool,
    Rows,
    as_elements,
    as_numbers,
)
from pymllm.errors import InvariantViolation, ProgramError
from pymllm.history import operations as ops
from pymllm.history import outcomes as out

# -- What the adapters of our pools do alike, seen on the one of rows and on its parts -----------------------


ADAPTERS = [Rows, KVBuffers, GDNStates, KeysAndHashes]
FIRST, PADDING = ops.Span(1, 0, 1), ops.Span(0, 0, 1)
BUFFERS = {"size": 2, "page_size": 1, "layers": 2, "k_heads": 2, "k_dim": 1, "v_heads": 1, "v_dim": 1}
STATES: dict[str, int | str | bool | None] = {
    **{"max_reqs": 1, "layers": 2, "v_heads": 1, "k_dim": 2, "v_dim": 1, "conv_dim": 1, "kernel": 3},
    **{"dtype": "bfloat16", "track_slots": 1},
}


def rows() -> Rows:
    return Rows("x", {"max_reqs": 2, "max_context_len": 3})


def buffers(dtype: str = "float16") -> KVBuffers:
    return KVBuffers("x", {**BUFFERS, "dtype": dtype})


def states() -> GDNStates:
    return GDNStates("x", STATES)


def play(adapter: OwnPool, *operations: ops.Operation) -> list[out.Outcome]:
    return [adapter.apply(step, operation) for step, operation in enumerate(operations, 1)]


@pytest.mark.parametrize(
    ("adapter", "laws", "spoil"),
    [
        (rows(), "P1 P2 X3", lambda pool: pool.req_to_token[2].fill_(1)),
        (buffers(), "P3", lambda pool: pool.k_buffer.pop()),
        (states(), "P4 P5 X3", lambda pool: pool._free_track_slots.clear()),
    ],
)
def test_the_audit_looks_inside(adapter: OwnPool, laws: str, spoil: Callable[[Any], object]) -> None:
    """P2, P3, P5: the table, the form of the buffers, the books of the track slots."""
    assert set(adapter.audit()) == set(laws.split())
    spoil(adapter.pool)
    with pytest.raises(InvariantViolation, match=r"^P[235]"):
        adapter.audit()


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn]
)
def test_elements_carry_their_bits_there_and_back(dtype: torch.dtype) -> None:
    """P5: every number of eight bits, in any dtype, NaNs with a payload among them."""
    numbers = tuple(range(-128, 128))
    elements = as_elements(numbers, dtype)
    assert elements.dtype is dtype
    assert as_numbers(elements.view(2, 2, 64)) == (numbers[:128], numbers[128:])


def test_a_number_of_bits_is_not_the_number() -> None:
    """P3: -1 is a NaN in each floating point type, which no comparison of values would find again."""
    assert math.isnan(as_elements([-1], torch.bfloat16).item())
    assert as_elements([1], torch.float32).item() != 1


def test_rows_without_elements_stay_rows() -> None:
    """P4: a convolution of width 1 keeps nothing, for each row."""
    assert as_numbers(torch.zeros(3, 2, 0)) == ((), (), ())


@pytest.mark.parametrize("adapter_class", ADAPTERS)
def test_every_configuration_can_be_built(adapter_class: type[OwnPool]) -> None:
    """Each is the object that it names, whole as seen from inside."""
    for config in adapter_class.CONFIGURATIONS:
        adapter = adapter_class("x", config)
        assert adapter.config == config
        assert set(adapter.audit()) <= {"P1", "P2", "P3", "P4", "P5", "X3"}


@pytest.mark.parametrize("adapter_class", ADAPTERS)
def test_every_malformed_call_is_refused(adapter_class: type[OwnPool]) -> None:
    """X1: none of our classes lets one through, whatever its configuration."""
    for config in adapter_class.CONFIGURATIONS:
        adapter = adapter_class("x", config)
        for step, (call, wrong) in enumerate(adapter_class.MALFORMED, 1):
            result = adapter.apply(step, ops.Malformed(call, wrong)).result
            assert isinstance(result, out.Failed), (call, wrong, config)
            assert result.error in ("TypeError", "ValueError", "OwnershipError"), (call, wrong, result)


@pytest.mark.parametrize("adapter_class", ADAPTERS)
def test_a_malformed_call_that_is_not_known_is_not_made(adapter_class: type[OwnPool]) -> None:
    """Another adapter's list may be longer."""
    adapter = adapter_class("x", adapter_class.CONFIGURATIONS[0])
    assert adapter.apply(1, ops.Malformed("fly", "no wings")).result == out.Unsupported("fly with no wings")


def test_a_malformed_call_that_passes_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """X1: the adapter does not judge."""
    monkeypatch.setattr(Rows, "MALFORMED", {("fly", "no wings"): lambda pool: pool.alloc(1)})
    outcome = Rows("x", Rows.CONFIGURATIONS[0]).apply(1, ops.Malformed("fly", "no wings"))
    assert outcome == out.Outcome(out.Done(), (), {"size": 3, "available_size": 2})


@pytest.mark.parametrize(
    ("adapter_class", "key", "value"),
    [
        (Rows, "max_reqs", None),
        (Rows, "max_context_len", "5"),
        (KVBuffers, "dtype", "int65"),
        (GDNStates, "dtype", None),
    ],
)
def test_a_configuration_that_lacks_something_is_named(
    adapter_class: type[OwnPool], key: str, value: str | None
) -> None:
    """X1: the key and what it was."""
    with pytest.raises(ValueError, match=f"{key} is {value!r}"):
        adapter_class("x", {**adapter_class.CONFIGURATIONS[0], key: value})


def test_one_number_is_named_by_one_number() -> None:
    """A span of two rows names no row to free, and the program is at fault, not the pool."""
    with pytest.raises(ProgramError, match="names 2 numbers"):
        Rows("x", Rows.CONFIGURATIONS[0]).apply(1, ops.FreeRow(ops.Span(0, 1, 3)))


def test_an_adapter_that_does_not_say_what_it_adapts_cannot_be_made() -> None:
    """X1: a forgotten method is an error when the adapter is made, not when it is asked."""
    unfinished = type("Unfinished", (OwnPool,), {"KIND": "rows"})
    with pytest.raises(TypeError, match=r"abstract method '?make_pool"):
        unfinished("x", Rows.CONFIGURATIONS[0])


# -- The adapter of `ReqToTokenPool`: what was asked arrives, and what came back is told ---------------------


def test_rows_are_told_with_what_is_available() -> None:
    """P1, X4: rows as the pool chose them, and `None` as no room."""
    taken, failed = play(rows(), ops.AllocRows(1), ops.AllocRows(2))
    assert taken == out.Outcome(out.Slots((1,)), (), {"size": 2, "available_size": 1})
    assert failed == out.Outcome(out.NoRoom(), (), {"size": 2, "available_size": 1})


@pytest.mark.parametrize("form", ["int32", "int64", "uint8", "int16 strided"])
def test_writes_land_in_the_table(form: str) -> None:
    """P3, E5: a stretch, and entries with padding, in every form."""
    *_, read = play(
        rows(),
        ops.AllocRows(1),
        ops.WriteRow(FIRST, 1, 3, (4, 5), form),
        ops.WriteEntries((FIRST, PADDING), (0, 2), (6, 7), form),
        ops.ReadRows(),
    )
    assert read.result == out.Table(((0, 0, 7), (6, 4, 5), (0, 0, 0)))


def test_a_row_is_given_back_and_everything_with_a_clear() -> None:
    """P2, X7: the table is blank again."""
    adapter = rows()
    write = ops.WriteRow(FIRST, 0, 1, (4,))
    _, _, freed, twice = play(adapter, ops.AllocRows(1), write, ops.FreeRow(FIRST), ops.FreeRow(FIRST))
    assert freed == out.Outcome(out.Done(), (), {"size": 2, "available_size": 2})
    assert isinstance(twice.result, out.Failed)
    assert twice.result.error == "OwnershipError"
    *_, cleared, read = play(adapter, ops.AllocRows(2), write, ops.Clear(), ops.ReadRows())
    assert cleared == out.Outcome(out.Done(), (), {"size": 2, "available_size": 2})
    assert read.result == out.Table(((0, 0, 0),) * 3)


# -- The adapter of `KVPool`: what was asked arrives, and what came back is told -----------------------------


WRITE = ops.WriteKV(1, (2, 1), ((3, 4), (5, -6)), ((-7,), (8,)))


@pytest.mark.parametrize("dtype", ["int64", "float32", "float16", "bfloat16", "float8_e5m2"])
@pytest.mark.parametrize("shape", ["heads", "flat", "strided", "batch"])
def test_rows_arrive_in_every_shape_and_dtype(shape: str, dtype: str) -> None:
    """P3: bit for bit, in the layer that was named."""
    write = ops.WriteKV(1, WRITE.slots, WRITE.keys, WRITE.values, shape, "int32 strided")
    done, other, read = play(buffers(dtype), write, ops.ReadKV(0), ops.ReadKV(1))
    assert done == out.Outcome(out.Done())
    assert other.result == out.Buffers(((0, 0),) * 3, ((0,),) * 3)
    assert read.result == out.Buffers(((0, 0), (5, -6), (3, 4)), ((0,), (8,), (-7,)))


def test_the_shapes_are_the_documented_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """P3: what reaches the pool has the dimensions that the operation names."""
    seen = []
    adapter = buffers()
    monkeypatch.setattr(
        adapter.pool,
        "set_kv_buffer",
        lambda layer, index, k, v: seen.append((index.shape, k.shape, k.is_contiguous())),
    )
    for shape in ("heads", "flat", "strided", "batch"):
        play(adapter, ops.WriteKV(1, WRITE.slots, WRITE.keys, WRITE.values, shape))
    flat, batch = torch.Size([2]), torch.Size([1, 2])
    assert seen == [
        (flat, torch.Size([2, 2, 1]), True),
        (flat, torch.Size([2, 2]), True),
        (flat, torch.Size([2, 2, 1]), False),
        (batch, torch.Size([1, 2, 2, 1]), True),
    ]


def test_no_row_and_rows_of_another_width_are_handed_over_as_they_are() -> None:
    """P3, X1: the pool decides what it takes, not the adapter."""
    none, wide = play(buffers(), ops.WriteKV(0, (), (), ()), ops.WriteKV(0, (1,), ((1, 2, 3),), ((4,),)))
    assert none.result == out.Done()
    assert isinstance(wide.result, out.Failed)
    assert wide.result.error == "ValueError"


def test_rows_move_inside_the_buffers() -> None:
    """P3: views of the buffers themselves."""
    *_, read = play(buffers(), WRITE, ops.MoveKV(1, 1, 0, 2), ops.ReadKV(1))
    assert read.result == out.Buffers(((5, -6), (3, 4), (3, 4)), ((8,), (-7,), (-7,)))


# -- The adapter of `GDNPool`: what was asked arrives, and what came back is told ----------------------------


WORKING, TRACK = ops.Span(0, 1, 2), ops.Span(1, 0, 1)
NO_SLOT = {"max_track_slots": 1, "available_track_slots": 0}
ONE_SLOT = {"max_track_slots": 1, "available_track_slots": 1}


def test_track_slots_are_told_with_what_is_available() -> None:
    """P5, X4: the slot as the pool chose it, and `None` as no room."""
    taken, failed, freed, twice = play(
        states(), ops.AllocTrack(), ops.AllocTrack(), ops.FreeTrack(TRACK), ops.FreeTrack(TRACK)
    )
    assert taken == out.Outcome(out.Slots((2,)), (), NO_SLOT)
    assert failed == out.Outcome(out.NoRoom(), (), NO_SLOT)
    assert freed == out.Outcome(out.Done(), (), ONE_SLOT)
    assert isinstance(twice.result, out.Failed)
    assert (twice.result.error, twice.sizes) == ("OwnershipError", ONE_SLOT)


@pytest.mark.parametrize("form", ["int64", "int32", "uint8", "int16 strided"])
def test_states_are_written_copied_and_reset(form: str) -> None:
    """P4, P5: every element in its place, and the form of both views told."""
    write = ops.WriteState(1, WORKING, 4, -3, 2)
    copy, reset = ops.CopyStates((WORKING,), (TRACK,), form), ops.ResetStates((WORKING,), form)
    *_, copied, _, zeroed, other = play(
        states(),
        ops.AllocTrack(),
        write,
        copy,
        ops.ReadStates(1),
        reset,
        ops.ReadStates(1),
        ops.ReadStates(0),
    )
    shapes = ((3, 1, 1, 2), (3, 1, 2), "float32", "bfloat16")
    blank = (0, 0)
    assert copied.result == out.States((blank, (4, 6), (4, 6)), (blank, (-3, -1), (-3, -1)), *shapes)
    assert zeroed.result == out.States((blank, blank, (4, 6)), (blank, blank, (-3, -1)), *shapes)
    assert other.result == out.States((blank,) * 3, (blank,) * 3, *shapes)


def test_a_clear_takes_everything_back() -> None:
    """X7: slots and states."""
    *_, cleared, read = play(
        states(), ops.AllocTrack(), ops.WriteState(0, WORKING, 1, 1), ops.Clear(), ops.ReadStates(0)
    )
    assert cleared == out.Outcome(out.Done(), (), ONE_SLOT)
    assert isinstance(read.result, out.States)
    assert read.result.recurrent == read.result.conv == ((0, 0),) * 3


# -- The adapter of `RadixKey` and the hash functions: what was asked arrives, and what came back is told ----


# sha256sum of 01 00 00 00 and of the letters "abc".
DIGEST_OF_1 = "67abdd721024f0ff4e0b3f4c2fc13bc5bad42d0b7851d456d88d203d15aaa450"
FIRST_OF_ABC = 0xBA7816BF8F01CFEA


def result_of(operation: ops.Operation) -> out.Result:
    return KeysAndHashes("x", {}).apply(1, operation).result


@pytest.mark.parametrize("form", CONTAINERS)
def test_keys_are_read_from_every_container(form: str) -> None:
    """K1: plain numbers come out, whatever they went in as."""
    key = ops.Key((7, 8, 9), "a", form)
    assert result_of(ops.SliceKey(key, 1, None)) == out.Tokens((8, 9), "a")
    assert result_of(ops.PickToken(key, -1)) == out.Tokens((9,), "a")
    assert result_of(ops.HashPage(ops.Key((1,), None, form))) == out.Hashes((DIGEST_OF_1,))


def test_tuples_stay_tuples() -> None:
    """K1: bigrams."""
    assert result_of(ops.SliceKey(ops.Key(((1, 2), (3, 4)), 5), 1, 2)) == out.Tokens(((3, 4),), 5)


def test_numbers_are_told() -> None:
    """H1: digests and bytes as integers."""
    assert result_of(ops.HashInt64("f" * 16)) == out.Number(-1)
    assert result_of(ops.HashBytes(b"abc".hex())) == out.Number(FIRST_OF_ABC)


def test_a_prior_is_passed_on() -> None:
    """H1: and what is none is refused there."""
    assert result_of(ops.HashPage(ops.Key((1,)), DIGEST_OF_1)) != out.Hashes((DIGEST_OF_1,))
    refused = result_of(ops.HashPage(ops.Key((1,)), "no digest"))
    assert isinstance(refused, out.Failed)
    assert refused.error == "ValueError"


@pytest.mark.parametrize("form", ["int32", "tensor32", "array"])
def test_tokens_that_a_container_cannot_hold_never_reach_the_class(form: str) -> None:
    """The container's error is not booked as the class's."""
    assert isinstance(result_of(ops.HashPage(ops.Key((2**40,), None, form))), out.Unsupported)
