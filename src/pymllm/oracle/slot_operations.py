"""The operations of slot allocators (kind ``slots``); the pool of a prefix cache has the first five, too."""

from __future__ import annotations

from dataclasses import dataclass

from pymllm.oracle.slot_init import built_through_slots
from pymllm.oracle.spans import Span

__all__ = [
    "SLOT_OPERATIONS",
    "Alloc",
    "BeginGroup",
    "EndGroup",
    "Free",
    "FreeSWA",
    "Merge",
    "MoveSWA",
    "ReadHalves",
]


@built_through_slots
@dataclass(frozen=True, slots=True)
class Alloc:
    """Take slots (A3); answered by `Slots` or `NoRoom`."""

    tokens: int


@built_through_slots
@dataclass(frozen=True, slots=True)
class Free:
    """Give slots back (A5). ``form`` is the dtype, and ``strided``, ``2d`` or nothing: ``"int64 2d"``."""

    slots: tuple[Span, ...]
    form: str = "int32"


@built_through_slots
@dataclass(frozen=True, slots=True)
class FreeSWA:
    """Give the SWA halves of slots back (A7)."""

    slots: tuple[Span, ...]
    form: str = "int32"


@built_through_slots
@dataclass(frozen=True, slots=True)
class MoveSWA:
    """Give the SWA halves of ``source`` to the slots ``target``, pair by pair (A7)."""

    source: tuple[Span, ...]
    target: tuple[Span, ...]


@built_through_slots
@dataclass(frozen=True, slots=True)
class ReadHalves:
    """Translate slots to their SWA halves, 0 where gone (A7); answered by `Slots` with only ``swa_slots``."""

    slots: tuple[Span, ...]


@built_through_slots
@dataclass(frozen=True, slots=True)
class Merge:
    """Merge freed slots into the free ones, by request (A4)."""


@built_through_slots
@dataclass(frozen=True, slots=True)
class BeginGroup:
    """Collect the frees that follow (A6)."""


@built_through_slots
@dataclass(frozen=True, slots=True)
class EndGroup:
    """Carry out the frees since `BeginGroup` (A6)."""


SLOT_OPERATIONS: tuple[type, ...] = (Alloc, Free, FreeSWA, MoveSWA, ReadHalves, Merge, BeginGroup, EndGroup)
"""Those of a slot allocator."""
