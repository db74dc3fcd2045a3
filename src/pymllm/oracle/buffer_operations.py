"""The operations of the buffers that hold keys and values (kind ``buffers``)."""

from __future__ import annotations

from dataclasses import dataclass

from pymllm.oracle.slot_init import built_through_slots

__all__ = [
    "BUFFER_OPERATIONS",
    "SHAPES",
    "MoveKV",
    "ReadKV",
    "WriteKV",
]

SHAPES = ("flat", "heads", "strided", "batch")
"""The shapes that rows of keys and values may be written in."""


@built_through_slots
@dataclass(frozen=True, slots=True)
class WriteKV:
    """Write rows of keys and values (P3).

    Parameters
    ----------
    layer : int
        Layer.
    slots : tuple of int
        One per row; 0 takes padding.
    keys, values : tuple of tuple of int
        One row of integers for each slot, as long as a row of the buffer, each in -128 .. 127: an adapter
        stores them as numbers or as the bit patterns of its dtype, and reads them back likewise.
    shape : str
        ``"flat"`` is ``[n, heads * dim]``, ``"heads"`` ``[n, heads, dim]``, ``"strided"`` the same with gaps
        in memory, ``"batch"`` ``[1, n, heads, dim]`` with slots ``[1, n]``.
    form : str
        That of the slots, as of `Free`; a batch's are a row as they are.
    """

    layer: int
    slots: tuple[int, ...]
    keys: tuple[tuple[int, ...], ...]
    values: tuple[tuple[int, ...], ...]
    shape: str = "heads"
    form: str = "int64"


@built_through_slots
@dataclass(frozen=True, slots=True)
class MoveKV:
    """Write rows that are views of the layer's own buffers, all read before one is written (P3).

    ``count`` rows from ``source`` on go to as many from ``target`` on.
    """

    layer: int
    source: int
    target: int
    count: int


@built_through_slots
@dataclass(frozen=True, slots=True)
class ReadKV:
    """Read both whole buffers of a layer; answered by `Buffers`."""

    layer: int


BUFFER_OPERATIONS: tuple[type, ...] = (WriteKV, MoveKV, ReadKV)
"""Those that no other kind has."""
