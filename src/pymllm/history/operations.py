"""The operations on an implementation, as plain records.

Operations are frozen records of plain data, numbered from 1 within a program. A choice of an implementation
is named by its step, so that a program runs on any adapter: nodes by the `Match` or `Insert` that returned
them, holds by their `Lock`, slots by a `Span` of the step that handed them out. Which of them an adapter must
understand depends on its kind (`OPERATIONS_OF`).
"""

from __future__ import annotations

from collections.abc import Iterable

from pymllm.history.codec import Record, snake_case


class _Operation(Record, frozen=True, tag_field="op", tag=snake_case):
    """The base class of all operations, which are distinguished by the field ``op``."""


# -- keys --
Token = int | tuple[int, ...]
"""An element of a key: a token id, or a tuple of them (bigrams)."""

KEY_FORMS = ("list", "tuple", "array", "int32", "int64", "tensor32", "tensor64")
"""The containers in which a key may be passed; ``int32`` and ``int64`` are NumPy arrays."""


Namespace = str | int | None | tuple[str | int | None, ...]
"""What KV depends on beside tokens: nothing, a value, or one for each of the first `DIMENSIONS` (K2)."""

DIMENSIONS = ("extra_key", "lora", "lora_version", "embeddings", "weights")
"""The dimensions of a namespace, by the claim to keep their values apart. A tuple has values in this order,
up to the last that is not missing; where only the first has a value, that alone is the namespace."""


def values_of(extra_key: Namespace) -> tuple[str | int | None, ...]:
    """Return the value of each dimension of a namespace, None for a missing one."""
    given = extra_key if isinstance(extra_key, tuple) else (extra_key,)
    return (*given, *[None] * (len(DIMENSIONS) - len(given)))


def namespace_of(values: Iterable[str | int | None]) -> Namespace:
    """Return the namespace with these values, one for each of the first dimensions."""
    given = (*values,)
    while given and given[-1] is None:
        given = given[:-1]
    return given if len(given) > 1 else given[0] if given else None


class Key(Record, frozen=True):
    """A key of a prefix cache.

    - ``tokens``: Token ids, or equally long tuples of them.
    - ``extra_key``: Namespace.
    - ``form``: The container that is handed over, of `KEY_FORMS`; an adapter that has only one ignores it.
    """

    tokens: tuple[Token, ...]
    extra_key: Namespace = None
    form: str = "list"


# -- spans --
class Span(Record, frozen=True):
    """Some of the numbers (slots, rows, blocks) that a step gave, by their place in its answer.

    - ``step``: Its number; 0 stands for the numbers themselves, so that ``Span(0, 4, 7)`` is 4, 5, 6.
    - ``start``, ``stop``: Half-open range of places, ``0 <= start <= stop``.
    """

    step: int
    start: int
    stop: int


# -- blocks --
class AllocBlocks(_Operation, frozen=True):
    """Take blocks with one reference each (C1); answered by `Slots` or `NoRoom`."""

    count: int


class RetainBlocks(_Operation, frozen=True):
    """Add a reference to each block for each time that it is named (C1); ``form`` as of `Key`."""

    blocks: tuple[Span, ...]
    form: str = "list"


class ReleaseBlocks(_Operation, frozen=True):
    """Take a reference from each block for each time that it is named (C1); ``form`` as of `Key`."""

    blocks: tuple[Span, ...]
    form: str = "list"


class RegisterBlocks(_Operation, frozen=True):
    """Make the content of blocks, each after its parent, known under hashes (C3); ``form`` as of `Key`.

    - ``hashes``: One for each, ``1 .. 2**63 - 1``.
    - ``parents``: The hash of each one's parent, 0 for a first block; ``None``: each follows the last one.
    """

    blocks: tuple[Span, ...]
    hashes: tuple[int, ...]
    parents: tuple[int, ...] | None = None
    form: str = "list"


class StampBlocks(_Operation, frozen=True):
    """Let the stamps of blocks be the clock's (X3); ``form`` as of `Key`."""

    blocks: tuple[Span, ...]
    form: str = "list"


class SetClock(_Operation, frozen=True):
    """Set the logical clock of the context, usually forward (X3)."""

    clock: int


# -- slots of states --
class AllocSlots(_Operation, frozen=True):
    """Get a slot for each block, repeats included (C5, C6); answered by `Slots`, as many as blocks."""

    blocks: tuple[Span, ...]


class EvictSlots(_Operation, frozen=True):
    """Take slots from unreferenced blocks; they stay in the caller's hands (C2, C6); answered by `Slots`."""

    count: int


class FindSlots(_Operation, frozen=True):
    """Ask each block for its slot (C2); answered by `FoundSlots`."""

    blocks: tuple[Span, ...]


class NameStates(_Operation, frozen=True):
    """Make the cached states of blocks known under hashes (C4); one that is not positive stands for none."""

    blocks: tuple[Span, ...]
    hashes: tuple[int, ...]


class DropStates(_Operation, frozen=True):
    """Free the slots of blocks, where they have one, and forget their hashes (C4).

    - ``how``: ``"one by one"``, ``"batch"``, or ``"deregistered"``: as an observer of the block allocator.
    - ``hashes``: What a ``"deregistered"`` names beside them; those of other blocks stay.
    """

    blocks: tuple[Span, ...]
    how: str = "batch"
    hashes: tuple[int, ...] = ()


# -- states --
class StoreState(_Operation, frozen=True):
    """Write the state of one layer into the slot of exactly one block (C7); numbers as of `WriteState`."""

    block: Span
    layer: int
    recurrent: int
    conv: int
    ramp: int = 0


class WriteLive(_Operation, frozen=True):
    """Write the live state of a request in one layer, as a forward pass does; numbers as of `WriteState`."""

    request: int
    layer: int
    recurrent: int
    conv: int
    ramp: int = 0


class SaveLive(_Operation, frozen=True):
    """Copy the live states of requests into slots, all layers (C7)."""

    slots: tuple[Span, ...]
    requests: tuple[int, ...]


class RestoreLive(_Operation, frozen=True):
    """Copy a block's cached state into a request's live one (C7); answered by `Number`: 1, or 0 for none."""

    request: int
    block: Span


class ReadLive(_Operation, frozen=True):
    """Read the live states of a layer; answered by `States`: each request's, last the row of no request."""

    layer: int


# -- buffer operations --
SHAPES = ("flat", "heads", "strided", "batch")
"""The shapes in which rows of keys and values may be written."""


class WriteKV(_Operation, frozen=True):
    """Write rows of keys and values (P3).

    - ``slots``: One per row; 0 takes padding.
    - ``keys``, ``values``: As many rows, each as long as one of the buffer, of integers in -128 .. 127, kept
      as numbers or as the bit patterns of a dtype, and read back likewise.
    - ``shape``: ``"flat"`` is ``[n, heads * dim]``, ``"heads"`` ``[n, heads, dim]``, ``"strided"`` the same
      with gaps in memory, ``"batch"`` ``[1, n, heads, dim]`` with slots ``[1, n]``.
    - ``form``: That of the slots, as of `Free`; a batch's are a row as they are.
    """

    layer: int
    slots: tuple[int, ...]
    keys: tuple[tuple[int, ...], ...]
    values: tuple[tuple[int, ...], ...]
    shape: str = "heads"
    form: str = "int64"


class MoveKV(_Operation, frozen=True):
    """Write ``count`` rows that are views of the layer's own buffers, all read before one is written (P3)."""

    layer: int
    source: int
    target: int
    count: int


class ReadKV(_Operation, frozen=True):
    """Read both whole buffers of a layer; answered by `Buffers`."""

    layer: int


# -- hash operations --
class SliceKey(_Operation, frozen=True):
    """Slice a key (K1); answered by `Tokens`."""

    key: Key
    start: int | None
    stop: int | None


class PickToken(_Operation, frozen=True):
    """Index a key with one integer (K1); answered by `Tokens`."""

    key: Key
    at: int


class HashPage(_Operation, frozen=True):
    """Hash the tokens of a page, chained to a prior hash (H1); answered by `Hashes`."""

    key: Key
    prior: str | None = None


class HashInt64(_Operation, frozen=True):
    """Turn a hex digest into a signed 64-bit integer (H1); answered by `Number`."""

    digest: str


class HashBytes(_Operation, frozen=True):
    """Hash bytes, given in hex, to an unsigned 64-bit integer (H1); answered by `Number`."""

    data: str


# -- index operations --
class StoreBlocks(_Operation, frozen=True, repr_omit_defaults=True):
    """Tell an index that a worker now has blocks, each the child of the one before it (I1).

    Answered by `Done` or `NotThere`, and with a number by `Missed`.

    - ``blocks``: Pairs, from the front of the sequence on: the hash of the sequence up to the end of the
      block, and the hash of the block's own tokens. Both in 0 .. 2**63 - 1.
    - ``parent``: The first of these hashes of the block before them; ``None`` where they begin a sequence.
    - ``group``: Group of layers that the blocks are of, 0 .. 2**63 - 1 (I11).
    - ``medium``: Memory that they lie in; ``""`` is one like any other (I12).
    - ``extra_key``: Namespace of the sequence, also where it has a parent (I13).
    - ``number``: Number of the event in its worker's stream (I14 to I16); ``None`` for one without.
    """

    worker: int
    blocks: tuple[tuple[int, int], ...]
    parent: int | None = None
    group: int = 0
    medium: str = ""
    extra_key: Namespace = None
    number: int | None = None


class RemoveBlocks(_Operation, frozen=True, repr_omit_defaults=True):
    """Tell an index that a worker no longer has some blocks (I5), or has one copy less of each (I10).

    Answered by `Done` or `NotThere`, and with a number by `Missed`. ``group``, ``medium`` and ``number`` are
    those of `StoreBlocks`.
    """

    worker: int
    hashes: tuple[int, ...]
    group: int = 0
    medium: str = ""
    number: int | None = None


class ClearWorker(_Operation, frozen=True, repr_omit_defaults=True):
    """Tell an index that a worker has emptied its cache and stays (I7); ``number`` as of `StoreBlocks`."""

    worker: int
    number: int | None = None


class DropWorker(_Operation, frozen=True):
    """Tell an index that a worker has left (I7); later events under its id are of a new worker."""

    worker: int


class FindBlocks(_Operation, frozen=True, repr_omit_defaults=True):
    """Ask how many blocks of a sequence, from its front on, each worker has (I1); answered by `Leading`.

    - ``tokens``: The hash of each block's own tokens, in order.
    - ``early``: Whether the answer may stop as soon as it is known who has most (I8).
    - ``extra_key``, ``group``: Of `StoreBlocks`: the namespace (I13), and the group to look in (I11).
    """

    tokens: tuple[int, ...]
    early: bool = False
    extra_key: Namespace = None
    group: int = 0


class Rebuild(_Operation, frozen=True):
    """Replace the index by an empty one that has taken up all blocks that `Inspect` shows (I9)."""


# -- prefix operations --
class Match(_Operation, frozen=True):
    """Find the longest usable cached prefix (R2); answered by `Matched`."""

    key: Key


class Insert(_Operation, frozen=True):
    """Cache a key (R3, R4, S7); answered by `Inserted`.

    - ``slots``: One per token; ``None`` lets a cache without a pool store the token ids (R1).
    - ``prev_prefix_len``, ``swa_evicted_seqlen``: As in the documented interface.
    - ``form``: As of `Free`.
    - ``state``: The track slot with the state after the key's last token (M1): one, of an `AllocTrack`.
    - ``priority``: How much the request matters, to a policy that asks (R11).
    """

    key: Key
    slots: tuple[Span, ...] | None = None
    prev_prefix_len: int = 0
    swa_evicted_seqlen: int = 0
    form: str = "int64"
    state: Span | None = None
    priority: int = 0


class Evict(_Operation, frozen=True):
    """Evict tokens (R5); answered by `Evicted`.

    - ``secondary``: Of the second kind of memory: tokens of the window's half (S3), or states (M5).
    """

    tokens: int
    secondary: int = 0


class Lock(_Operation, frozen=True):
    """Take a hold at the node that step ``of`` returned (R6, S5); answered by `Locked`."""

    of: int


class Unlock(_Operation, frozen=True):
    """Release the hold of a `Lock` (R6, S5).

    - ``at``: Passes the node of another `Match`, `Insert` or `Lock` instead.
    - ``token``: Passes the token of another `Lock` instead; 0 passes none at all.
    """

    lock: int
    at: int | None = None
    token: int | None = None


class Hash(_Operation, frozen=True):
    """Compute the page hashes of the path to the node of step ``of`` (H2, H3); answered by `Hashes`."""

    of: int


# -- request operations --
KV_FACTOR = 1_000_003
KV_PRIME = 2**31 - 1
CONV_PRIME = 251
"""The largest prime whose residues bfloat16 holds exactly."""
SSM_PRIME = 16_777_213
"""The largest prime whose residues float32 holds exactly."""


class AddRequest(_Operation, frozen=True):
    """Take up a prompt and schedule its first chunk (C3, E4); answered by `RequestView` or `NoRoom`.

    - ``limit``: The most tokens to compute in it; ``None`` for all.
    - ``reserve``: The blocks that must still be free or evictable once the whole prompt has blocks; ``None``
      if nothing but the chunk has to fit. Only who claims ``reserve`` is asked for it.
    """

    tokens: tuple[int, ...]
    limit: int | None = None
    reserve: int | None = None


class ScheduleChunk(_Operation, frozen=True):
    """Schedule the next chunk of a request that waits (E4); answered by `RequestView` or `NoRoom`."""

    request: int
    limit: int | None = None


class RunStep(_Operation, frozen=True):
    """Compute all scheduled chunks, and a token of each decoding request; answered by `Ran`.

    - ``next_tokens``: One at least: what the requests that sample get, in the order in which they were added,
      from the start again where there are more of them.
    """

    next_tokens: tuple[int, ...] = (1,)


class Pause(_Operation, frozen=True):
    """Set a request aside with its blocks (C1); answered by `Done` or `NoRoom`."""

    request: int


class Resume(_Operation, frozen=True):
    """Let a paused request go on; answered by `Done`."""

    request: int


class Truncate(_Operation, frozen=True):
    """Cut the end off a request whose prompt is computed (C3, E2); answered by `RequestView`.

    - ``tokens``: So many keep their KV: at least the prompt, at most what is computed.
    - ``next_token``: The token behind these from now on, to be computed next.
    """

    request: int
    tokens: int
    next_token: int


class Release(_Operation, frozen=True):
    """Remove a request, and give all its memory back (E3); answered by `Done`."""

    request: int


# -- row operations --
class AllocRows(_Operation, frozen=True):
    """Take rows for requests, all or none (P1); answered by `Slots` or `NoRoom`."""

    count: int


class FreeRow(_Operation, frozen=True):
    """Give a row back (P2); ``row`` names exactly one."""

    row: Span


class WriteRow(_Operation, frozen=True):
    """Write ``values`` into positions ``start .. stop`` of one row (P3); ``form`` is theirs, as of `Free`."""

    row: Span
    start: int
    stop: int
    values: tuple[int, ...]
    form: str = "int32"


class WriteEntries(_Operation, frozen=True):
    """Write a value into a position of each row; row 0 takes padding (P2, E5); ``form`` is that of all."""

    rows: tuple[Span, ...]
    positions: tuple[int, ...]
    values: tuple[int, ...]
    form: str = "int32"


class ReadRows(_Operation, frozen=True):
    """Read the whole table; answered by `Table`."""


# -- slot operations --
class Alloc(_Operation, frozen=True):
    """Take slots (A3); answered by `Slots` or `NoRoom`."""

    tokens: int


class Free(_Operation, frozen=True):
    """Give slots back (A5). ``form`` is the dtype, and ``strided``, ``2d`` or nothing: ``"int64 2d"``."""

    slots: tuple[Span, ...]
    form: str = "int32"


class FreeSWA(_Operation, frozen=True):
    """Give the SWA halves of slots back (A7)."""

    slots: tuple[Span, ...]
    form: str = "int32"


class MoveSWA(_Operation, frozen=True):
    """Give the SWA halves of ``source`` to the slots ``target``, pair by pair (A7)."""

    source: tuple[Span, ...]
    target: tuple[Span, ...]


class ReadHalves(_Operation, frozen=True):
    """Translate slots to their SWA halves, 0 where gone (A7); answered by `Slots` with only ``swa_slots``."""

    slots: tuple[Span, ...]


class Merge(_Operation, frozen=True):
    """Merge freed slots into the free ones, by request (A4)."""


class BeginGroup(_Operation, frozen=True):
    """Begin a group of frees, which take effect together at its end (A6)."""


class EndGroup(_Operation, frozen=True):
    """End a group: carry out all frees since `BeginGroup` (A6)."""


# -- transfers --
class BeginTransfer(_Operation, frozen=True):
    """Let something outside begin to read or write memory, until `EndTransfer` (A2, C1).

    - ``memory``: Slots in the hands of callers, in whole pages, as in `Free`; or blocks that are not free.
    """

    memory: tuple[Span, ...]


class TransferRequest(_Operation, frozen=True):
    """Let something outside begin to read or write the blocks of a request, until `EndTransfer` (C1)."""

    request: int


class EndTransfer(_Operation, frozen=True):
    """End the transfer that step ``transfer`` began: nothing outside touches its memory now (A2, A5, C1)."""

    transfer: int


# -- state operations --
class AllocTrack(_Operation, frozen=True):
    """Take one track slot (P5); answered by `Slots` or `NoRoom`."""


class FreeTrack(_Operation, frozen=True):
    """Give one track slot back (P5)."""

    slot: Span


class WriteState(_Operation, frozen=True):
    """Write a state through a layer's views, each of the two parts with integers of its own.

    - ``slot``: Exactly one row or track slot; of a prefix cache, one that a later `Insert` hands over.
    - ``recurrent``, ``conv``: The first element of each part.
    - ``ramp``: Each further element, in the order of memory, is larger by this. All are in -128 .. 127 and
      stored as in `WriteKV`.
    """

    layer: int
    slot: Span
    recurrent: int
    conv: int
    ramp: int = 0


class CopyStates(_Operation, frozen=True):
    """Copy states row to row over all layers (P5); ``form`` as of `Free`."""

    source: tuple[Span, ...]
    target: tuple[Span, ...]
    form: str = "int64"


class ResetStates(_Operation, frozen=True):
    """Zero the states of some rows (P5); ``form`` as of `Free`."""

    rows: tuple[Span, ...]
    form: str = "int64"


class ReadStates(_Operation, frozen=True):
    """Read the states of a layer; answered by `States`."""

    layer: int


class Malformed(_Operation, frozen=True):
    """Call something with an argument that no caller may pass; must be refused, and change nothing (X1).

    - ``call``: Name of an operation, such as ``"free"``.
    - ``wrong``: What is wrong with it; the adapter makes the argument, or answers that it cannot.
    """

    call: str
    wrong: str


class Fault(_Operation, frozen=True):
    """Let a call fail that the next operation makes; forgotten if that operation does not get so far.

    - ``call``: ``"free"``, ``"free_swa"``, ``"move_swa"`` of the pool, ``"free_state"`` of the pool of states
      (it raises and takes nothing), ``"callback"`` (the eviction callback raises, or the observer of blocks),
      ``"reenter"`` (it calls the cache or the allocator, which must be refused, X6). Of a context:
      ``"allocate_blocks"`` (raises), ``"no_blocks"`` (the same answers ``None``), ``"allocate_slots"``,
      ``"store_states"`` (what copies into slots), ``"restore_state"``, ``"forward"`` (at the nth request).
    - ``nth``: Which of these calls, from 1.
    """

    call: str
    nth: int = 1


class Clear(_Operation, frozen=True):
    """Restore a pool to its first state: every slot that was handed out is free again (X7)."""


class Reset(_Operation, frozen=True):
    """Empty the cache, held or not (X7); for blocks, restore the whole context to its first state (C9)."""


class Inspect(_Operation, frozen=True):
    """Look at every node, where the implementation has nodes to show; answered by `Inspected`.

    Of blocks, at all documented views; answered by `BlockBooks`. Of an index, at every block of every worker;
    answered by `Indexed`.
    """


class TakeEvents(_Operation, frozen=True):
    """Take the events since the last `TakeEvents`; the implementation forgets them (X10).

    Answered by `ToldEvents`.
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
    | AddRequest | ScheduleChunk | RunStep | Pause | Resume | Truncate | Release
    | StoreBlocks | RemoveBlocks | ClearWorker | DropWorker | FindBlocks | Rebuild
    | BeginTransfer | TransferRequest | EndTransfer | TakeEvents
)  # fmt: skip

OPERATIONS_OF: dict[str, tuple[type, ...]] = {
    "slots": (
        *(Alloc, Free, FreeSWA, MoveSWA, ReadHalves, Merge, BeginGroup, EndGroup, Clear, Malformed),
        *(BeginTransfer, EndTransfer),
    ),
    "rows": (AllocRows, FreeRow, WriteRow, WriteEntries, ReadRows, Clear, Malformed),
    "buffers": (WriteKV, MoveKV, ReadKV, Malformed),
    "states": (AllocTrack, FreeTrack, WriteState, CopyStates, ResetStates, ReadStates, Clear, Malformed),
    "hashes": (SliceKey, PickToken, HashPage, HashInt64, HashBytes, Malformed),
    "prefix": (
        *(Alloc, Free, FreeSWA, MoveSWA, ReadHalves, Match, Insert, Evict, Lock, Unlock, Hash),
        *(Reset, Inspect, Fault, Malformed, AllocTrack, FreeTrack, WriteState, ReadStates, TakeEvents),
    ),
    "blocks": (
        *(AllocBlocks, RetainBlocks, ReleaseBlocks, RegisterBlocks, StampBlocks, SetClock),
        *(AllocSlots, EvictSlots, FindSlots, NameStates, DropStates),
        *(StoreState, WriteLive, SaveLive, RestoreLive, ReadLive),
        *(ReadStates, Inspect, Reset, Fault, Malformed),
        *(BeginTransfer, EndTransfer, TakeEvents),
    ),
    "requests": (
        *(AddRequest, ScheduleChunk, RunStep, Pause, Resume, Truncate, Release),
        *(Reset, Inspect, Fault, Malformed),
        *(TransferRequest, EndTransfer, TakeEvents),
    ),
    "index": (
        *(StoreBlocks, RemoveBlocks, ClearWorker, DropWorker, FindBlocks, Rebuild),
        *(Reset, Inspect, Malformed),
    ),
}
"""The operations of each kind of implementation."""

KINDS = tuple(OPERATIONS_OF)
"""The kinds of implementations: slot allocators, rows, KV buffers, state pools, keys and hashes, prefix
caches, blocks, requests, and block indexes."""

OPERATIONS: tuple[type, ...] = tuple(dict.fromkeys(op for group in OPERATIONS_OF.values() for op in group))
