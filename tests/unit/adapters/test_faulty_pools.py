"""Wrong rows, buffers, states and hashes: the smallest program that shows each fault."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pymllm.adapters import faulty_pools
from pymllm.adapters.faulty import Faulty
from pymllm.history.operations import (
    AllocRows,
    AllocTrack,
    CopyStates,
    FreeRow,
    HashInt64,
    Key,
    Malformed,
    Operation,
    ReadKV,
    ReadRows,
    ReadStates,
    SliceKey,
    Span,
    WriteKV,
    WriteRow,
    WriteState,
)

ROW = Span(1, 0, 1)


def write(slot: int) -> WriteKV:
    return WriteKV(0, (slot,), ((1, 2),), ((3, 4, 5),))


PROGRAMS: list[tuple[type[Faulty], tuple[Operation, ...]]] = [
    (faulty_pools.RowZero, (AllocRows(1),)),
    (faulty_pools.DirtyRows, (AllocRows(1), WriteRow(ROW, 0, 1, (7,)), FreeRow(ROW), ReadRows())),
    (faulty_pools.WritesEverywhere, (write(1), ReadKV(1))),
    (faulty_pools.SilentCasts, (Malformed("write_kv", "keys of another dtype"),)),
    (faulty_pools.LostPadding, (write(0), ReadKV(0))),
    (faulty_pools.WorkingSnapshots, (AllocTrack(),)),
    (
        faulty_pools.OneLayerCopies,
        (WriteState(1, Span(0, 1, 2), 5, 6), CopyStates((Span(0, 1, 2),), (Span(0, 2, 3),)), ReadStates(1)),
    ),
    (faulty_pools.SwappedHeads, (ReadStates(0),)),
    (faulty_pools.LostNamespace, (SliceKey(Key((1, 2), "a"), 0, 1),)),
    (faulty_pools.UnsignedDigests, (HashInt64("f" * 64),)),
]


@pytest.mark.parametrize(
    ("faulty", "program"), PROGRAMS, ids=lambda value: getattr(value, "__name__", "program")
)
def test_the_fault_breaks_its_law(
    assert_caught: Callable[..., None], faulty: type[Faulty], program: tuple[Operation, ...]
) -> None:
    """P1 to P5, E5, K1, H1: the last step breaks the law, and the sound sibling keeps it."""
    assert_caught(faulty, *program)


def test_every_class_is_shown() -> None:
    """No fault without a program."""
    assert sorted(faulty.__name__ for faulty, _ in PROGRAMS) == sorted(faulty_pools.__all__)
