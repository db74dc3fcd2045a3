"""The adapter of `KVPool`: what was asked arrives, and what came back is told."""

from __future__ import annotations

import pytest
import torch

from pymllm.adapters.own_pools import KVBuffers
from pymllm.errors import InvariantViolation
from pymllm.history.operations import MoveKV, Operation, ReadKV, WriteKV
from pymllm.history.outcomes import Buffers, Done, Failed, Outcome

CONFIG = {"size": 2, "page_size": 1, "layers": 2, "k_heads": 2, "k_dim": 1, "v_heads": 1, "v_dim": 1}
WRITE = WriteKV(1, (2, 1), ((3, 4), (5, -6)), ((-7,), (8,)))


def make(dtype: str = "float16") -> KVBuffers:
    return KVBuffers("x", {**CONFIG, "dtype": dtype})


def play(adapter: KVBuffers, *operations: Operation) -> list[Outcome]:
    return [adapter.apply(step, operation) for step, operation in enumerate(operations, 1)]


@pytest.mark.parametrize("dtype", ["int64", "float32", "float16", "bfloat16", "float8_e5m2"])
@pytest.mark.parametrize("shape", ["heads", "flat", "strided", "batch"])
def test_rows_arrive_in_every_shape_and_dtype(shape: str, dtype: str) -> None:
    """P3: bit for bit, in the layer that was named."""
    write = WriteKV(1, WRITE.slots, WRITE.keys, WRITE.values, shape, "int32 strided")
    done, other, read = play(make(dtype), write, ReadKV(0), ReadKV(1))
    assert done == Outcome(Done())
    assert other.result == Buffers(((0, 0),) * 3, ((0,),) * 3)
    assert read.result == Buffers(((0, 0), (5, -6), (3, 4)), ((0,), (8,), (-7,)))


def test_the_shapes_are_the_documented_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """P3: what reaches the pool has the dimensions that the operation names."""
    seen = []
    adapter = make()
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
    none, wide = play(make(), WriteKV(0, (), (), ()), WriteKV(0, (1,), ((1, 2, 3),), ((4,),)))
    assert none.result == Done()
    assert isinstance(wide.result, Failed)
    assert wide.result.error == "ValueError"


def test_rows_move_inside_the_buffers() -> None:
    """P3: views of the buffers themselves."""
    *_, read = play(make(), WRITE, MoveKV(1, 1, 0, 2), ReadKV(1))
    assert read.result == Buffers(((5, -6), (3, 4), (3, 4)), ((8,), (-7,), (-7,)))


def test_the_audit_looks_inside() -> None:
    """P3: the form of the buffers."""
    adapter = make()
    assert adapter.audit() == ("P3",)
    adapter.pool.k_buffer.pop()
    with pytest.raises(InvariantViolation, match="P3"):
        adapter.audit()
