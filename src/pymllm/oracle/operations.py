"""What can be asked of an implementation: the only language between the rooms.

An operation is a frozen record of plain data. Operations are numbered from 1 within a program, and
whatever an implementation chose is named by the step that chose it, so that a program runs on any
adapter: nodes by the `Match` or `Insert` that returned them, holds by their `Lock`, slots by a `Span` of
the step that handed them out.

Which operations an adapter must understand depends on its kind (`OPERATIONS_OF`). Those of one kind are in
a module of their own, such as `pymllm.oracle.slot_operations`; those of several kinds are here. All are
imported from here.
"""

from __future__ import annotations

from dataclasses import dataclass

from pymllm.oracle.block_operations import (
    BLOCK_OPERATIONS,
    AllocBlocks,
    AllocSlots,
    DropStates,
    EvictSlots,
    FindSlots,
    NameStates,
    ReadLive,
    RegisterBlocks,
    ReleaseBlocks,
    RestoreLive,
    RetainBlocks,
    SaveLive,
    SetClock,
    StampBlocks,
    StoreState,
    WriteLive,
)
from pymllm.oracle.buffer_operations import BUFFER_OPERATIONS, MoveKV, ReadKV, WriteKV
from pymllm.oracle.hash_operations import HASH_OPERATIONS, HashBytes, HashInt64, HashPage, PickToken, SliceKey
from pymllm.oracle.keys import Key, Token
from pymllm.oracle.prefix_operations import PREFIX_OPERATIONS, Evict, Hash, Insert, Lock, Match, Unlock
from pymllm.oracle.records import decode_tagged, encode_tagged
from pymllm.oracle.request_operations import AddRequest, Pause, Release, Resume, RunStep, ScheduleChunk
from pymllm.oracle.row_operations import ROW_OPERATIONS, AllocRows, FreeRow, ReadRows, WriteEntries, WriteRow
from pymllm.oracle.slot_init import built_through_slots
from pymllm.oracle.slot_operations import (
    SLOT_OPERATIONS,
    Alloc,
    BeginGroup,
    EndGroup,
    Free,
    FreeSWA,
    Merge,
    MoveSWA,
    ReadHalves,
)
from pymllm.oracle.spans import SPAN_LIMIT, Span
from pymllm.oracle.state_operations import (
    STATE_OPERATIONS,
    AllocTrack,
    CopyStates,
    FreeTrack,
    ReadStates,
    ResetStates,
    WriteState,
)

__all__ = [
    "KINDS",
    "OPERATIONS",
    "OPERATIONS_OF",
    "SPAN_LIMIT",
    "AddRequest",
    "Alloc",
    "AllocBlocks",
    "AllocRows",
    "AllocSlots",
    "AllocTrack",
    "BeginGroup",
    "Clear",
    "CopyStates",
    "DropStates",
    "EndGroup",
    "Evict",
    "EvictSlots",
    "Fault",
    "FindSlots",
    "Free",
    "FreeRow",
    "FreeSWA",
    "FreeTrack",
    "Hash",
    "HashBytes",
    "HashInt64",
    "HashPage",
    "Insert",
    "Inspect",
    "Key",
    "Lock",
    "Malformed",
    "Match",
    "Merge",
    "MoveKV",
    "MoveSWA",
    "NameStates",
    "Operation",
    "Pause",
    "PickToken",
    "ReadHalves",
    "ReadKV",
    "ReadLive",
    "ReadRows",
    "ReadStates",
    "RegisterBlocks",
    "Release",
    "ReleaseBlocks",
    "Reset",
    "ResetStates",
    "RestoreLive",
    "Resume",
    "RetainBlocks",
    "RunStep",
    "SaveLive",
    "ScheduleChunk",
    "SetClock",
    "SliceKey",
    "Span",
    "StampBlocks",
    "StoreState",
    "Token",
    "Unlock",
    "WriteEntries",
    "WriteKV",
    "WriteLive",
    "WriteRow",
    "WriteState",
    "operation_from_plain",
    "operation_to_plain",
]


@built_through_slots
@dataclass(frozen=True, slots=True)
class Malformed:
    """Call something with an argument that no caller may pass; must be refused, and change nothing (X1).

    Parameters
    ----------
    call : str
        Name of the operation that is spoiled, such as ``"free"``.
    wrong : str
        What is wrong with it; the adapter makes the argument, or answers that it cannot.
    """

    call: str
    wrong: str


@built_through_slots
@dataclass(frozen=True, slots=True)
class Fault:
    """Let a call fail that the next operation makes; forgotten if that operation does not get so far.

    Parameters
    ----------
    call : str
        ``"free"``, ``"free_swa"`` or ``"move_swa"`` of the pool, or ``"free_state"`` of the pool of states
        (it raises and takes nothing), ``"callback"`` (the eviction callback raises, or the
        observer of blocks) or ``"reenter"`` (it calls the cache or the allocator, which must be refused, X6).
        Of a context: ``"allocate_blocks"`` (raises), ``"no_blocks"`` (the same answers ``None``),
        ``"allocate_slots"``, ``"store_states"`` (what copies into slots), ``"restore_state"`` and
        ``"forward"`` (raises at the nth request).
    nth : int
        Which of these calls, from 1.
    """

    call: str
    nth: int = 1


@built_through_slots
@dataclass(frozen=True, slots=True)
class Clear:
    """Make a pool as good as new; every slot that it handed out is its own again (X7)."""


@built_through_slots
@dataclass(frozen=True, slots=True)
class Reset:
    """Empty the cache, whatever is held (X7); of blocks, make all of it new, the context's part too (C9)."""


@built_through_slots
@dataclass(frozen=True, slots=True)
class Inspect:
    """Look at every node, where the implementation has nodes to show; answered by `Inspected`.

    Of blocks: at all documented views; answered by `BlockBooks`.
    """


Operation = (
    Malformed | Fault | Alloc | Free | FreeSWA | MoveSWA | ReadHalves | Merge | BeginGroup | EndGroup | Clear
    | AllocRows | FreeRow | WriteRow | WriteEntries | ReadRows | WriteKV | MoveKV | ReadKV
    | AllocTrack | FreeTrack | WriteState | CopyStates | ResetStates | ReadStates
    | SliceKey | PickToken | HashPage | HashInt64 | HashBytes
    | Match | Insert | Evict | Lock | Unlock | Hash | Reset | Inspect
    | AllocBlocks | RetainBlocks | ReleaseBlocks | RegisterBlocks | StampBlocks | SetClock
    | AllocSlots | EvictSlots | FindSlots | NameStates | DropStates
    | StoreState | WriteLive | SaveLive | RestoreLive | ReadLive
    | AddRequest | ScheduleChunk | RunStep | Pause | Resume | Release
)  # fmt: skip

OPERATIONS_OF: dict[str, tuple[type, ...]] = {
    "slots": (*SLOT_OPERATIONS, Clear, Malformed),
    "rows": (*ROW_OPERATIONS, Clear, Malformed),
    "buffers": (*BUFFER_OPERATIONS, Malformed),
    "states": (*STATE_OPERATIONS, Clear, Malformed),
    "hashes": (*HASH_OPERATIONS, Malformed),
    "prefix": (
        *(Alloc, Free, FreeSWA, MoveSWA, ReadHalves),
        *(*PREFIX_OPERATIONS, Reset, Inspect, Fault, Malformed),
        *(AllocTrack, FreeTrack, WriteState, ReadStates),
    ),
    "blocks": (*BLOCK_OPERATIONS, ReadStates, Inspect, Reset, Fault, Malformed),
    "requests": (
        *(AddRequest, ScheduleChunk, RunStep, Pause, Resume, Release),
        *(Reset, Inspect, Fault, Malformed),
    ),
}
"""The operations of each kind of implementation."""

KINDS = tuple(OPERATIONS_OF)
"""Slot allocators, rows, KV buffers, state pools, keys and hashes, prefix caches, blocks, requests."""

OPERATIONS: tuple[type, ...] = tuple(dict.fromkeys(op for group in OPERATIONS_OF.values() for op in group))
"""Every operation once."""


def operation_to_plain(operation: Operation) -> dict[str, object]:
    """Return an operation as a dict of plain data, ``op`` first."""
    return encode_tagged(operation, "op")


def operation_from_plain(plain: object, where: str = "op") -> Operation:
    """Return a dict of plain data as an operation; `ValueError` says what is wrong with it."""
    operation: Operation = decode_tagged(OPERATIONS, plain, "op", where)
    return operation
