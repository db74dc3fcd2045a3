"""What a context that serves whole requests answers: rows, steps, and all that can be seen of both."""

from __future__ import annotations

from dataclasses import dataclass

from pymllm.oracle.slot_init import built_through_slots

__all__ = ["BlockState", "ContextBlock", "ContextView", "Ran", "RequestRun", "RequestView"]


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
        What each block holds, in all of its places, as `pymllm.oracle.request_operations` sums it up.
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
