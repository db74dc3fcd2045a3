"""White-box check of an `SWATokenToKVPoolAllocator`."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from pymllm.errors import InvariantViolation
from pymllm.invariants.slot_store import check_slot_store, some_repeated
from pymllm.invariants.subject import check_subject
from pymllm.mem_cache.swa_allocator import SWATokenToKVPoolAllocator

__all__ = ["check_swa_allocator", "walk_swa_allocator"]


def check_swa_allocator(allocator: SWATokenToKVPoolAllocator) -> None:
    """Raise if anything that either pool keeps, or the table between them, contradicts anything else.

    Parameters
    ----------
    allocator : SWATokenToKVPoolAllocator
        In any state, free groups included; it is only read.

    Raises
    ------
    InvariantViolation
        Naming the law: A7 (halves), or what `pymllm.invariants.slot_store.check_slot_store` lists.
    TypeError
        It is no `SWATokenToKVPoolAllocator`.

    Notes
    -----
    Cost: 6 ms for a million slots in each pool on the host. Laws: A1, A2, A4-A7.
    """
    walk_swa_allocator(allocator)


def walk_swa_allocator(allocator: SWATokenToKVPoolAllocator) -> NDArray[np.bool_]:
    """Do the same, and return of each full page whether it is handed out, page 0 included."""
    check_subject(allocator, SWATokenToKVPoolAllocator)
    full, swa = check_slot_store(allocator._full), check_slot_store(allocator._swa)
    if allocator._full.group_open != allocator._swa.group_open:
        raise InvariantViolation("A6", "a free group is open in one of the two pools only")
    halves = _as_array(allocator._half_of)
    paired = halves != 0
    lost = np.flatnonzero(paired & ~full)
    if lost.size:
        raise InvariantViolation("A7", f"full pages {lost[:8]} have SWA halves and are not handed out")
    used = halves[paired]
    if used.size and (used.min() < 1 or used.max() >= swa.size):
        outside = used[(used < 1) | (used >= swa.size)]
        raise InvariantViolation("A7", f"halves {outside[:8]} are outside the SWA pages 1..{swa.size - 1}")
    behind = np.zeros(swa.size, np.bool_)
    behind[used] = True
    if np.count_nonzero(behind) != used.size:
        raise InvariantViolation("A7", f"SWA pages {some_repeated(used)} are the half of several full pages")
    astray = np.flatnonzero(behind != swa)
    if astray.size:
        raise InvariantViolation(
            "A7", f"SWA pages {astray[:8]} are handed out without a full page, or free with one"
        )
    return full


def _as_array(table: NDArray[np.int32] | torch.Tensor) -> NDArray[np.int32]:
    """Return a table of either store on the host."""
    return table.cpu().numpy() if isinstance(table, torch.Tensor) else table
