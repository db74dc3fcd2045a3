"""The outcomes of operations, with results, effects and sizes, as frozen plain records."""

from __future__ import annotations

import typing

import msgspec

from pymllm.history.codec import Record, snake_case
from pymllm.history.operations import Namespace, Token


class _Result(Record, frozen=True, tag_field="is", tag=snake_case):
    """The base class of all results, which are distinguished by the field ``is``."""


# -- request outcomes --
class RequestView(_Result, frozen=True):
    """One request between two steps.

    - ``request``: The step that added it.
    - ``row``: Its row of the context.
    - ``region``: ``"paused"``, ``"decode"``, ``"prefill"`` (a chunk is scheduled) or ``"waiting"``.
    - ``blocks``: In order, as the table of the context has them.
    - ``finished``: ``finished_chunk_token_count``.
    - ``kv``: What each block holds, in all of its places, as `pymllm.history.operations` sums it up.
    - ``state``: Its live one: conv elements of all layers, then SSM ones; empty without recurrent layers.
    """

    request: int
    row: int
    region: str
    blocks: tuple[int, ...]
    finished: int
    kv: tuple[int, ...]
    state: tuple[int, ...] = ()


class RequestRun(Record, frozen=True):
    """One request in a forward pass: its input, and the values read for it.

    - ``request``, ``row``, ``blocks``: As of `RequestView`.
    - ``start``, ``count``: The tokens computed.
    - ``writes``: Where their KV went: for each block reached, the first slot and the number of slots.
    - ``offsets``: After how many of them a state was extracted.
    - ``is_sampled``: Whether a next token was chosen.
    - ``kv``: What each block held in its places before ``start + count``, once this request had written.
    - ``state``: The live state that was read, as of `RequestView`.
    """

    request: int
    row: int
    blocks: tuple[int, ...]
    start: int
    count: int
    writes: tuple[tuple[int, int], ...]
    offsets: tuple[int, ...]
    is_sampled: bool
    kv: tuple[int, ...]
    state: tuple[int, ...] = ()


class BlockState(Record, frozen=True):
    """A block and the slot of its cached state."""

    block: int
    slot: int


class Ran(_Result, frozen=True):
    """Answer of a step.

    - ``requests``: In the order of the batch, all of them, wherever the forward pass failed.
    - ``registered``: Blocks that have a hash now and had none before.
    - ``kept``: Blocks that have a cached state now and had none, or had another slot.
    - ``dropped``: Blocks that have no cached state any more.
    - ``error``: The class of what the step raised once the forward pass had begun; ``""`` for nothing.
    """

    requests: tuple[RequestRun, ...]
    registered: tuple[int, ...] = ()
    kept: tuple[BlockState, ...] = ()
    dropped: tuple[int, ...] = ()
    error: str = ""


class ContextBlock(Record, frozen=True):
    """One block that is not free.

    - ``references``: Requests that have it.
    - ``hash``: As documented; -1 for none.
    - ``slot``: Slot of its cached state; -1 for none.
    - ``state``: What that slot holds, as of `RequestView`.
    """

    block: int
    references: int
    hash: int = -1
    slot: int = -1
    state: tuple[int, ...] = ()


class ContextView(_Result, frozen=True):
    """Everything: requests by row, and blocks that are referenced, registered or have a state, by id."""

    requests: tuple[RequestView, ...]
    blocks: tuple[ContextBlock, ...]


INJECTED = "InjectedFault"
"""The error of a call that a `Fault` made fail."""

SIZE_NAMES = frozenset(
    {
        *("available_size", "full_available_size", "swa_available_size"),
        *("total_size", "evictable_size", "protected_size", "swa_evictable_size", "swa_protected_size"),
        *("mamba_evictable_size", "mamba_protected_size", "available_track_slots", "max_track_slots", "size"),
        *("pool_avail", "evictable_blocks", "free_count", "request_count"),
        *("paused_request_count", "decode_req_count", "prefill_req_count"),
    }
)
"""Every size and counter that a judge knows; others cannot be judged."""


# -- what the caller saw --
class Done(_Result, frozen=True):
    """The answer of an operation that returns nothing."""


class Failed(_Result, frozen=True):
    """An error, by the name of its class; ``message`` is for people and never compared."""

    error: str
    message: str = ""

    def __eq__(self, other: object) -> bool:
        return self.error == other.error if isinstance(other, Failed) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.error)


class Unsupported(_Result, frozen=True):
    """The adapter cannot carry this operation out, and did nothing."""

    what: str


class NoRoom(_Result, frozen=True):
    """``None``: the pool has too few left."""


class NotThere(_Result, frozen=True):
    """An index was told of blocks that it does not know of the worker: a parent, or what is removed."""


class Leading(_Result, frozen=True):
    """Workers that have a sequence's first block, ascending, each with how many blocks from there on."""

    workers: tuple[tuple[int, int], ...]


class IndexedBlock(Record, frozen=True, repr_omit_defaults=True):
    """One block of one worker, by the hashes of `pymllm.history.operations.StoreBlocks`.

    - ``group``, ``medium``: Where it lies.
    - ``extra_key``: Namespace, of a first block only.
    - ``copies``: Removals that it takes until it is gone from there (I10).
    """

    worker: int
    hash: int
    tokens: int
    parent: int | None = None
    group: int = 0
    medium: str = ""
    extra_key: Namespace = None
    copies: int = 1


class Indexed(_Result, frozen=True, repr_omit_defaults=True):
    """Every block that an index has, each once, in any order that is always the same.

    ``numbers``: each worker with the number of its last event, ascending, of workers whose events have one.
    """

    blocks: tuple[IndexedBlock, ...]
    numbers: tuple[tuple[int, int], ...] = ()


class Missed(_Result, frozen=True):
    """An event was not taken, as another one is missing before it; ``next`` is the number of that (I15)."""

    next: int


class Slots(_Result, frozen=True):
    """Slots, rows or blocks handed out, in order, and the SWA slots behind them where there are such."""

    slots: tuple[int, ...]
    swa_slots: tuple[int, ...] = ()


class Matched(_Result, frozen=True):
    """Answer of a match.

    - ``node_len``: Length of ``last_node``'s path, if it can be told; -1 where that is no prefix of the key.
    - ``dtype``: That of the indices; an implementation whose indices have none leaves it.
    - ``state``: The track slot to restore from, ``last_node``'s; ``None`` where it has none.
    - ``branching``: ``mamba_branching_seqlen``.
    """

    slots: tuple[int, ...]
    prefix_len: int
    node_len: int | None = None
    dtype: str = "int64"
    state: int | None = None
    branching: int | None = None


class Inserted(_Result, frozen=True):
    """Answer of an insert; ``node_len`` as of `Matched`, ``state_exists`` is ``mamba_exist``."""

    prefix_len: int
    adopted: tuple[tuple[int, int], ...]
    node_len: int | None = None
    state_exists: bool = False


class Evicted(_Result, frozen=True):
    """Tokens evicted, removed ones and alive ones of the window's half, and states evicted."""

    full: int
    swa: int = 0
    states: int = 0


class Locked(_Result, frozen=True):
    """A hold's token, opaque; ``None`` where there is none."""

    token: int | str | None = None


class Hashes(_Result, frozen=True):
    """Hex digests, one per page, from the start of the key."""

    digests: tuple[str, ...]


class Number(_Result, frozen=True):
    """One integer."""

    value: int


class Tokens(_Result, frozen=True):
    """A key: its tokens and its namespace."""

    tokens: tuple[Token, ...]
    extra_key: Namespace = None


class Table(_Result, frozen=True):
    """Every row of a table, row 0 first."""

    rows: tuple[tuple[int, ...], ...]


class Buffers(_Result, frozen=True):
    """Every row of a layer's keys and of its values, slot 0 first."""

    keys: tuple[tuple[int, ...], ...]
    values: tuple[tuple[int, ...], ...]


class States(_Result, frozen=True):
    """Each slot's recurrent and convolution state, flattened, slot 0 first, and the form of both views.

    A dtype is a name such as ``"float32"``; left empty where the adapter cannot tell.
    """

    recurrent: tuple[tuple[int, ...], ...]
    conv: tuple[tuple[int, ...], ...]
    recurrent_shape: tuple[int, ...]
    conv_shape: tuple[int, ...]
    recurrent_dtype: str = ""
    conv_dtype: str = ""


class NodeView(Record, frozen=True):
    """One node of a tree, as its documented attributes tell; the root is left out.

    - ``parent``: ``None`` for a child of the root.
    - ``tokens``, ``extra_key``, ``slots``: Its part of the key, the namespace, and its slots.
    - ``is_alive``: Whether it is no tombstone.
    - ``lock_ref``, ``swa_lock_ref``, ``hit_count``: As documented; ``None`` where there is no such count.
    - ``boundary``: ``swa_boundary_id``.
    - ``page_hashes``: What it has computed of them.
    - ``kept_bytes``: Size of the storage that its slots keep alive.
    - ``state``: Track slot of the state at its end; ``None`` without one.
    - ``state_lock_ref``: ``mamba_lock_ref``.
    """

    id: int
    parent: int | None
    tokens: tuple[Token, ...]
    extra_key: Namespace
    slots: tuple[int, ...]
    is_alive: bool = True
    lock_ref: int | None = None
    swa_lock_ref: int | None = None
    hit_count: int | None = None
    last_access: int | float | None = None
    boundary: int | str | None = None
    page_hashes: tuple[str, ...] | None = None
    kept_bytes: int | None = None
    state: int | None = None
    state_lock_ref: int | None = None


class Inspected(_Result, frozen=True):
    """Every node, parents before their children.

    - ``nodes``: The root is left out.
    - ``full_lru``, ``mamba_lru``: Ids in the order of the documented lists, most recent first (M8);
      ``None`` where there are none.
    """

    nodes: tuple[NodeView, ...]
    full_lru: tuple[int, ...] | None = None
    mamba_lru: tuple[int, ...] | None = None


class FoundSlots(_Result, frozen=True):
    """The slot of each block, -1 for none, and whether it has a state."""

    slots: tuple[int, ...]
    has_state: tuple[bool, ...]


class BlockBooks(_Result, frozen=True):
    """The documented views of a block allocator and of the slots beside it.

    - ``refs``, ``hashes``, ``stamps``: ``block_ref_counts``, ``block_hashes`` and ``block_timestamps``, the
      dummy's included.
    - ``block_of_hash``: ``kv_hash_to_block_id``, ascending.
    - ``slot_of_block``, ``block_of_slot``: ``block_to_slot`` and ``slot_to_block``; empty without slots.
    - ``free_slots``: ``free_slots[:free_count]``, in order.
    - ``block_of_state``: ``hash_to_block_id``, ascending.
    """

    refs: tuple[int, ...]
    hashes: tuple[int, ...]
    stamps: tuple[int, ...]
    block_of_hash: tuple[tuple[int, int], ...]
    slot_of_block: tuple[int, ...] = ()
    block_of_slot: tuple[int, ...] = ()
    free_slots: tuple[int, ...] = ()
    block_of_state: tuple[tuple[int, int], ...] = ()


class CacheEvent(Record, frozen=True):
    """One change of what is cached.

    - ``kind``: ``"stored"``, ``"removed"``, or ``"cleared"``: nothing is there from now on.
    - ``part``: The memory of the blocks that it is about: ``"kv"``, ``"window"`` (of the layers with one) or
      ``"state"`` (the recurrent one, at the end of the block).
    - ``hashes``: The blocks, each the child of the one before where they are stored.
    - ``parent``: The block before the first stored one; ``None`` where that begins a prompt.
    - ``tokens``: Those of all stored blocks; ``None`` of kind ``blocks``, which knows none.
    - ``extra_key``: The namespace of the prompt.
    """

    kind: str
    part: str = "kv"
    hashes: tuple[int | str, ...] = ()
    parent: int | str | None = None
    tokens: tuple[Token, ...] | None = None
    extra_key: Namespace = None


class ToldEvents(_Result, frozen=True):
    """The answer of `pymllm.history.operations.TakeEvents`: events, oldest first."""

    events: tuple[CacheEvent, ...]


Result = (
    Done | Failed | Unsupported | NoRoom | Slots | Matched | Inserted | Evicted | Locked | Hashes | Number
    | Tokens | Table | Buffers | States | Inspected | FoundSlots | BlockBooks
    | RequestView | Ran | ContextView | NotThere | Leading | Indexed | ToldEvents | Missed
)  # fmt: skip

RESULTS: tuple[type, ...] = typing.get_args(Result)


# -- what the pools saw --
class Effect(Record, frozen=True):
    """One call that an operation made and that was carried out.

    - ``call``: ``"free"``, ``"free_swa"`` or ``"move_swa"`` of the pool, ``"free_state"`` of the pool of
      states, or ``"callback"`` for a removed node, or for blocks that were deregistered or became free.
    - ``slots``: Slots named; the sources of a move. Of a callback: the blocks named, none for a node.
    - ``target``: The targets of a move; the hashes that a callback names, ascending.
    - ``node``: Of a callback: the node's id.
    - ``note``: Of a callback that called the cache (`Fault`): the error that it met, or ``""`` for none.
    - ``sizes``: Of a callback that could read them: what they were inside it.
    """

    call: str
    slots: tuple[int, ...] = ()
    target: tuple[int, ...] = ()
    node: int | None = None
    note: str = ""
    sizes: dict[str, int] = msgspec.field(default_factory=dict)


class Outcome(Record, frozen=True):
    """Everything that could be seen of one operation.

    - ``result``: What the caller got.
    - ``effects``: What the pools and callbacks saw, in order.
    - ``sizes``: Every size and counter afterwards, in tokens, by its documented name
      (``"evictable_size"``); what the adapter cannot tell is left out.
    """

    result: Result
    effects: tuple[Effect, ...] = ()
    sizes: dict[str, int] = msgspec.field(default_factory=dict)
