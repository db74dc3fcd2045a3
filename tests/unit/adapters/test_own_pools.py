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
from pymllm.history.operations import (
    AllocRows,
    AllocTrack,
    Clear,
    CopyStates,
    FreeRow,
    FreeTrack,
    HashBytes,
    HashInt64,
    HashPage,
    Key,
    Malformed,
    MoveKV,
    Operation,
    PickToken,
    ReadKV,
    ReadRows,
    ReadStates,
    ResetStates,
    SliceKey,
    Span,
    WriteEntries,
    WriteKV,
    WriteRow,
    WriteState,
)
from pymllm.history.outcomes import (
    Buffers,
    Done,
    Failed,
    Hashes,
    NoRoom,
    Number,
    Outcome,
    Result,
    Slots,
    States,
    Table,
    Tokens,
    Unsupported,
)

# -- What the adapters of our pools do alike, seen on the one of rows and on its parts -----------------------


ADAPTERS = [Rows, KVBuffers, GDNStates, KeysAndHashes]
FIRST, PADDING = Span(1, 0, 1), Span(0, 0, 1)
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


def play(adapter: OwnPool, *operations: Operation) -> list[Outcome]:
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
            result = adapter.apply(step, Malformed(call, wrong)).result
            assert isinstance(result, Failed), (call, wrong, config)
            assert result.error in ("TypeError", "ValueError", "OwnershipError"), (call, wrong, result)


@pytest.mark.parametrize("adapter_class", ADAPTERS)
def test_a_malformed_call_that_is_not_known_is_not_made(adapter_class: type[OwnPool]) -> None:
    """Another adapter's list may be longer."""
    adapter = adapter_class("x", adapter_class.CONFIGURATIONS[0])
    assert adapter.apply(1, Malformed("fly", "no wings")).result == Unsupported("fly with no wings")


def test_a_malformed_call_that_passes_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """X1: the adapter does not judge."""
    monkeypatch.setattr(Rows, "MALFORMED", {("fly", "no wings"): lambda pool: pool.alloc(1)})
    outcome = Rows("x", Rows.CONFIGURATIONS[0]).apply(1, Malformed("fly", "no wings"))
    assert outcome == Outcome(Done(), (), {"size": 3, "available_size": 2})


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
        Rows("x", Rows.CONFIGURATIONS[0]).apply(1, FreeRow(Span(0, 1, 3)))


def test_an_adapter_that_does_not_say_what_it_adapts_cannot_be_made() -> None:
    """X1: a forgotten method is an error when the adapter is made, not when it is asked."""
    unfinished = type("Unfinished", (OwnPool,), {"KIND": "rows"})
    with pytest.raises(TypeError, match=r"abstract method '?make_pool"):
        unfinished("x", Rows.CONFIGURATIONS[0])


# -- The adapter of `ReqToTokenPool`: what was asked arrives, and what came back is told ---------------------


def test_rows_are_told_with_what_is_available() -> None:
    """P1, X4: rows as the pool chose them, and `None` as no room."""
    taken, failed = play(rows(), AllocRows(1), AllocRows(2))
    assert taken == Outcome(Slots((1,)), (), {"size": 2, "available_size": 1})
    assert failed == Outcome(NoRoom(), (), {"size": 2, "available_size": 1})


@pytest.mark.parametrize("form", ["int32", "int64", "uint8", "int16 strided"])
def test_writes_land_in_the_table(form: str) -> None:
    """P3, E5: a stretch, and entries with padding, in every form."""
    *_, read = play(
        rows(),
        AllocRows(1),
        WriteRow(FIRST, 1, 3, (4, 5), form),
        WriteEntries((FIRST, PADDING), (0, 2), (6, 7), form),
        ReadRows(),
    )
    assert read.result == Table(((0, 0, 7), (6, 4, 5), (0, 0, 0)))


def test_a_row_is_given_back_and_everything_with_a_clear() -> None:
    """P2, X7: the table is blank again."""
    adapter = rows()
    write = WriteRow(FIRST, 0, 1, (4,))
    _, _, freed, twice = play(adapter, AllocRows(1), write, FreeRow(FIRST), FreeRow(FIRST))
    assert freed == Outcome(Done(), (), {"size": 2, "available_size": 2})
    assert isinstance(twice.result, Failed)
    assert twice.result.error == "OwnershipError"
    *_, cleared, read = play(adapter, AllocRows(2), write, Clear(), ReadRows())
    assert cleared == Outcome(Done(), (), {"size": 2, "available_size": 2})
    assert read.result == Table(((0, 0, 0),) * 3)


# -- The adapter of `KVPool`: what was asked arrives, and what came back is told -----------------------------


WRITE = WriteKV(1, (2, 1), ((3, 4), (5, -6)), ((-7,), (8,)))


@pytest.mark.parametrize("dtype", ["int64", "float32", "float16", "bfloat16", "float8_e5m2"])
@pytest.mark.parametrize("shape", ["heads", "flat", "strided", "batch"])
def test_rows_arrive_in_every_shape_and_dtype(shape: str, dtype: str) -> None:
    """P3: bit for bit, in the layer that was named."""
    write = WriteKV(1, WRITE.slots, WRITE.keys, WRITE.values, shape, "int32 strided")
    done, other, read = play(buffers(dtype), write, ReadKV(0), ReadKV(1))
    assert done == Outcome(Done())
    assert other.result == Buffers(((0, 0),) * 3, ((0,),) * 3)
    assert read.result == Buffers(((0, 0), (5, -6), (3, 4)), ((0,), (8,), (-7,)))


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
        play(adapter, WriteKV(1, WRITE.slots, WRITE.keys, WRITE.values, shape))
    flat, batch = torch.Size([2]), torch.Size([1, 2])
    assert seen == [
        (flat, torch.Size([2, 2, 1]), True),
        (flat, torch.Size([2, 2]), True),
        (flat, torch.Size([2, 2, 1]), False),
        (batch, torch.Size([1, 2, 2, 1]), True),
    ]


def test_no_row_and_rows_of_another_width_are_handed_over_as_they_are() -> None:
    """P3, X1: the pool decides what it takes, not the adapter."""
    none, wide = play(buffers(), WriteKV(0, (), (), ()), WriteKV(0, (1,), ((1, 2, 3),), ((4,),)))
    assert none.result == Done()
    assert isinstance(wide.result, Failed)
    assert wide.result.error == "ValueError"


def test_rows_move_inside_the_buffers() -> None:
    """P3: views of the buffers themselves."""
    *_, read = play(buffers(), WRITE, MoveKV(1, 1, 0, 2), ReadKV(1))
    assert read.result == Buffers(((5, -6), (3, 4), (3, 4)), ((8,), (-7,), (-7,)))


# -- The adapter of `GDNPool`: what was asked arrives, and what came back is told ----------------------------


WORKING, TRACK = Span(0, 1, 2), Span(1, 0, 1)
NO_SLOT = {"max_track_slots": 1, "available_track_slots": 0}
ONE_SLOT = {"max_track_slots": 1, "available_track_slots": 1}


def test_track_slots_are_told_with_what_is_available() -> None:
    """P5, X4: the slot as the pool chose it, and `None` as no room."""
    taken, failed, freed, twice = play(
        states(), AllocTrack(), AllocTrack(), FreeTrack(TRACK), FreeTrack(TRACK)
    )
    assert taken == Outcome(Slots((2,)), (), NO_SLOT)
    assert failed == Outcome(NoRoom(), (), NO_SLOT)
    assert freed == Outcome(Done(), (), ONE_SLOT)
    assert isinstance(twice.result, Failed)
    assert (twice.result.error, twice.sizes) == ("OwnershipError", ONE_SLOT)


@pytest.mark.parametrize("form", ["int64", "int32", "uint8", "int16 strided"])
def test_states_are_written_copied_and_reset(form: str) -> None:
    """P4, P5: every element in its place, and the form of both views told."""
    write = WriteState(1, WORKING, 4, -3, 2)
    copy, reset = CopyStates((WORKING,), (TRACK,), form), ResetStates((WORKING,), form)
    *_, copied, _, zeroed, other = play(
        states(), AllocTrack(), write, copy, ReadStates(1), reset, ReadStates(1), ReadStates(0)
    )
    shapes = ((3, 1, 1, 2), (3, 1, 2), "float32", "bfloat16")
    blank = (0, 0)
    assert copied.result == States((blank, (4, 6), (4, 6)), (blank, (-3, -1), (-3, -1)), *shapes)
    assert zeroed.result == States((blank, blank, (4, 6)), (blank, blank, (-3, -1)), *shapes)
    assert other.result == States((blank,) * 3, (blank,) * 3, *shapes)


def test_a_clear_takes_everything_back() -> None:
    """X7: slots and states."""
    *_, cleared, read = play(states(), AllocTrack(), WriteState(0, WORKING, 1, 1), Clear(), ReadStates(0))
    assert cleared == Outcome(Done(), (), ONE_SLOT)
    assert isinstance(read.result, States)
    assert read.result.recurrent == read.result.conv == ((0, 0),) * 3


# -- The adapter of `RadixKey` and the hash functions: what was asked arrives, and what came back is told ----


# sha256sum of 01 00 00 00 and of the letters "abc".
DIGEST_OF_1 = "67abdd721024f0ff4e0b3f4c2fc13bc5bad42d0b7851d456d88d203d15aaa450"
FIRST_OF_ABC = 0xBA7816BF8F01CFEA


def result_of(operation: Operation) -> Result:
    return KeysAndHashes("x", {}).apply(1, operation).result


@pytest.mark.parametrize("form", CONTAINERS)
def test_keys_are_read_from_every_container(form: str) -> None:
    """K1: plain numbers come out, whatever they went in as."""
    key = Key((7, 8, 9), "a", form)
    assert result_of(SliceKey(key, 1, None)) == Tokens((8, 9), "a")
    assert result_of(PickToken(key, -1)) == Tokens((9,), "a")
    assert result_of(HashPage(Key((1,), None, form))) == Hashes((DIGEST_OF_1,))


def test_tuples_stay_tuples() -> None:
    """K1: bigrams."""
    assert result_of(SliceKey(Key(((1, 2), (3, 4)), 5), 1, 2)) == Tokens(((3, 4),), 5)


def test_numbers_are_told() -> None:
    """H1: digests and bytes as integers."""
    assert result_of(HashInt64("f" * 16)) == Number(-1)
    assert result_of(HashBytes(b"abc".hex())) == Number(FIRST_OF_ABC)


def test_a_prior_is_passed_on() -> None:
    """H1: and what is none is refused there."""
    assert result_of(HashPage(Key((1,)), DIGEST_OF_1)) != Hashes((DIGEST_OF_1,))
    refused = result_of(HashPage(Key((1,)), "no digest"))
    assert isinstance(refused, Failed)
    assert refused.error == "ValueError"


@pytest.mark.parametrize("form", ["int32", "tensor32", "array"])
def test_tokens_that_a_container_cannot_hold_never_reach_the_class(form: str) -> None:
    """The container's error is not booked as the class's."""
    assert isinstance(result_of(HashPage(Key((2**40,), None, form))), Unsupported)
