"""The operations of block allocators and of the cached states beside them (kind ``blocks``).

Blocks are named by the `AllocBlocks` that handed them out, slots by the `AllocSlots` or
`EvictSlots` that did. A request is a row of the context, which is the caller's; so are the clock and the
live states.
"""

from __future__ import annotations

from dataclasses import dataclass

from pymllm.oracle.slot_init import built_through_slots
from pymllm.oracle.spans import Span

__all__ = [
    "BLOCK_OPERATIONS",
    "AllocBlocks",
    "AllocSlots",
    "DropStates",
    "EvictSlots",
    "FindSlots",
    "NameStates",
    "ReadLive",
    "RegisterBlocks",
    "ReleaseBlocks",
    "RestoreLive",
    "RetainBlocks",
    "SaveLive",
    "SetClock",
    "StampBlocks",
    "StoreState",
    "WriteLive",
]


# -- blocks --------------------------------------------------------------------------------------------------


@built_through_slots
@dataclass(frozen=True, slots=True)
class AllocBlocks:
    """Take blocks with one reference each (C1); answered by `Slots` or `NoRoom`."""

    count: int


@built_through_slots
@dataclass(frozen=True, slots=True)
class RetainBlocks:
    """Add a reference to each block for each time that it is named (C1).

    ``form`` is the container that is handed over, as of `Key`.
    """

    blocks: tuple[Span, ...]
    form: str = "list"


@built_through_slots
@dataclass(frozen=True, slots=True)
class ReleaseBlocks:
    """Take a reference from each block for each time that it is named (C1); ``form`` as of `RetainBlocks`."""

    blocks: tuple[Span, ...]
    form: str = "list"


@built_through_slots
@dataclass(frozen=True, slots=True)
class RegisterBlocks:
    """Make the content of blocks known under hashes (C3).

    Parameters
    ----------
    blocks : tuple of Span
        Each after its parent.
    hashes : tuple of int
        One for each, ``1 .. 2**63 - 1``.
    parents : tuple of int, or None
        The hash of each one's parent, 0 for a first block; ``None``: each follows the one before it.
    form : str
        As of `RetainBlocks`.
    """

    blocks: tuple[Span, ...]
    hashes: tuple[int, ...]
    parents: tuple[int, ...] | None = None
    form: str = "list"


@built_through_slots
@dataclass(frozen=True, slots=True)
class StampBlocks:
    """Let the stamps of blocks be the clock's (X3); ``form`` as of `RetainBlocks`."""

    blocks: tuple[Span, ...]
    form: str = "list"


@built_through_slots
@dataclass(frozen=True, slots=True)
class SetClock:
    """Set the logical clock of the context, usually forward (X3)."""

    clock: int


# -- slots of states -----------------------------------------------------------------------------------------


@built_through_slots
@dataclass(frozen=True, slots=True)
class AllocSlots:
    """Get a slot for each block, repeats included (C5, C6); answered by `Slots`, as many as blocks."""

    blocks: tuple[Span, ...]


@built_through_slots
@dataclass(frozen=True, slots=True)
class EvictSlots:
    """Take slots from unreferenced blocks; they stay in the caller's hands (C2, C6); answered by `Slots`."""

    count: int


@built_through_slots
@dataclass(frozen=True, slots=True)
class FindSlots:
    """Ask each block for its slot (C2); answered by `FoundSlots`."""

    blocks: tuple[Span, ...]


@built_through_slots
@dataclass(frozen=True, slots=True)
class NameStates:
    """Make the cached states of blocks known under hashes (C4); one that is not positive stands for none."""

    blocks: tuple[Span, ...]
    hashes: tuple[int, ...]


@built_through_slots
@dataclass(frozen=True, slots=True)
class DropStates:
    """Free the slots of blocks and forget their hashes (C4).

    Parameters
    ----------
    blocks : tuple of Span
        With or without a slot; repeats are nothing special.
    how : str
        ``"one by one"``, ``"batch"``, or ``"deregistered"``: as an observer of the block allocator.
    hashes : tuple of int
        What a ``"deregistered"`` names beside them; those of other blocks stay.
    """

    blocks: tuple[Span, ...]
    how: str = "batch"
    hashes: tuple[int, ...] = ()


# -- states --------------------------------------------------------------------------------------------------


@built_through_slots
@dataclass(frozen=True, slots=True)
class StoreState:
    """Write the state of one layer into the slot of a block (C7); numbers as of `WriteState`.

    ``recurrent`` is the first element of the SSM state, and ``block`` names exactly one.
    """

    block: Span
    layer: int
    recurrent: int
    conv: int
    ramp: int = 0


@built_through_slots
@dataclass(frozen=True, slots=True)
class WriteLive:
    """Write the live state of a request in one layer, as a forward pass does; numbers as of `WriteState`."""

    request: int
    layer: int
    recurrent: int
    conv: int
    ramp: int = 0


@built_through_slots
@dataclass(frozen=True, slots=True)
class SaveLive:
    """Copy the live states of requests into slots, all layers (C7)."""

    slots: tuple[Span, ...]
    requests: tuple[int, ...]


@built_through_slots
@dataclass(frozen=True, slots=True)
class RestoreLive:
    """Copy a block's cached state into a request's live one (C7); answered by `Number`: 1, or 0 for none."""

    request: int
    block: Span


@built_through_slots
@dataclass(frozen=True, slots=True)
class ReadLive:
    """Read the live states of a layer; answered by `States`: each request's, then what is no request's."""

    layer: int


BLOCK_OPERATIONS: tuple[type, ...] = (
    *(AllocBlocks, RetainBlocks, ReleaseBlocks, RegisterBlocks, StampBlocks, SetClock),
    *(AllocSlots, EvictSlots, FindSlots, NameStates, DropStates),
    *(StoreState, WriteLive, SaveLive, RestoreLive, ReadLive),
)
"""Those that no other kind has."""
