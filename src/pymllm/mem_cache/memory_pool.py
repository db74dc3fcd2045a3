"""The memory pools under their documented import path, and factories for pools that belong together.

Three layers: `ReqToTokenPool` maps (request row, position) to a slot, an allocator decides who owns which
slot, and `KVPool` holds what is in it. `GDNPool` holds recurrent states, by request row.
"""

from __future__ import annotations

import logging

import torch

from pymllm.mem_cache.pools.gdn_pool import GDNPool
from pymllm.mem_cache.pools.kv_pool import KVPool
from pymllm.mem_cache.pools.req_to_token_pool import ReqToTokenPool
from pymllm.mem_cache.slots.swa_allocator import SWATokenToKVPoolAllocator
from pymllm.mem_cache.slots.token_allocator import TokenToKVPoolAllocator

__all__ = [
    "GDNPool",
    "KVPool",
    "ReqToTokenPool",
    "SWATokenToKVPoolAllocator",
    "TokenToKVPoolAllocator",
    "logger",
    "make_full_attention_net_mem_pool",
    "make_req_to_token_pool",
]

logger = logging.getLogger(__name__)


def make_full_attention_net_mem_pool(
    size: int,
    layer_num: int,
    k_head_num: int,
    k_head_dim: int,
    v_head_num: int,
    v_head_dim: int,
    device: str | torch.device = "cuda",
    dtype: torch.dtype = torch.float16,
    page_size: int = 1,
    need_sort: bool = True,
    pin_memory: bool = True,
) -> tuple[KVPool, TokenToKVPoolAllocator]:
    """Return a `KVPool` and the allocator of its slots, with one page size for both.

    Parameters
    ----------
    size : int
        Usable slots, a multiple of ``page_size``.
    layer_num : int
        Transformer layers.
    k_head_num, k_head_dim, v_head_num, v_head_dim : int
        Heads per token and elements per head, for keys and for values.
    device : str or torch.device
        Where the buffers and the allocator's indices are.
    dtype : torch.dtype
        Storage type of the buffers.
    page_size : int
        Tokens per page.
    need_sort : bool
        Hand out the lowest slots first after a merge.
    pin_memory : bool
        Page-lock buffers on the CPU where CUDA is in use, as of `KVPool`.

    Returns
    -------
    tuple of KVPool and TokenToKVPoolAllocator
        Every slot that the allocator can hand out is a row of the pool.

    Raises
    ------
    TypeError
        A size is not an int, or ``dtype`` is not a `torch.dtype`.
    ValueError
        A size is below 1, or ``size`` is not a multiple of ``page_size``.

    Notes
    -----
    Laws: A1 (both sides agree about the rows).
    """
    pool = KVPool(
        size,
        layer_num,
        k_head_num,
        k_head_dim,
        device=device,
        dtype=dtype,
        v_head_num=v_head_num,
        v_head_dim=v_head_dim,
        pin_memory=pin_memory,
        page_size=page_size,
    )
    allocator = TokenToKVPoolAllocator(size, device=device, page_size=page_size, need_sort=need_sort)
    logger.info("%r takes %.3f GiB", pool, pool.mem_bytes() / 2**30)
    return pool, allocator


def make_req_to_token_pool(
    max_reqs: int, max_context_len: int, device: str | torch.device = "cuda"
) -> ReqToTokenPool:
    """Return a new `ReqToTokenPool`.

    Parameters
    ----------
    max_reqs : int
        Rows that can be handed out at a time.
    max_context_len : int
        Positions per row, in tokens.
    device : str or torch.device
        Where the table is.

    Returns
    -------
    ReqToTokenPool
        A new pool.

    Raises
    ------
    TypeError
        A size is not an int.
    ValueError
        A size is below 1.

    Notes
    -----
    Laws: P1.
    """
    pool = ReqToTokenPool(max_reqs, max_context_len, device=device)
    logger.info("%r takes %.3f GiB", pool, pool.req_to_token.nbytes / 2**30)
    return pool
