"""The exchange of slots with a tree: checks of incoming slots, and the return of slots to a pool.

They go back page by page where the pool can take pages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from pymllm.errors import OwnershipError
from pymllm.mem_cache.arguments import INTEGER_DTYPES
from pymllm.mem_cache.tree.node import BaseTreeNode, PageStarts
from pymllm.mem_cache.tree.radix_tree import PagedKey, RadixTree
from pymllm.mem_cache.tree.token_encoding import decode_tokens
from pymllm.mem_cache.uploads import as_tensor, bring

logger = logging.getLogger(__name__)

SHORTAGES: Final = (MemoryError, torch.OutOfMemoryError)
"""Errors of a pool that has refused and taken nothing, for lack of memory for the call."""

NodeT = TypeVar("NodeT", bound=BaseTreeNode)

Slots: TypeAlias = torch.Tensor | NDArray[np.integer]
"""A caller's slots, shape ``(n,)``: the tensor, or an array over its memory."""

_INT32, _INT64 = np.dtype(np.int32), np.dtype(np.int64)


def read_incoming_slots(
    value: torch.Tensor | None, key_length: int, key: PagedKey, page_size: int, pool: Any, on_host: bool
) -> Slots:
    """Return the checked slots of a key in the caller's form, or raise an error.

    ``value``: one slot per token, any integer dtype, shape ``(key_length,)``; ``None`` stands for the token
    ids themselves, only without a pool. ``on_host``: whether the tree keeps its slots in NumPy. Returns
    ``value`` itself or an array over its memory, to be read but not kept; or new ``int64`` slots equal to the
    token ids. Cost: O(1), and one vectorised pass where pages are checked, and over ``uint64`` slots, which
    waits for their device. Laws: R1, X1.
    """
    if value is None:
        if pool is not None or key.width > 1:
            raise ValueError(
                "value is None: give one slot per token "
                "(token ids stand in only for plain tokens without a pool)"
            )
        return torch.from_numpy(decode_tokens(key.raw, 1).astype(np.int64))
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"value is a {type(value).__name__}: give a 1-D integer tensor of slots")
    checks_pages = page_size > 1 and getattr(pool, "check_ownership", False)
    if on_host and not checks_pages:
        # The array that is copied from later says all: of an insert of 64 slots this takes 1.0 us less than
        # to ask a tensor five questions, and for its array then.
        try:
            numbers = value.numpy()
        except (RuntimeError, TypeError):
            numbers = np.empty((0, 0))  # no array: what is wrong is said below
        dtype = numbers.dtype
        if (dtype is _INT32 or dtype is _INT64) and numbers.size == key_length and numbers.ndim == 1:
            return numbers
    if value.dtype not in INTEGER_DTYPES:
        raise TypeError(f"value has dtype {value.dtype}: slots are integers")
    if value.layout is not torch.strided:
        raise TypeError(f"value has layout {value.layout}: give a dense tensor of slots")
    if value.is_meta:
        raise TypeError("value is on the meta device, which holds no numbers: give the slots themselves")
    if value.shape != (key_length,):
        raise ValueError(
            f"value has shape {tuple(value.shape)} for a key of {key_length} tokens: give one slot per token"
        )
    if value.dtype is torch.uint64:
        _check_fits_int64(value)
    if checks_pages:
        _check_pages(value[: key.length], page_size)
    return value


def copy_for_tree(tree: RadixTree[Any], slots: Slots, start: int, stop: int) -> torch.Tensor | PageStarts:
    """Return a copy of whole pages of a caller's slots, in the form that nodes store.

    ``slots``: integers, shape ``(n,)``, on any device. That each page is one of the pool's is the caller's
    duty, checked where ownership is. Elsewhere a glance at the first and the last page finds slots in an
    order of their own, which are kept as they came; a look at all pages would add 5 us to the 23 of an insert
    in T3. Cost: one copy of what is kept. Laws: R1, X5.
    """
    if tree.keeps_pages:
        numbers, size = slots if isinstance(slots, np.ndarray) else slots.cpu().numpy(), tree.page_size
        if start or stop != numbers.size:
            numbers = numbers[start:stop]
        if (
            size == 1
            or start == stop
            or numbers.item(size - 1) - numbers.item(0) == numbers.item(-1) - numbers.item(-size) == size - 1
        ):
            starts: PageStarts = (numbers if size == 1 else numbers[::size]).astype(np.int64)
            return starts
    return copy_for_keeps(as_tensor(slots), start, stop, tree.device)


def copy_for_keeps(slots: torch.Tensor, start: int, stop: int, device: torch.device) -> torch.Tensor:
    """Return a copy of a range of a caller's slots, since trees keep no views of them (X5).

    ``slots``: integers, shape ``(n,)``, on any device. Returns ``int64``, shape ``(stop - start,)``. Cost:
    one copy. By the shortest of torch's ways: a slice takes 1.0 us and ``to`` 2.2, ``long`` and ``clone``
    1.2.
    """
    part = slots if start == 0 and stop == slots.numel() else slots[start:stop]
    if part.device != device:
        return bring(part, device)
    return part.clone() if part.dtype is torch.int64 else part.long()


def read_track_slot(value: Any, pool: Any) -> int:
    """Return the only track slot in a caller's tensor, or raise an error.

    ``value``: any integer dtype, shape ``(1,)``. Cost: O(1); reading the number waits for the device that it
    is on. Laws: M1, M7, X1.
    """
    if not isinstance(value, torch.Tensor):
        given = "an int" if type(value) is int else f"a {type(value).__name__}"
        raise TypeError(
            f"mamba_value is {given}: give a 1-D integer tensor of one track slot, torch.tensor([slot])"
        )
    try:
        track_slot = value.item()  # only if this is no int, a tensor is asked why: 0.7 us less of an insert
    except RuntimeError:
        track_slot = None  # said below
    if type(track_slot) is not int or value.dim() != 1:
        if value.dtype not in INTEGER_DTYPES:
            raise TypeError(f"mamba_value has dtype {value.dtype}: track slots are integers")
        if value.shape != (1,):
            raise ValueError(
                f"mamba_value has shape {tuple(value.shape)}: give exactly one track slot, shape (1,)"
            )
        if value.is_meta:
            raise TypeError("mamba_value is on the meta device: give a real track slot")
        track_slot = int(value.item())  # another failure fails here again
    if not 0 < track_slot < 2**63:
        raise OwnershipError(f"mamba_value is {track_slot}: track slots are in 1 .. 2**63 - 1")
    is_handed_out = getattr(pool, "is_track_slot_handed_out", None)
    if is_handed_out is not None and not is_handed_out(track_slot):
        raise OwnershipError(
            f"mamba_value is {track_slot}, which mamba_pool has not handed out: "
            "give slots that its alloc_track_slot returned"
        )
    return track_slot


def _check_fits_int64(slots: torch.Tensor) -> None:
    """Raise an error for numbers that would be negative as ``int64``."""
    too_large = slots.view(torch.int64) < 0
    if too_large.any():
        found = slots[too_large.nonzero()[0]].item()
        raise ValueError(f"value has slot {found}: slots are stored as int64, give numbers below 2**63")


def _check_pages(slots: torch.Tensor, page_size: int) -> None:
    """Raise an error for a page of the key whose slots are not one page of the pool, in order.

    Flat arrays, not rows of a page: 17 us against 39 for 12,000 slots in pages of 16.
    """
    numbers = slots.cpu().numpy()
    offsets = numbers - np.arange(numbers.size)
    breaks = offsets[1:] != offsets[:-1]
    breaks[page_size - 1 :: page_size] = False  # the next page may lie anywhere
    misplaced = numbers[::page_size] % page_size != 0
    if breaks.any() or misplaced.any():
        wrong = np.concatenate((np.flatnonzero(breaks) // page_size, np.flatnonzero(misplaced)))
        page = int(wrong.min())
        found = numbers[page * page_size : (page + 1) * page_size].tolist()
        raise ValueError(
            f"page {page} of the key has slots {found}: give one page of the pool, "
            f"in order, starting at a multiple of {page_size}"
        )


def return_slots(pool: Any, tree: RadixTree[NodeT], nodes: list[NodeT]) -> None:
    """Return the slots of ``nodes``, in order, to the pool by one call.

    Of 13,000 slots in pages of 16, reading all of them and telling their pages apart takes 38 us of a request
    of T3 in ``benchmarks``; this takes 11. On a device nothing waits.
    """
    if _by_pages(pool, tree.device):
        starts = tree.page_starts(nodes)
        pool.free_pages(tree.hand_over(nodes)[:: tree.page_size] if starts is None else starts)
    else:
        pool.free(tree.hand_over(nodes))


def return_pages(pool: Any, tree: RadixTree[NodeT], slots: torch.Tensor) -> None:
    """Return whole pages, each named once by all its slots, to the pool, as `return_slots` does."""
    if _by_pages(pool, tree.device):
        pool.free_pages(slots[:: tree.page_size])
    else:
        pool.free(slots)


def return_halves(pool: Any, tree: RadixTree[NodeT], nodes: list[NodeT]) -> None:
    """Return the window KV of ``nodes``, in order, to the pool by one call, as `return_slots` does."""
    slots = tree.gather(nodes)
    if tree.device.type != "cpu" and takes_pages(pool, "free_swa", "free_swa_pages"):
        pool.free_swa_pages(slots[:: tree.page_size])
    else:
        pool.free_swa(slots)


def return_what_is_left(pool: Any, tree: RadixTree[NodeT], nodes: Sequence[NodeT]) -> None:
    """Return the slots of nodes after an interrupted call, when the pool may have some already.

    Node by node, no slot twice. Cost: O(tokens) in Python.
    """
    is_handed_out = getattr(pool, "is_handed_out", None)
    seen: set[int] = set()
    for node in nodes:
        slots = tree.slots_left(node)
        new = [slot for slot in slots.tolist() if slot not in seen]
        seen.update(new)
        left = torch.tensor(new, dtype=slots.dtype, device=slots.device)
        if is_handed_out is not None:
            left = left[is_handed_out(left)]
        if left.numel():
            try_to_return(pool.free, left)


def try_to_return(give: Callable[[Any], Any], what: Any) -> None:
    """Return memory that a pool may already have, without an error if it has."""
    try:
        give(what)
    except Exception as error:
        logger.warning("after an interrupted call, a pool does not take %s: %s", what, error)


def takes_pages(pool: Any, call: str = "free", of_pages: str = "free_pages") -> bool:
    """Tell whether a pool's ``free_pages`` agrees with its ``free``, or another such pair of methods."""
    free: Any = getattr(pool, call, None)
    if getattr(free, "__self__", None) is not pool:
        return False  # somebody has given this one object another
    kind: Any = type(pool)
    return _says_both(kind, getattr(free, "__func__", None), call, of_pages)


@lru_cache(maxsize=64)  # an eviction of one leaf takes 0.2 us less
def _says_both(kind: Any, free: Any, call: str, of_pages: str) -> bool:
    """Tell whether no subclass overrides ``free`` without the method of pages."""
    for base in kind.__mro__:
        if of_pages in base.__dict__:
            return getattr(kind, call, None) is free
        if call in base.__dict__:
            return False
    return False


def counts_in_pages(pool: Any, page_size: int, device: torch.device) -> bool:
    """Tell whether a tree over a pool may store the first slots of pages in NumPy, not all in tensors.

    A page of one slot is its first slot; what the others of larger pages are is known of such a pool alone.
    On a device all slots of a node stay there, since they are copied in one launch.
    """
    return device.type == "cpu" and (page_size == 1 or _by_pages(pool, device))


def _by_pages(pool: Any, device: torch.device) -> bool:
    """Tell whether whole pages can be returned to a pool by their first slots.

    On the CPU those of windows do not: an insert, which compares slots, would take 40 us instead of 37, and
    an eviction 20 instead of 18, of 512 slots each.
    """
    return takes_pages(pool) and (device.type != "cpu" or not hasattr(pool, "free_swa"))
