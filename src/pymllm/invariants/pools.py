"""White-box checks of pools: the form of their buffers, and the trackers of what they hand out."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from reprlib import repr as short_repr
from typing import NoReturn

import numpy as np
import torch

from pymllm.errors import InvariantViolation
from pymllm.mem_cache.pools.gdn_pool import GDNPool
from pymllm.mem_cache.pools.kv_pool import KVPool
from pymllm.mem_cache.pools.req_to_token_pool import ReqToTokenPool


def check_subject(given: object, expected: type) -> None:
    """Refuse an object that a check cannot walk, before the check trips over a missing field (law X1)."""
    if not isinstance(given, expected):
        raise TypeError(f"{short_repr(given)} is a {type(given).__name__}: give a {expected.__name__}")


def fail(law: str, message: str) -> NoReturn:
    """Report a broken law."""
    raise InvariantViolation(law, message)


def check_free_numbers(
    law: str, name: str, expected: range, free: Sequence[int], held: Iterable[int]
) -> None:
    """Raise unless free and held numbers partition ``expected``, and the free ones are a heap.

    Laws: ``law``, which gives out these numbers (P1, P5), and X3 (the heap's order). Cost: O(n log n).
    """
    numbers = sorted([*free, *held])
    if numbers != list(expected):
        lost = sorted(set(expected) - set(numbers))
        foreign = sorted(set(numbers) - set(expected))
        doubled = sorted({a for a, b in itertools.pairwise(numbers) if a == b})
        fail(law, f"{name}s are not free or held once each: lost {lost}, twice {doubled}, foreign {foreign}")
    for position in range(1, len(free)):
        parent = (position - 1) // 2
        if free[parent] > free[position]:
            fail(
                "X3",
                f"free {name}s are out of order, {free[position]} comes behind {free[parent]}: which one is "
                "handed out next would hang on more than which are free, so that runs of one program differ",
            )


def check_kv_pool(pool: KVPool) -> None:
    """Raise if a buffer has another form than the pool's sizes say, or shares memory with another.

    Laws: P3 (layers, shape, dtype, device, contiguity, separate memory), A1 (rows). Cost: O(layers); no row
    is read: what belongs there only an engine knows (E1).
    """
    check_subject(pool, KVPool)
    _check_buffers("k_buffer", pool, pool.k_buffer, (pool.k_head_num, pool.k_head_dim))
    _check_buffers("v_buffer", pool, pool.v_buffer, (pool.v_head_num, pool.v_head_dim))
    starts = {buffer.untyped_storage().data_ptr() for buffer in (*pool.k_buffer, *pool.v_buffer)}
    if len(starts) != 2 * pool.layer_num:
        fail("P3", f"{2 * pool.layer_num} buffers share {len(starts)} pieces of memory")


def _check_buffers(name: str, pool: KVPool, buffers: Sequence[torch.Tensor], row: tuple[int, int]) -> None:
    if len(buffers) != pool.layer_num:
        fail("P3", f"{name} has {len(buffers)} layers, expected {pool.layer_num}")
    for layer, buffer in enumerate(buffers):
        rows = pool.size + pool.page_size
        if buffer.shape[0] != rows:
            fail("A1", f"{name}[{layer}] has {buffer.shape[0]} rows, expected size + page_size = {rows}")
        expected = (torch.Size((rows, *row)), pool.dtype, pool.device, True)
        found = (buffer.shape, buffer.dtype, buffer.device, buffer.is_contiguous())
        if found != expected:
            fail("P3", f"{name}[{layer}] is {found}, expected {expected} (shape, dtype, device, contiguous)")


def check_gdn_pool(pool: GDNPool) -> None:
    """Raise if the states have another layout than P4's, or a track slot is lost.

    Laws: P4 (layout), P5 (track slots), X3 (order). Cost: O(max_track_slots) on the host; no state is read.
    """
    check_subject(pool, GDNPool)
    leading = (pool.num_gdn_layers, pool.max_reqs + 1 + pool.max_track_slots)
    recurrent = (*leading, pool.num_v_heads, pool.head_v_dim, pool.head_k_dim)
    conv = (*leading, pool.conv_dim, pool.conv_kernel_size - 1)
    _check_state("recurrent_state", pool, pool.recurrent_state, recurrent, torch.float32)
    _check_state("conv_state", pool, pool.conv_state, conv, pool.dtype)
    track_slots = range(pool.max_reqs + 1, leading[1])
    check_free_numbers("P5", "track slot", track_slots, pool._free_track_slots, pool._held_track_slots)


def _check_state(
    name: str, pool: GDNPool, state: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    expected = (torch.Size(shape), dtype, pool.device, True)
    found = (state.shape, state.dtype, state.device, state.is_contiguous())
    if found != expected:
        fail("P4", f"{name} is {found}, expected {expected} (shape, dtype, device, contiguous)")


def check_req_to_token_pool(pool: ReqToTokenPool, kv_rows: int | None = None) -> None:
    """Raise if a row is lost or a free one is not zero, or an entry names no slot.

    With ``kv_rows`` the entries must name rows of buffers that have so many. Laws: P1 (the table and its
    rows), P2 (a free row is not zero, or an entry is negative), E2 (entries name rows of the buffers), X3
    (order). Cost: a few passes over the table; on a device it is reduced there and synchronises.
    """
    check_subject(pool, ReqToTokenPool)
    expected = (torch.Size((pool.size + 1, pool.max_context_len)), torch.int32, pool.device)
    table = pool.req_to_token
    found = (table.shape, table.dtype, table.device)
    if found != expected:
        fail("P1", f"the table is {found}, expected {expected} (shape, dtype, device)")
    if not pool._is_open[0]:
        fail("P1", "row 0 takes no padding")
    held = (np.flatnonzero(pool._is_open[1:]) + 1).tolist()
    check_free_numbers("P1", "row", range(1, pool.size + 1), pool._free_rows, held)

    used = table.any(dim=1).cpu().numpy()
    dirty = np.flatnonzero(used[1:] & ~pool._is_open[1:]) + 1
    if dirty.size:
        fail("P2", f"free rows {dirty.tolist()} are not zero")
    low, high = (int(bound) for bound in torch.aminmax(table))
    if low < 0:
        fail("P2", f"entries run from {low}; one that is not in use is 0")
    if kv_rows is not None and high >= kv_rows:
        fail("E2", f"entries run to {high}, slots from 0 to {kv_rows - 1}")
