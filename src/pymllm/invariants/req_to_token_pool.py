"""White-box check of a `ReqToTokenPool`: its books and its whole table."""

from __future__ import annotations

import numpy as np
import torch

from pymllm.errors import InvariantViolation
from pymllm.invariants.free_numbers import check_free_numbers
from pymllm.invariants.subject import check_subject
from pymllm.mem_cache.req_to_token_pool import ReqToTokenPool

__all__ = ["check_req_to_token_pool"]


def check_req_to_token_pool(pool: ReqToTokenPool, kv_rows: int | None = None) -> None:
    """Raise if a row is lost, a free row is not zero, or an entry names no slot.

    Parameters
    ----------
    pool : ReqToTokenPool
        Between two calls; it is only read.
    kv_rows : int, optional
        Rows of the KV buffers that the entries name; without it any slot from 0 on passes.

    Raises
    ------
    InvariantViolation
        Naming the law: P1 (table and rows), P2 (free rows are zero, and no entry is negative), E2 (entries
        name rows of the buffers), X3 (order).
    TypeError
        It is no `ReqToTokenPool`.

    Notes
    -----
    Cost: a few passes over the table; on a device it is reduced there and synchronises. Laws: P1, P2, E2, X3.
    """
    check_subject(pool, ReqToTokenPool)
    expected = (torch.Size((pool.size + 1, pool.max_context_len)), torch.int32, pool.device)
    table = pool.req_to_token
    found = (table.shape, table.dtype, table.device)
    if found != expected:
        raise InvariantViolation("P1", f"the table is {found}, expected {expected} (shape, dtype, device)")
    if not pool._is_open[0]:
        raise InvariantViolation("P1", "row 0 takes no padding")
    held = (np.flatnonzero(pool._is_open[1:]) + 1).tolist()
    check_free_numbers("P1", "row", range(1, pool.size + 1), pool._free_rows, held)

    used = table.any(dim=1).cpu().numpy()
    dirty = np.flatnonzero(used[1:] & ~pool._is_open[1:]) + 1
    if dirty.size:
        raise InvariantViolation("P2", f"free rows {dirty.tolist()} are not zero")
    low, high = (int(bound) for bound in torch.aminmax(table))
    if low < 0:
        raise InvariantViolation("P2", f"entries run from {low}; one that is not in use is 0")
    if kv_rows is not None and high >= kv_rows:
        raise InvariantViolation("E2", f"entries run to {high}, slots from 0 to {kv_rows - 1}")
