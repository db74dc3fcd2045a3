"""What can be asked of an implementation: the only language between the rooms.

An operation is a frozen record of plain data. Operations are numbered from 1 within a program, and
whatever an implementation chose is named by the step that chose it, so that a program runs on any
adapter: nodes by the `Match` or `Insert` that returned them, holds by their `Lock`, slots by a `Span` of
the step that handed them out.

Which operations an adapter must understand depends on its kind (`OPERATIONS_OF`). Those of one kind are in
a module of their own, such as `pymllm.history.operations`; those of several kinds are here. All are
imported from here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pymllm.history.records import decode_tagged, encode_tagged
from pymllm.history.slot_init import built_through_slots

__all__ = [
    "BLOCK_OPERATIONS",
    "BUFFER_OPERATIONS",
    "CONV_PRIME",
    "HASH_OPERATIONS",
    "KEY_FORMS",
    "KINDS",
    "KV_FACTOR",
    "KV_PRIME",
    "OPERATIONS",
    "OPERATIONS_OF",
    "PREFIX_OPERATIONS",
    "ROW_OPERATIONS",
    "SHAPES",
    "SLOT_OPERATIONS",
    "SPAN_LIMIT",
    "SSM_PRIME",
    "STATE_OPERATIONS",
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


# -- keys ----------------------------------------------------------------------------------------------------

Token = int | tuple[int, ...]
"""One element of a key: a token id, or a tuple of them (bigrams)."""

KEY_FORMS = ("list", "tuple", "array", "int32", "int64", "tensor32", "tensor64")
"""The containers that a key may be handed over in."""


@built_through_slots
@dataclass(frozen=True, slots=True)
class Key:
    """A key of a prefix cache.

    Parameters
    ----------
    tokens : tuple of int or of tuple of int
        Token ids, or equally long tuples of them.
    extra_key : str, int or None
        Namespace.
    form : str
        The container that the adapter hands over, one of `KEY_FORMS` (``int32`` and ``int64`` are NumPy's);
        an adapter that has only one ignores it.
    """

    tokens: tuple[Token, ...]
    extra_key: str | int | None = None
    form: str = "list"


# -- spans ---------------------------------------------------------------------------------------------------

SPAN_LIMIT: Final = 1_000_000
"""Most numbers that the spans of one list may stand for; who needs more has a broken hand."""


@built_through_slots
@dataclass(frozen=True, slots=True)
class Span:
    """Some of the numbers (slots, rows, blocks) that a step gave, by their place in its answer.

    Parameters
    ----------
    step : int
        Number of the step. Step 0 stands for the numbers themselves: ``Span(0, 4, 8)`` is 4, 5, 6, 7,
        whoever they belong to.
    start, stop : int
        Half-open range of places, ``0 <= start <= stop``.
    """

    step: int
    start: int
    stop: int


# -- block operations ----------------------------------------------------------------------------------------

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


# -- buffer operations ---------------------------------------------------------------------------------------

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


# -- hash operations -----------------------------------------------------------------------------------------


@built_through_slots
@dataclass(frozen=True, slots=True)
class SliceKey:
    """Slice a key (K1); answered by `Tokens`."""

    key: Key
    start: int | None
    stop: int | None


@built_through_slots
@dataclass(frozen=True, slots=True)
class PickToken:
    """Index a key with one integer (K1); answered by `Tokens`."""

    key: Key
    at: int


@built_through_slots
@dataclass(frozen=True, slots=True)
class HashPage:
    """Hash the tokens of a page, chained to a prior hash (H1); answered by `Hashes`."""

    key: Key
    prior: str | None = None


@built_through_slots
@dataclass(frozen=True, slots=True)
class HashInt64:
    """Turn a hex digest into a signed 64-bit integer (H1); answered by `Number`."""

    digest: str


@built_through_slots
@dataclass(frozen=True, slots=True)
class HashBytes:
    """Hash bytes, given in hex, to an unsigned 64-bit integer (H1); answered by `Number`."""

    data: str


HASH_OPERATIONS: tuple[type, ...] = (SliceKey, PickToken, HashPage, HashInt64, HashBytes)
"""Those that no other kind has."""


# -- prefix operations ---------------------------------------------------------------------------------------


@built_through_slots
@dataclass(frozen=True, slots=True)
class Match:
    """Find the longest usable cached prefix (R2); answered by `Matched`."""

    key: Key


@built_through_slots
@dataclass(frozen=True, slots=True)
class Insert:
    """Cache a key (R3, R4, S7); answered by `Inserted`.

    Parameters
    ----------
    key : Key
        The key, an unaligned tail included.
    slots : tuple of Span, or None
        One slot per token; ``None`` lets a cache without a pool store the token ids (R1).
    prev_prefix_len, swa_evicted_seqlen : int
        As in the documented interface.
    form : str
        As of `Free`.
    state : Span or None
        The track slot with the state after the key's last token (M1): exactly one, of an `AllocTrack`.
    """

    key: Key
    slots: tuple[Span, ...] | None = None
    prev_prefix_len: int = 0
    swa_evicted_seqlen: int = 0
    form: str = "int64"
    state: Span | None = None


@built_through_slots
@dataclass(frozen=True, slots=True)
class Evict:
    """Evict ``tokens`` and, of the second kind of memory, ``secondary``; answered by `Evicted`.

    The second kind is counted in tokens of the window's half (S3), or in states (M5); laws: R5, S3, M5.
    """

    tokens: int
    secondary: int = 0


@built_through_slots
@dataclass(frozen=True, slots=True)
class Lock:
    """Take a hold at the node that step ``of`` returned (R6, S5); answered by `Locked`."""

    of: int


@built_through_slots
@dataclass(frozen=True, slots=True)
class Unlock:
    """Release a hold (R6, S5).

    Parameters
    ----------
    lock : int
        The step of its `Lock`.
    at : int or None
        Passes the node of another `Match`, `Insert` or `Lock` instead.
    token : int or None
        Passes the token of another `Lock` instead; 0 passes none at all.
    """

    lock: int
    at: int | None = None
    token: int | None = None


@built_through_slots
@dataclass(frozen=True, slots=True)
class Hash:
    """Compute the page hashes of the node that step ``of`` returned (H2, H3); answered by `Hashes`.

    Those of its whole path, from the root.
    """

    of: int


PREFIX_OPERATIONS: tuple[type, ...] = (Match, Insert, Evict, Lock, Unlock, Hash)
"""Those that no other kind has."""


# -- request operations --------------------------------------------------------------------------------------

KV_FACTOR = 1_000_003
KV_PRIME = 2**31 - 1
CONV_PRIME = 251
"""The largest prime whose residues bfloat16 holds exactly."""
SSM_PRIME = 16_777_213
"""The same for float32."""


@built_through_slots
@dataclass(frozen=True, slots=True)
class AddRequest:
    """Take up a request and schedule its first chunk (C3, E4); answered by `RequestView` or `NoRoom`.

    Parameters
    ----------
    tokens : tuple of int
        The prompt.
    limit : int or None
        The most tokens to compute in the first chunk; ``None`` for all.
    """

    tokens: tuple[int, ...]
    limit: int | None = None


@built_through_slots
@dataclass(frozen=True, slots=True)
class ScheduleChunk:
    """Schedule the next chunk of a request that waits (E4); answered by `RequestView` or `NoRoom`."""

    request: int
    limit: int | None = None


@built_through_slots
@dataclass(frozen=True, slots=True)
class RunStep:
    """Compute all scheduled chunks, and a token of each decoding request; answered by `Ran`.

    Parameters
    ----------
    next_tokens : tuple of int
        One at least: what is sampled by the requests that sample, in the order in which they were added,
        from the start again where there are more of them.
    """

    next_tokens: tuple[int, ...] = (1,)


@built_through_slots
@dataclass(frozen=True, slots=True)
class Pause:
    """Set a request aside with its blocks (C1); answered by `Done` or `NoRoom`."""

    request: int


@built_through_slots
@dataclass(frozen=True, slots=True)
class Resume:
    """Let a paused request go on; answered by `Done`."""

    request: int


@built_through_slots
@dataclass(frozen=True, slots=True)
class Release:
    """Let a request go with all that it has (E3); answered by `Done`."""

    request: int


# -- row operations ------------------------------------------------------------------------------------------


@built_through_slots
@dataclass(frozen=True, slots=True)
class AllocRows:
    """Take rows for requests, all or none (P1); answered by `Slots` or `NoRoom`."""

    count: int


@built_through_slots
@dataclass(frozen=True, slots=True)
class FreeRow:
    """Give a row back (P2); ``row`` names exactly one."""

    row: Span


@built_through_slots
@dataclass(frozen=True, slots=True)
class WriteRow:
    """Write ``values`` into positions ``start .. stop`` of one row (P3); ``form`` is theirs, as of `Free`."""

    row: Span
    start: int
    stop: int
    values: tuple[int, ...]
    form: str = "int32"


@built_through_slots
@dataclass(frozen=True, slots=True)
class WriteEntries:
    """Write one value into one position of each row named; row 0 takes padding (P2, E5).

    ``form`` is that of all three, as of `Free`.
    """

    rows: tuple[Span, ...]
    positions: tuple[int, ...]
    values: tuple[int, ...]
    form: str = "int32"


@built_through_slots
@dataclass(frozen=True, slots=True)
class ReadRows:
    """Read the whole table; answered by `Table`."""


ROW_OPERATIONS: tuple[type, ...] = (AllocRows, FreeRow, WriteRow, WriteEntries, ReadRows)
"""Those that no other kind has."""


# -- slot operations -----------------------------------------------------------------------------------------


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


# -- state operations ----------------------------------------------------------------------------------------


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
