"""White-box check of a `KVPool`: the form of its buffers. What belongs in a row only an engine knows (E1)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pymllm.errors import InvariantViolation
from pymllm.invariants.subject import check_subject
from pymllm.mem_cache.kv_pool import KVPool

__all__ = ["check_kv_pool"]


def check_kv_pool(pool: KVPool) -> None:
    """Raise if a buffer has another form than the pool's sizes say, or shares memory with another.

    Parameters
    ----------
    pool : KVPool
        Any pool; no row is read.

    Raises
    ------
    InvariantViolation
        Naming the law: P3 (layers, shape, dtype, device, contiguity, separate memory), A1 (rows).
    TypeError
        It is no `KVPool`.

    Notes
    -----
    Cost: O(layers); no synchronisation. Laws: P3, A1.
    """
    check_subject(pool, KVPool)
    _check_buffers("k_buffer", pool, pool.k_buffer, (pool.k_head_num, pool.k_head_dim))
    _check_buffers("v_buffer", pool, pool.v_buffer, (pool.v_head_num, pool.v_head_dim))
    starts = {buffer.untyped_storage().data_ptr() for buffer in (*pool.k_buffer, *pool.v_buffer)}
    if len(starts) != 2 * pool.layer_num:
        raise InvariantViolation("P3", f"{2 * pool.layer_num} buffers share {len(starts)} pieces of memory")


def _check_buffers(name: str, pool: KVPool, buffers: Sequence[torch.Tensor], row: tuple[int, int]) -> None:
    if len(buffers) != pool.layer_num:
        raise InvariantViolation("P3", f"{name} has {len(buffers)} layers, expected {pool.layer_num}")
    for layer, buffer in enumerate(buffers):
        rows = pool.size + pool.page_size
        if buffer.shape[0] != rows:
            raise InvariantViolation(
                "A1", f"{name}[{layer}] has {buffer.shape[0]} rows, expected size + page_size = {rows}"
            )
        expected = (torch.Size((rows, *row)), pool.dtype, pool.device, True)
        found = (buffer.shape, buffer.dtype, buffer.device, buffer.is_contiguous())
        if found != expected:
            raise InvariantViolation(
                "P3", f"{name}[{layer}] is {found}, expected {expected} (shape, dtype, device, contiguous)"
            )
