"""Each check around the engine passes on sound books and fails on damaged ones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pymllm.errors import InvariantViolation
from pymllm.workloads.engine import Engine
from pymllm.workloads.engine_pools import EnginePools
from pymllm.workloads.engine_watch import (
    check_emptied,
    check_fresh_row,
    check_ownership,
    check_quiescent,
    check_track_slots,
    check_windows,
)
from pymllm.workloads.live_request import LiveRequest
from pymllm.workloads.request import Request


@pytest.fixture(params=[None, 6], ids=["full", "window"])
def engine(
    request: pytest.FixtureRequest, engine_of: Callable[..., Engine], ask: Callable[..., Request]
) -> Engine:
    """Make an engine with a cached prompt and two requests in decode that share its first pages."""
    prompt = range(100, 113)
    engine = engine_of(
        [ask(0, 13, tokens=prompt), ask(1, 15, 30, tokens=prompt[:9]), ask(2, 11, 30, tokens=prompt[:9])],
        page_size=4,
        sliding_window_size=request.param,
        chunk_tokens=64,
    )
    engine.step()
    engine.step()
    engine.decoding.write_back()
    return engine


def lives_of(engine: Engine) -> list[LiveRequest]:
    """Two requests, of which each holds pages of the tree and owns one of its own."""
    lives = engine.decoding.requests
    assert [live.held_length for live in lives] == [12, 8]
    return lives


def own_page(engine: Engine, live: LiveRequest) -> int:
    """Name the first page that a request owns alone."""
    return int(engine.memory.pools.rows.req_to_token[live.row, live.held_length]) // 4


def check(engine: Engine, *, with_cache: bool = True) -> None:
    """Run the check of a running engine."""
    check_ownership(engine.config, engine.memory.pools, lives_of(engine), with_cache=with_cache)


def test_sound_books_pass(engine: Engine) -> None:
    """E2: whatever follows fails for the planted reason."""
    check(engine)
    check(engine, with_cache=False)
    engine.drain()
    check_quiescent(engine.config, engine.memory.pools)


def test_slot_with_two_owners_is_noticed(engine: Engine) -> None:
    """E2: totals stay right when one slot is named twice and another not at all."""
    first, second = lives_of(engine)
    table, page = engine.memory.pools.rows.req_to_token, own_page(engine, first)
    table[second.row, second.held_length : second.length] = table[first.row, first.held_length]
    for with_cache in (False, True):
        with pytest.raises(InvariantViolation, match=f"E2: page {page} has 2 owners: request 1, request 2"):
            check(engine, with_cache=with_cache)


def test_slot_of_request_and_cache_is_noticed(engine: Engine) -> None:
    """E2: a duplicate that was given back while the row still names it."""
    first, second = lives_of(engine)
    table = engine.memory.pools.rows.req_to_token
    table[second.row, second.held_length] = table[first.row, 8]
    with pytest.raises(InvariantViolation, match="2 owners: request 2, the cache"):
        check(engine)


def test_free_slot_in_a_row_is_noticed(engine: Engine) -> None:
    """E2: a row must not name what anybody may allocate."""
    page = own_page(engine, lives_of(engine)[0])
    engine.memory.pools.allocator.free(torch.tensor([4 * page]))
    with pytest.raises(InvariantViolation, match=f"E2: page {page} is free"):
        check(engine)


def test_lost_slot_is_noticed(engine: Engine) -> None:
    """E3: allocated, but nobody's."""
    assert engine.memory.pools.allocator.alloc(4) is not None
    for with_cache in (False, True):
        with pytest.raises(InvariantViolation, match=r"E3: full slots: .* 60 of 64"):
            check(engine, with_cache=with_cache)


def test_row_that_differs_from_its_held_prefix_is_noticed(engine: Engine) -> None:
    """E2: shared slots are named only where the hold covers them."""
    live = lives_of(engine)[0]
    engine.memory.pools.rows.req_to_token[live.row, 1] += 1
    with pytest.raises(InvariantViolation, match=f"E2: request 1: the first 12 entries of row {live.row}"):
        check(engine)


def test_stale_row_is_noticed(engine: Engine) -> None:
    """E2: recycled rows carry nothing over."""
    live = lives_of(engine)[0]
    row = engine.memory.pools.rows.req_to_token[live.row]
    row[live.held_length :] = 0
    check_fresh_row(engine.memory.pools, live)
    row[60] = 9
    with pytest.raises(InvariantViolation, match=f"E2: request 1: row {live.row} carries 1 slots"):
        check_fresh_row(engine.memory.pools, live)


def drained(engine: Engine) -> EnginePools:
    """Let nothing live any more."""
    engine.drain()
    return engine.memory.pools


def test_leaked_slot_is_noticed_at_the_end(engine: Engine) -> None:
    """E3: at quiescence pools and cache own everything."""
    pools = drained(engine)
    assert pools.allocator.alloc(4) is not None
    with pytest.raises(InvariantViolation, match="E3: full slots"):
        check_quiescent(engine.config, pools)


def test_leaked_hold_is_noticed_at_the_end(engine: Engine) -> None:
    """E3: a hold nobody releases keeps its pages for ever."""
    held = lives_of(engine)[0].held_node
    pools = drained(engine)
    pools.kind.cache.inc_lock_ref(held)
    with pytest.raises(InvariantViolation, match="E3: no request lives, but 12 cached tokens are locked"):
        check_quiescent(engine.config, pools)


def test_leaked_row_is_noticed_at_the_end(engine: Engine) -> None:
    """E3: rows are given back like slots."""
    pools = drained(engine)
    pools.rows.alloc(2)
    with pytest.raises(InvariantViolation, match="E3: 2 rows were not given back"):
        check_quiescent(engine.config, pools)


def test_uncleared_row_is_noticed_at_the_end(engine: Engine) -> None:
    """E2: a free row is empty."""
    pools = drained(engine)
    pools.rows.req_to_token[2, 5] = 1
    with pytest.raises(InvariantViolation, match=r"E2: rows \[2\] are free but not empty"):
        check_quiescent(engine.config, pools)


def test_cache_that_is_not_empty_is_noticed(engine: Engine) -> None:
    """E3: after evicting everything the pools own everything."""
    pools = drained(engine)
    with pytest.raises(InvariantViolation, match=r"E3: \d+ tokens stay cached"):
        check_emptied(engine.config, pools)
    pools.kind.cache.evict(64)
    check_emptied(engine.config, pools)


@pytest.mark.parametrize("engine", [6], indirect=True)
def test_shared_window_half_is_noticed(engine: Engine) -> None:
    """A7: one SWA half behind two full slots is aliasing that no full count shows."""
    allocator = engine.memory.pools.swa_allocator
    assert allocator is not None
    pages = [own_page(engine, live) for live in lives_of(engine)]
    allocator._half_of[pages[0]] = allocator._half_of[pages[1]]
    with pytest.raises(InvariantViolation, match="E2: two full pages have the same SWA page"):
        check(engine)


@pytest.mark.parametrize("engine", [6], indirect=True)
def test_lost_window_half_is_noticed(engine: Engine) -> None:
    """E3: the SWA half is counted like the full one, while requests run and at the end."""
    allocator = engine.memory.pools.swa_allocator
    assert allocator is not None
    lost = allocator._swa.take(1)
    assert lost is not None
    with pytest.raises(InvariantViolation, match="E3: SWA slots"):
        check(engine)
    with pytest.raises(InvariantViolation, match="E3: SWA slots"):
        check_quiescent(engine.config, drained(engine))


@pytest.fixture
def hybrid(engine_of: Callable[..., Engine], ask: Callable[..., Request]) -> Engine:
    """Make an engine with three states: a finished prompt's, and those of two requests in decode."""
    requests = [ask(0, 13), ask(1, 15, 30), ask(2, 11, 30)]
    engine = engine_of(requests, cache="mamba", page_size=4, chunk_tokens=64, track_slots=5)
    engine.step()
    return engine


def test_every_track_slot_has_one_owner(hybrid: Engine) -> None:
    """M7, E3: free, cached, or in the hands of a live request."""
    pools, lives = hybrid.memory.pools, hybrid.decoding.requests
    assert pools.kind.state_pool is not None
    check_track_slots(pools, lives)
    live = lives[0]
    live.track_slot = pools.kind.state_pool.alloc_track_slot() or 0
    check_track_slots(pools, lives)
    with pytest.raises(InvariantViolation, match="E3: track slots: 1 are free and 3 are cached or owned"):
        check_track_slots(pools, ())
    with pytest.raises(InvariantViolation, match="E3: track slots"):
        hybrid.watch.check_books([], hybrid.memory.probe.operations)
    lives[1].track_slot = live.track_slot
    with pytest.raises(InvariantViolation, match=f"E2: track slot {live.track_slot} has 2 owners"):
        check_track_slots(pools, lives)


def test_track_slot_of_request_and_cache_is_noticed(hybrid: Engine) -> None:
    """M1, E2: a request that goes on with what it has handed over."""
    pools, live = hybrid.memory.pools, hybrid.decoding.requests[0]
    live.track_slot = pools.kind.cached_states()[0]
    with pytest.raises(InvariantViolation, match=f"E2: track slot {live.track_slot} has 2 owners"):
        check_track_slots(pools, [live])


def test_lost_track_slot_is_noticed_at_rest(hybrid: Engine) -> None:
    """E3: nobody has it, and it is not free."""
    pools = hybrid.memory.pools
    hybrid.drain()
    hybrid.check_quiescent()
    assert pools.kind.state_pool is not None
    pools.kind.state_pool.alloc_track_slot()
    with pytest.raises(InvariantViolation, match="E3: track slots: 1 are free and 3 are cached"):
        check_quiescent(hybrid.config, pools)


def test_window_before_the_last_whole_page_must_be_there(engine: Engine) -> None:
    """S1: whoever has given back a half of it could be cached no more; what lies before it may go."""
    pools, lives = engine.memory.pools, lives_of(engine)
    check_windows(engine.config, pools, lives)
    if pools.swa_allocator is None:
        return
    page = pools.rows.req_to_token[lives[0].row, lives[0].held_length : lives[0].held_length + 4]
    pools.swa_allocator.free_swa(page)
    lives[0].length = 20
    check_windows(engine.config, pools, lives[1:])
    lives[0].length = 16
    with pytest.raises(InvariantViolation, match=r"S1: request .*position 12 has no SWA half"):
        check_windows(engine.config, pools, lives)
