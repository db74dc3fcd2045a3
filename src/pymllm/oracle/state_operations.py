"""The operations of pools of recurrent states (kind ``states``)."""

from __future__ import annotations

from dataclasses import dataclass

from pymllm.oracle.slot_init import built_through_slots
from pymllm.oracle.spans import Span

__all__ = [
    "STATE_OPERATIONS",
    "AllocTrack",
    "CopyStates",
    "FreeTrack",
    "ReadStates",
    "ResetStates",
    "WriteState",
]


@built_through_slots
@dataclass(frozen=True, slots=True)
class AllocTrack:
    """Take one track slot (P5); answered by `Slots` or `NoRoom`."""


@built_through_slots
@dataclass(frozen=True, slots=True)
class FreeTrack:
    """Give one track slot back (P5)."""

    slot: Span


@built_through_slots
@dataclass(frozen=True, slots=True)
class WriteState:
    """Write a state through a layer's views, each of the two parts with integers of its own.

    Under a prefix cache the slot is the caller's: a snapshot that is handed over by a later `Insert`.

    Parameters
    ----------
    layer : int
        Layer.
    slot : Span
        Exactly one row or track slot.
    recurrent, conv : int
        The first element of each part.
    ramp : int
        Each further element, in the order of memory, is larger by this. All are in -128 .. 127 and stored
        as in `WriteKV`.
    """

    layer: int
    slot: Span
    recurrent: int
    conv: int
    ramp: int = 0


@built_through_slots
@dataclass(frozen=True, slots=True)
class CopyStates:
    """Copy states row to row over all layers (P5); ``form`` as of `Free`."""

    source: tuple[Span, ...]
    target: tuple[Span, ...]
    form: str = "int64"


@built_through_slots
@dataclass(frozen=True, slots=True)
class ResetStates:
    """Zero the states of some rows (P5); ``form`` as of `Free`."""

    rows: tuple[Span, ...]
    form: str = "int64"


@built_through_slots
@dataclass(frozen=True, slots=True)
class ReadStates:
    """Read the states of a layer; answered by `States`."""

    layer: int


STATE_OPERATIONS: tuple[type, ...] = (AllocTrack, FreeTrack, WriteState, CopyStates, ResetStates, ReadStates)
"""Those of every pool of states; caches that keep states have some of them, too."""
