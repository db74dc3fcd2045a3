"""What an operation did: what its caller saw, and what the pools below saw, in order."""

from __future__ import annotations

from dataclasses import dataclass, field

from pymllm.history.operations import Token
from pymllm.history.records import decode, decode_tagged, encode, encode_tagged, schema_of, tagged_schema_of
from pymllm.history.slot_init import built_through_slots

__all__ = [
    "INJECTED",
    "RESULTS",
    "SIZE_NAMES",
    "BlockBooks",
    "BlockState",
    "Buffers",
    "ContextBlock",
    "ContextView",
    "Done",
    "Effect",
    "Evicted",
    "Failed",
    "FoundSlots",
    "Hashes",
    "Inserted",
    "Inspected",
    "Locked",
    "Matched",
    "NoRoom",
    "NodeView",
    "Number",
    "Outcome",
    "Ran",
    "RequestRun",
    "RequestView",
    "Result",
    "Slots",
    "States",
    "Table",
    "Tokens",
    "Unsupported",
    "outcome_from_plain",
    "outcome_schema",
    "outcome_to_plain",
]


# -- request outcomes ----------------------------------------------------------------------------------------


@built_through_slots
@dataclass(frozen=True, slots=True)
class RequestView:
    """One request between two steps.

    Parameters
    ----------
    request : int
        The step that added it.
    row : int
        Its row of the context.
    region : str
        ``"paused"``, ``"decode"``, ``"prefill"`` (a chunk is scheduled) or ``"waiting"``.
    blocks : tuple of int
        Its blocks, in order, as the table of the context has them.
    finished : int
        ``finished_chunk_token_count``.
    kv : tuple of int
        What each block holds, in all of its places, as `pymllm.history.operations` sums it up.
    state : tuple of int
        Its live state: conv elements of all layers, then SSM elements; empty without recurrent layers.
    """

    request: int
    row: int
    region: str
    blocks: tuple[int, ...]
    finished: int
    kv: tuple[int, ...]
    state: tuple[int, ...] = ()


@built_through_slots
@dataclass(frozen=True, slots=True)
class RequestRun:
    """What the forward pass was told of one request, and what it read for it.

    Parameters
    ----------
    request, row, blocks
        As of `RequestView`.
    start, count : int
        The tokens computed.
    writes : tuple of (int, int)
        Where their KV went: for each block that they reach into, the first slot and how many follow on.
    offsets : tuple of int
        After how many of them a state was extracted.
    is_sampled : bool
        Whether a next token was chosen.
    kv : tuple of int
        What each block held in its places before ``start + count``, once this request had written.
    state : tuple of int
        The live state that was read, as of `RequestView`.
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


@built_through_slots
@dataclass(frozen=True, slots=True)
class BlockState:
    """A block and the slot of its cached state."""

    block: int
    slot: int


@built_through_slots
@dataclass(frozen=True, slots=True)
class Ran:
    """Answer of a step.

    Parameters
    ----------
    requests : tuple of RequestRun
        In the order of the batch; where the forward pass failed, the requests that it had come to.
    registered : tuple of int
        Blocks that have a hash now and had none before.
    kept : tuple of BlockState
        Blocks that have a cached state now and had none, or had another slot.
    dropped : tuple of int
        Blocks that have no cached state any more.
    error : str
        What the step raised once the forward pass had begun, by the name of its class; ``""`` for nothing.
    """

    requests: tuple[RequestRun, ...]
    registered: tuple[int, ...] = ()
    kept: tuple[BlockState, ...] = ()
    dropped: tuple[int, ...] = ()
    error: str = ""


@built_through_slots
@dataclass(frozen=True, slots=True)
class ContextBlock:
    """One block that is not free.

    Parameters
    ----------
    block : int
        Its id.
    references : int
        Requests that have it.
    hash : int
        As documented; -1 for none.
    slot : int
        Slot of its cached state; -1 for none.
    state : tuple of int
        What that slot holds, as of `RequestView`.
    """

    block: int
    references: int
    hash: int = -1
    slot: int = -1
    state: tuple[int, ...] = ()


@built_through_slots
@dataclass(frozen=True, slots=True)
class ContextView:
    """Everything: requests by row, and blocks that are referenced, registered or have a state, by id."""

    requests: tuple[RequestView, ...]
    blocks: tuple[ContextBlock, ...]


INJECTED = "InjectedFault"
"""The error of a call that a `Fault` let fail."""

SIZE_NAMES = frozenset(
    {
        *("available_size", "full_available_size", "swa_available_size"),
        *("total_size", "evictable_size", "protected_size", "swa_evictable_size", "swa_protected_size"),
        *("mamba_evictable_size", "mamba_protected_size", "available_track_slots", "max_track_slots", "size"),
        *("pool_avail", "evictable_blocks", "free_count", "request_count"),
        *("paused_request_count", "decode_req_count", "prefill_req_count"),
    }
)
"""Every size and counter that a judge knows; another one would be judged by nobody."""

# -- what the caller saw -------------------------------------------------------------------------------------


@built_through_slots
@dataclass(frozen=True, slots=True)
class Done:
    """Nothing to tell."""


@built_through_slots
@dataclass(frozen=True, slots=True)
class Failed:
    """An error, by the name of its class; ``message`` is for people and never compared."""

    error: str
    message: str = field(default="", compare=False)


@built_through_slots
@dataclass(frozen=True, slots=True)
class Unsupported:
    """The adapter cannot carry this operation out, and did nothing."""

    what: str


@built_through_slots
@dataclass(frozen=True, slots=True)
class NoRoom:
    """``None``: the pool has too few left."""


@built_through_slots
@dataclass(frozen=True, slots=True)
class Slots:
    """Slots, rows or blocks handed out, in order, and the SWA slots behind them where there are such."""

    slots: tuple[int, ...]
    swa_slots: tuple[int, ...] = ()


@built_through_slots
@dataclass(frozen=True, slots=True)
class Matched:
    """Answer of a match.

    Parameters
    ----------
    slots : tuple of int
        The slots found, in order.
    prefix_len : int
        As documented.
    node_len : int or None
        Length of ``last_node``'s path, where it can be told; -1 where that spells no prefix of the key.
    dtype : str
        That of the indices; an implementation whose indices have none leaves it.
    state : int or None
        The track slot to restore from, ``last_node``'s; ``None`` where it has none.
    branching : int or None
        ``mamba_branching_seqlen``.
    """

    slots: tuple[int, ...]
    prefix_len: int
    node_len: int | None = None
    dtype: str = "int64"
    state: int | None = None
    branching: int | None = None


@built_through_slots
@dataclass(frozen=True, slots=True)
class Inserted:
    """Answer of an insert; ``node_len`` as of `Matched`, ``state_exists`` is ``mamba_exist``."""

    prefix_len: int
    adopted: tuple[tuple[int, int], ...]
    node_len: int | None = None
    state_exists: bool = False


@built_through_slots
@dataclass(frozen=True, slots=True)
class Evicted:
    """Tokens evicted, removed ones and alive ones of the window's half, and states evicted."""

    full: int
    swa: int = 0
    states: int = 0


@built_through_slots
@dataclass(frozen=True, slots=True)
class Locked:
    """A hold's token, opaque; ``None`` where there is none."""

    token: int | str | None = None


@built_through_slots
@dataclass(frozen=True, slots=True)
class Hashes:
    """Hex digests, one per page, from the start of the key."""

    digests: tuple[str, ...]


@built_through_slots
@dataclass(frozen=True, slots=True)
class Number:
    """One integer."""

    value: int


@built_through_slots
@dataclass(frozen=True, slots=True)
class Tokens:
    """A key: its tokens and its namespace."""

    tokens: tuple[Token, ...]
    extra_key: str | int | None = None


@built_through_slots
@dataclass(frozen=True, slots=True)
class Table:
    """Every row of a table, row 0 first."""

    rows: tuple[tuple[int, ...], ...]


@built_through_slots
@dataclass(frozen=True, slots=True)
class Buffers:
    """Every row of a layer's keys and of its values, slot 0 first."""

    keys: tuple[tuple[int, ...], ...]
    values: tuple[tuple[int, ...], ...]


@built_through_slots
@dataclass(frozen=True, slots=True)
class States:
    """Each slot's recurrent and convolution state, flattened, slot 0 first, and the form of both views.

    A dtype is a name such as ``"float32"``; left empty where the adapter cannot tell.
    """

    recurrent: tuple[tuple[int, ...], ...]
    conv: tuple[tuple[int, ...], ...]
    recurrent_shape: tuple[int, ...]
    conv_shape: tuple[int, ...]
    recurrent_dtype: str = ""
    conv_dtype: str = ""


@built_through_slots
@dataclass(frozen=True, slots=True)
class NodeView:
    """One node of a tree, as its documented attributes tell; the root is left out.

    Parameters
    ----------
    id : int
        Its id.
    parent : int or None
        Its parent's id; ``None`` for a child of the root.
    tokens, extra_key, slots
        Its part of the key, the namespace, and its slots.
    is_alive : bool
        Whether it is no tombstone.
    lock_ref, swa_lock_ref, hit_count : int
        As documented; ``None`` where there is no such count.
    last_access : float
        As documented.
    boundary : int, str or None
        ``swa_boundary_id``.
    page_hashes : tuple of str, or None
        What it has computed of them.
    kept_bytes : int or None
        Size of the storage that its slots keep alive.
    state : int or None
        Track slot of the state at its end; ``None`` without one.
    state_lock_ref : int or None
        ``mamba_lock_ref``.
    """

    id: int
    parent: int | None
    tokens: tuple[Token, ...]
    extra_key: str | int | None
    slots: tuple[int, ...]
    is_alive: bool = True
    lock_ref: int | None = None
    swa_lock_ref: int | None = None
    hit_count: int | None = None
    last_access: float | None = None
    boundary: int | str | None = None
    page_hashes: tuple[str, ...] | None = None
    kept_bytes: int | None = None
    state: int | None = None
    state_lock_ref: int | None = None


@built_through_slots
@dataclass(frozen=True, slots=True)
class Inspected:
    """Every node, parents before their children.

    Parameters
    ----------
    nodes : tuple of NodeView
        The root is left out.
    full_lru, mamba_lru : tuple of int, or None
        Ids in the order of the documented lists, most recent first (M8); ``None`` where there are none.
    """

    nodes: tuple[NodeView, ...]
    full_lru: tuple[int, ...] | None = None
    mamba_lru: tuple[int, ...] | None = None


@built_through_slots
@dataclass(frozen=True, slots=True)
class FoundSlots:
    """What each block was told: its slot, -1 for none, and whether it has a state."""

    slots: tuple[int, ...]
    has_state: tuple[bool, ...]


@built_through_slots
@dataclass(frozen=True, slots=True)
class BlockBooks:
    """The documented views of a block allocator and of the slots beside it.

    Parameters
    ----------
    refs, hashes, stamps : tuple of int
        ``block_ref_counts``, ``block_hashes`` and ``block_timestamps``, the dummy's included.
    block_of_hash : tuple of (int, int)
        ``kv_hash_to_block_id``, ascending.
    slot_of_block, block_of_slot : tuple of int
        ``block_to_slot`` and ``slot_to_block``; empty without slots, as all that follows.
    free_slots : tuple of int
        ``free_slots[:free_count]``, in order.
    block_of_state : tuple of (int, int)
        ``hash_to_block_id``, ascending.
    """

    refs: tuple[int, ...]
    hashes: tuple[int, ...]
    stamps: tuple[int, ...]
    block_of_hash: tuple[tuple[int, int], ...]
    slot_of_block: tuple[int, ...] = ()
    block_of_slot: tuple[int, ...] = ()
    free_slots: tuple[int, ...] = ()
    block_of_state: tuple[tuple[int, int], ...] = ()


Result = (
    Done | Failed | Unsupported | NoRoom | Slots | Matched | Inserted | Evicted | Locked | Hashes | Number
    | Tokens | Table | Buffers | States | Inspected | FoundSlots | BlockBooks
    | RequestView | Ran | ContextView
)  # fmt: skip

RESULTS: tuple[type, ...] = (
    Done, Failed, Unsupported, NoRoom, Slots, Matched, Inserted, Evicted, Locked, Hashes, Number,
    Tokens, Table, Buffers, States, Inspected, FoundSlots, BlockBooks, RequestView, Ran, ContextView,
)  # fmt: skip
"""Every kind of answer."""

# -- what the pools saw --------------------------------------------------------------------------------------


@built_through_slots
@dataclass(frozen=True, slots=True)
class Effect:
    """One call that an operation made and that was carried out.

    Parameters
    ----------
    call : str
        ``"free"``, ``"free_swa"`` or ``"move_swa"`` of the pool, ``"free_state"`` of the pool of states, or
        ``"callback"`` for a removed node, or for blocks that were deregistered or became free.
    slots : tuple of int
        Slots named; the sources of a move. Of a callback: the blocks named, none for a node.
    target : tuple of int
        The targets of a move; the hashes that a callback names, ascending.
    node : int or None
        Of a callback: the node's id.
    note : str
        Of a callback that called the cache (`Fault`): the error that it met, or ``""`` if none; for others
        ``""``. Where the callback could read sizes, ``sizes`` has them.
    sizes : dict of str to int
        What the sizes were inside the callback.
    """

    call: str
    slots: tuple[int, ...] = ()
    target: tuple[int, ...] = ()
    node: int | None = None
    note: str = ""
    sizes: dict[str, int] = field(default_factory=dict)


@built_through_slots
@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything that could be seen of one operation.

    Parameters
    ----------
    result : Result
        What the caller got.
    effects : tuple of Effect
        What the pools and callbacks saw, in order.
    sizes : dict of str to int
        Every size and counter afterwards, in tokens, by its documented name (``"evictable_size"``,
        ``"available_size"`` ...); what the adapter cannot tell is left out.
    """

    result: Result
    effects: tuple[Effect, ...] = ()
    sizes: dict[str, int] = field(default_factory=dict)


def outcome_to_plain(outcome: Outcome) -> dict[str, object]:
    """Return an outcome as a dict of plain data."""
    plain: dict[str, object] = {"result": encode_tagged(outcome.result, "is")}
    if outcome.effects:
        plain["effects"] = encode(outcome.effects)
    if outcome.sizes:
        plain["sizes"] = dict(outcome.sizes)
    return plain


def outcome_from_plain(plain: object, where: str = "outcome") -> Outcome:
    """Return a dict of plain data as an outcome; `ValueError` says what is wrong with it."""
    if not isinstance(plain, dict) or not {"result"} <= set(plain) <= {"result", "effects", "sizes"}:
        raise ValueError(f"{where} must be an object with result and, where there are any, effects and sizes")
    return Outcome(
        decode_tagged(RESULTS, plain["result"], "is", f"{where}.result"),
        decode(tuple[Effect, ...], plain.get("effects", []), f"{where}.effects"),
        decode(dict[str, int], plain.get("sizes", {}), f"{where}.sizes"),
    )


def outcome_schema() -> dict[str, object]:
    """Describe the plain data of an outcome as a JSON schema."""
    return {
        "type": "object",
        "properties": {
            "result": tagged_schema_of(RESULTS, "is"),
            "effects": schema_of(tuple[Effect, ...]),
            "sizes": schema_of(dict[str, int]),
        },
        "required": ["result"],
        "additionalProperties": False,
    }
