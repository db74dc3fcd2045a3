"""White-box check of a `GDNPool`: the form of its states and the books of its track slots."""

from __future__ import annotations

import torch

from pymllm.errors import InvariantViolation
from pymllm.invariants.free_numbers import check_free_numbers
from pymllm.invariants.subject import check_subject
from pymllm.mem_cache.gdn_pool import GDNPool

__all__ = ["check_gdn_pool"]


def check_gdn_pool(pool: GDNPool) -> None:
    """Raise if the states have another layout than P4's, or a track slot is lost.

    Parameters
    ----------
    pool : GDNPool
        Between two calls; no state is read.

    Raises
    ------
    InvariantViolation
        Naming the law: P4 (layout), P5 (track slots), X3 (order).
    TypeError
        It is no `GDNPool`.

    Notes
    -----
    Cost: O(max_track_slots) on the host; no synchronisation. Laws: P4, P5, X3.
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
        raise InvariantViolation(
            "P4", f"{name} is {found}, expected {expected} (shape, dtype, device, contiguous)"
        )
