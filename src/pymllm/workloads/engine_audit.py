"""Checks around the engine: who owns which slot while it runs, and that nothing is left at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch

from pymllm.errors import InvariantViolation
from pymllm.workloads.engine_config import EngineConfig
from pymllm.workloads.engine_pools import EnginePools
from pymllm.workloads.live_request import LiveRequest

__all__ = [
    "check_emptied",
    "check_fresh_row",
    "check_ownership",
    "check_quiescent",
    "check_track_slots",
    "check_windows",
]


def check_ownership(
    config: EngineConfig, pools: EnginePools, lives: Sequence[LiveRequest], *, with_cache: bool
) -> None:
    """Check that every slot has one owner, and that rows name what they may.

    Parameters
    ----------
    config : EngineConfig
        Already rounded.
    pools : EnginePools
        Between two iterations.
    lives : sequence of LiveRequest
        All requests that own a row.
    with_cache : bool
        Whether to look at the cache's nodes, or to believe its counters: enough as long as it is as it
        was at the last look.

    Raises
    ------
    InvariantViolation
        E2: two owners of one slot, an owned slot that is free, or a row that differs from the prefix it
        holds. E3: a slot that is neither free, nor cached, nor owned by a live request.

    Notes
    -----
    Cost: one pass over all owned pages, and with the cache one over all cached pages.
    """
    rows, page_size, cache = _rows_of(pools, lives), config.page_size, pools.kind.cache
    pairs = [*zip(lives, rows, strict=True)]
    owned = [row[live.held_length : live.length : page_size] for live, row in pairs]
    sizes = [len(slots) for slots in owned]
    counted, swa_counted = cache.total_size(), cache.swa_evictable_size() + cache.swa_protected_size()
    if with_cache:
        for live, row in pairs:
            _check_held_prefix(live, row[: live.held_length], pools)
        # Nodes are whole pages, so every page_size-th slot is the first of a page.
        owned.append(_joined(pools.kind.cached_slots())[::page_size])
        counted, swa_counted = 0, 0
    pages = np.concatenate([np.empty(0, dtype=np.int64), *owned]) // page_size
    first_slots = torch.from_numpy(pages * page_size)
    if len(pages):
        _check_one_owner(pages, sizes, lives)
        _check_handed_out(pages, first_slots, pools)
    _check_total("full", config.capacity, pools.full_available_size(), counted + len(pages) * page_size)
    _check_halves(config, pools, first_slots, swa_counted)


def _check_handed_out(pages: np.ndarray, first_slots: torch.Tensor, pools: EnginePools) -> None:
    handed_out = pools.allocator.is_handed_out(first_slots).cpu().numpy()
    if not handed_out.all():
        raise InvariantViolation(
            "E2", f"page {int(pages[~handed_out][0])} is free, but a request or the cache names it"
        )


def _check_halves(config: EngineConfig, pools: EnginePools, slots: torch.Tensor, counted: int) -> None:
    if pools.swa_allocator is None or config.swa_capacity is None:
        return
    halves = pools.swa_allocator.translate_to_swa(slots).cpu().numpy()
    alive = halves[halves > 0]
    if len(alive) and np.bincount(alive).max() > 1:
        raise InvariantViolation("E2", "two full pages have the same SWA page behind them")
    available = pools.swa_allocator.swa_available_size()
    _check_total("SWA", config.swa_capacity, available, counted + len(alive) * config.page_size)


def check_windows(config: EngineConfig, pools: EnginePools, lives: Sequence[LiveRequest]) -> None:
    """Check that the window before the last whole page of each request is there.

    A cache takes whole pages, and with a window only what is usable: a request that has given back the SWA
    half of a token of that window could be cached no more.

    Parameters
    ----------
    config : EngineConfig
        Already rounded.
    pools : EnginePools
        Between two iterations; without SWA halves there is nothing to check.
    lives : sequence of LiveRequest
        All requests that own a row.

    Raises
    ------
    InvariantViolation
        S1: a half is gone.

    Notes
    -----
    Cost: O(window) per request.
    """
    window = config.sliding_window_size
    if pools.swa_allocator is None or window is None:
        return
    for live in lives:
        start = max(0, live.length // config.page_size * config.page_size - window)
        row = pools.rows.req_to_token[live.row, start : live.length]
        gone = (pools.swa_allocator.translate_to_swa(row) == 0).nonzero().flatten().tolist()
        if gone:
            raise InvariantViolation(
                "S1",
                f"request {live.request_id}: position {start + gone[0]} has no SWA half, but the window of "
                f"{window} tokens before the last whole page of {live.length} tokens covers it",
            )


def check_track_slots(pools: EnginePools, lives: Sequence[LiveRequest]) -> None:
    """Check that every track slot has one owner: it is free, or some node's, or a live request's.

    Parameters
    ----------
    pools : EnginePools
        Between two iterations; without states there is nothing to check.
    lives : sequence of LiveRequest
        All requests that own a row.

    Raises
    ------
    InvariantViolation
        E2: two owners of one track slot. E3: a track slot without an owner.

    Notes
    -----
    Cost: O(states).
    """
    pool = pools.kind.state_pool
    if pool is None:
        return
    owned = [*pools.kind.cached_states(), *(live.track_slot for live in lives if live.track_slot)]
    if len({*owned}) != len(owned):
        [(slot, owners)] = Counter(owned).most_common(1)
        raise InvariantViolation("E2", f"track slot {slot} has {owners} owners")
    free = pool.available_track_slots()
    if free + len(owned) != pool.max_track_slots:
        raise InvariantViolation(
            "E3",
            f"track slots: {free} are free and {len(owned)} are cached or owned by live requests, "
            f"{free + len(owned)} of {pool.max_track_slots}",
        )


def _rows_of(pools: EnginePools, lives: Sequence[LiveRequest]) -> list[np.ndarray]:
    """Read the rows of requests, at once: a slice of an array costs a tenth of a slice of a tensor."""
    if not lives:
        return []
    table = pools.rows.req_to_token
    if table.device.type != "cpu":
        table = table[:, : max(live.length for live in lives)].cpu()
    rows = table.numpy()
    return [rows[live.row] for live in lives]


def _joined(pieces: Sequence[torch.Tensor]) -> np.ndarray:
    """Join slots into one array on the host."""
    if len(pieces) == 1:
        return pieces[0].cpu().numpy()
    return torch.cat([*pieces]).cpu().numpy() if pieces else np.empty(0, dtype=np.int64)


def _check_held_prefix(live: LiveRequest, row: np.ndarray, pools: EnginePools) -> None:
    path = _joined(pools.kind.path_slots(live.held_node))
    if not np.array_equal(path, row):
        raise InvariantViolation(
            "E2",
            f"request {live.request_id}: the first {live.held_length} entries of row {live.row} are not the "
            f"{len(path)} slots of the prefix that it holds",
        )


def _check_one_owner(pages: np.ndarray, owned: Sequence[int], lives: Sequence[LiveRequest]) -> None:
    counts = np.bincount(pages)
    if counts.max() > 1:
        page = int(counts.argmax())
        owners = np.searchsorted(np.cumsum(owned), np.flatnonzero(pages == page), side="right").tolist()
        names = [f"request {lives[at].request_id}" if at < len(lives) else "the cache" for at in owners]
        raise InvariantViolation("E2", f"page {page} has {len(names)} owners: {', '.join(names)}")


def check_fresh_row(pools: EnginePools, live: LiveRequest) -> None:
    """Check that a row carries nothing over from the request that had it before.

    Parameters
    ----------
    pools : EnginePools
        Of the engine.
    live : LiveRequest
        Just admitted: its row names the held prefix and nothing else.

    Raises
    ------
    InvariantViolation
        E2: there is something behind the held prefix.
    """
    stale = pools.rows.req_to_token[live.row, live.held_length :].count_nonzero()
    if stale:
        raise InvariantViolation(
            "E2",
            f"request {live.request_id}: row {live.row} carries {int(stale)} slots of an earlier request",
        )


def _check_total(half: str, capacity: int, available: int, owned: int) -> None:
    if available + owned != capacity:
        raise InvariantViolation(
            "E3",
            f"{half} slots: {available} are free and {owned} are cached or owned by live requests, "
            f"{available + owned} of {capacity}",
        )


def check_quiescent(config: EngineConfig, pools: EnginePools) -> None:
    """Check that pools and cache own everything, to the slot, when no request lives.

    Parameters
    ----------
    config : EngineConfig
        Already rounded.
    pools : EnginePools
        Of an engine without live requests.

    Raises
    ------
    InvariantViolation
        E3: a slot, an SWA half, a track slot, a hold or a row was not given back. E2: a free row is not
        empty.

    Notes
    -----
    Cost: one pass over the row table.
    """
    cache = pools.kind.cache
    _check_total("full", config.capacity, pools.full_available_size(), cache.total_size())
    if pools.swa_allocator is not None and config.swa_capacity is not None:
        alive = cache.swa_evictable_size() + cache.swa_protected_size()
        _check_total("SWA", config.swa_capacity, pools.swa_allocator.swa_available_size(), alive)
    check_track_slots(pools, ())
    if cache.protected_size() or cache.swa_protected_size():
        raise InvariantViolation(
            "E3",
            f"no request lives, but {cache.protected_size()} cached tokens are locked, and the windows of "
            f"{cache.swa_protected_size()}",
        )
    if pools.rows.available_size() != pools.rows.size:
        raise InvariantViolation(
            "E3", f"{pools.rows.size - pools.rows.available_size()} rows were not given back"
        )
    used = pools.rows.req_to_token.any(dim=1).nonzero().flatten().tolist()
    if used:
        raise InvariantViolation("E2", f"rows {used} are free but not empty")


def check_emptied(config: EngineConfig, pools: EnginePools) -> None:
    """Check that the pools own everything after the cache was evicted.

    Parameters
    ----------
    config : EngineConfig
        Already rounded.
    pools : EnginePools
        Of an engine without live requests, whose cache was asked to evict everything.

    Raises
    ------
    InvariantViolation
        E3: something is still cached, or was lost.
    """
    cache = pools.kind.cache
    if cache.total_size():
        raise InvariantViolation("E3", f"{cache.total_size()} tokens stay cached after evicting everything")
    check_quiescent(config, pools)
