"""Adapters of our rows, buffers, states, keys and hashes: what they show and refuse.

Whether what is asked arrives and what comes back is told, the judge says of all programs in tests/properties.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pymllm.adapters.far import FAR
from pymllm.adapters.key_forms import read_namespace, spell_namespace
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
    """P2, P3, P5: the table, the form of the buffers, the trackers of the track slots."""
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
        play(adapter, ops.WriteKV(1, (2, 1), ((3, 4), (5, -6)), ((-7,), (8,)), shape))
    flat, batch = torch.Size([2]), torch.Size([1, 2])
    assert seen == [
        (flat, torch.Size([2, 2, 1]), True),
        (flat, torch.Size([2, 2]), True),
        (flat, torch.Size([2, 2, 1]), False),
        (batch, torch.Size([1, 2, 2, 1]), True),
    ]


@pytest.mark.parametrize("form", ["int32", "tensor32", "array"])
def test_tokens_that_a_container_cannot_hold_never_reach_the_class(form: str) -> None:
    """The container's error is not booked as the class's."""
    asked = ops.HashPage(ops.Key((2**40,), None, form))
    assert isinstance(KeysAndHashes("x", {}).apply(1, asked).result, out.Unsupported)


def test_a_namespace_of_one_value_is_spelled_as_text() -> None:
    """K1, K2: and read again; several values are none of its business."""
    for namespace in (None, "", "1", 1, "i:1", -1):
        assert read_namespace(spell_namespace(namespace)) == namespace
    with pytest.raises(ValueError, match=r"^the namespace \('a', 1\) has several values; spell each"):
        spell_namespace(("a", 1))


def test_rows_that_lie_apart_are_so_many_rows_of_the_pool_apart() -> None:
    """P3, P5: what a program calls row 2 is row 10; track slots come behind the last working row."""
    config = {**BUFFERS, "dtype": "int64", "apart": 5}
    buffers = KVBuffers("x", config)
    written = ops.WriteKV(1, (2, 0), ((3, 4), (5, 6)), ((7,), (8,)), "heads", "uint8")
    assert isinstance(buffers.apply(1, written).result, out.Done)
    assert isinstance(buffers.apply(2, ops.MoveKV(1, 1, 0, 2)).result, out.Done)
    kept = [buffers.pool.k_buffer[1][row].flatten().tolist() for row in (0, 5, 10)]
    assert (kept, len(buffers.pool.k_buffer[1])) == ([[0, 0], [3, 4], [3, 4]], 11)
    assert buffers.pool.mem_bytes() == 2 * 11 * 3 * 8
    assert buffers.apply(3, ops.ReadKV(1)).result == out.Buffers(((0, 0), (3, 4), (3, 4)), ((0,), (7,), (7,)))
    states = GDNStates("x", {**STATES, "apart": 5})
    assert states.apply(1, ops.AllocTrack()).result == out.Slots((2,))
    assert [states.row(number) for number in (-1, 0, 1, 2, 3)] == [-5, 0, 5, 6, 7]
    assert isinstance(states.apply(2, ops.WriteState(0, ops.Span(0, 1, 2), 9, 8)).result, out.Done)
    view = states.apply(3, ops.ReadStates(0)).result
    assert isinstance(view, out.States)
    assert view.recurrent == tuple(map(tuple, as_numbers(states.pool.recurrent_state[0, [0, 5, 6]])))
    assert [any(row) for row in view.recurrent] == [False, True, False]


def test_rows_that_lie_far_apart_need_a_machine_with_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """X1: said before anything is taken."""
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=2**30))
    with pytest.raises(MemoryError, match=r"4\.5 GiB is needed, .* 1\.0 GiB are available"):
        KVBuffers("x", FAR["kv-buffers"][0])
