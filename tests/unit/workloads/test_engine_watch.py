"""Each check around the engine passes on sound trackers and fails on damaged ones, and is counted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pymllm.errors import InvariantViolation
from pymllm.workloads.engine import Engine, EngineConfig
from pymllm.workloads.engine_watch import (
    EngineWatch,
    Event,
    check_emptied,
    check_fresh_row,
    check_ownership,
    check_quiescent,
    check_track_slots,
    check_windows,
)
from pymllm.workloads.live_request import LiveRequest
from pymllm.workloads.request import Request
from pymllm.workloads.source import Stage, TraceSource

Ask = Callable[..., Request]
EngineOf = Callable[..., Engine]


@pytest.fixture(params=[None, 6], ids=["full", "window"])
def engine(request: pytest.FixtureRequest, engine_of: EngineOf, ask: Ask) -> Engine:
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


# What is done to a running engine whose requests 1 and 2 hold pages of the tree and own one each.
RUNNING = {
    "a duplicate was given back while the row still names it": (
        "table[second.row, second.held_length] = table[first.row, 8]",
        "2 owners: request 2, the cache",
    ),
    "a row names what anybody may allocate": (
        "pools.allocator.free(table[first.row, first.held_length][None].long())",
        "E2: page {page} is free",
    ),
    "shared slots are named where no hold covers them": (
        "table[first.row, 1] += 1",
        "E2: request 1: the first 12 entries of row {row}",
    ),
}


@pytest.mark.parametrize("what", RUNNING)
def test_damage_while_requests_run_is_noticed(what: str, engine: Engine) -> None:
    """E2: by whoever looks at the cache's nodes."""
    damage, message = RUNNING[what]
    first, second = lives_of(engine)
    page, pools = own_page(engine, first), engine.memory.pools
    names = {"first": first, "second": second, "pools": pools, "table": pools.rows.req_to_token}
    exec(damage, names)
    with pytest.raises(InvariantViolation, match=message.format(page=page, row=first.row)):
        check(engine)


def test_what_shows_without_the_cache_is_noticed_without_it(engine: Engine) -> None:
    """E2, E3: totals stay right when one slot is named twice and another not at all; a slot may be lost."""
    first, second = lives_of(engine)
    table, page = engine.memory.pools.rows.req_to_token, own_page(engine, first)
    before = table[second.row].clone()
    table[second.row, second.held_length : second.length] = table[first.row, first.held_length]
    for with_cache in (False, True):
        with pytest.raises(InvariantViolation, match=f"E2: page {page} has 2 owners: request 1, request 2"):
            check(engine, with_cache=with_cache)
    table[second.row] = before
    assert engine.memory.pools.allocator.alloc(4) is not None
    for with_cache in (False, True):
        with pytest.raises(InvariantViolation, match=r"E3: full slots: .* 60 of 64"):
            check(engine, with_cache=with_cache)


def test_stale_row_is_noticed(engine: Engine) -> None:
    """E2: recycled rows carry nothing over."""
    live = lives_of(engine)[0]
    row = engine.memory.pools.rows.req_to_token[live.row]
    row[live.held_length :] = 0
    check_fresh_row(engine.memory.pools, live)
    row[60] = 9
    with pytest.raises(InvariantViolation, match=f"E2: request 1: row {live.row} carries 1 slots"):
        check_fresh_row(engine.memory.pools, live)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("pools.allocator.alloc(4)", "E3: full slots"),
        ("pools.kind.cache.inc_lock_ref(held)", "E3: no request lives, but 12 cached tokens are locked"),
        ("pools.rows.alloc(2)", "E3: 2 rows were not given back"),
        ("pools.rows.req_to_token[2, 5] = 1", r"E2: rows \[2\] are free but not empty"),
    ],
)
def test_what_was_not_given_back_is_noticed_at_the_end(damage: str, message: str, engine: Engine) -> None:
    """E2, E3: at quiescence pools and cache own everything, slots, holds and empty rows."""
    held, pools = lives_of(engine)[0].held_node, engine.memory.pools
    engine.drain()
    exec(damage, {"pools": pools, "held": held})
    with pytest.raises(InvariantViolation, match=message):
        check_quiescent(engine.config, pools)


def test_cache_that_is_not_empty_is_noticed(engine: Engine) -> None:
    """E3: after evicting everything the pools own everything."""
    engine.drain()
    pools = engine.memory.pools
    with pytest.raises(InvariantViolation, match=r"E3: \d+ tokens stay cached"):
        check_emptied(engine.config, pools)
    pools.kind.cache.evict(64)
    check_emptied(engine.config, pools)


@pytest.mark.parametrize("engine", [6], indirect=True)
def test_shared_and_lost_window_halves_are_noticed(engine: Engine) -> None:
    """A7, E3: one half behind two full slots shows in no full count; each is counted, at the end too."""
    allocator = engine.memory.pools.swa_allocator
    assert allocator is not None
    one, two = (own_page(engine, live) for live in lives_of(engine))
    before = int(allocator._half_of[one])
    allocator._half_of[one] = allocator._half_of[two]
    with pytest.raises(InvariantViolation, match="E2: two full pages have the same SWA page"):
        check(engine)
    allocator._half_of[one] = before
    assert allocator._swa.take(1) is not None
    with pytest.raises(InvariantViolation, match="E3: SWA slots"):
        check(engine)
    engine.drain()
    with pytest.raises(InvariantViolation, match="E3: SWA slots"):
        check_quiescent(engine.config, engine.memory.pools)


@pytest.fixture
def hybrid(engine_of: EngineOf, ask: Ask) -> Engine:
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
        hybrid.watch.check_invariants([], hybrid.memory.probe.operations)
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


CHECKED = {"capacity": 64, "max_running": 3, "chunk_tokens": 16, "content_check": True, "check_every": 1}


class Diary:
    """A diary of a run: each event with its request, and the row that the request had then."""

    def __init__(self) -> None:
        self.entries: list[tuple[Event, int]] = []
        self.rows: dict[tuple[Event, int], int] = {}

    def __call__(self, event: Event, live: LiveRequest) -> None:
        """Write an entry."""
        self.entries.append((event, live.request_id))
        self.rows[event, live.request_id] = live.row


def watched(source: TraceSource, **changes: object) -> tuple[Engine, Diary]:
    """Make a small engine that checks everything, and keep its diary."""
    diary = Diary()
    config = EngineConfig(**(CHECKED | {"decode_headroom": 0} | changes))  # type: ignore[arg-type]
    return Engine(config, source, onlooker=diary), diary


def test_onlooker_hears_of_an_event_before_it_takes_effect(
    ask: Ask, script: Callable[..., TraceSource]
) -> None:
    """E3: whoever counts exits can still see what the request has."""
    source = script([ask(0, 9, 5), ask(1, 99, 1), ask(2, 9, 9)], aborts={(2, Stage.DECODE): 2})
    engine, diary = watched(source)
    engine.run()
    assert diary.entries == [
        (Event.REJECTED, 1),
        (Event.ADMITTED, 0),
        (Event.ADMITTED, 2),
        (Event.ABORTED, 2),
        (Event.FINISHED, 0),
    ]
    assert diary.rows[Event.ABORTED, 2] > 0
    assert diary.rows[Event.FINISHED, 0] > 0


@pytest.mark.parametrize(
    ("shared", "changes", "event"),
    [(0, {}, Event.RETRACTED), (20, {"chunk": 5, "output": 9}, Event.DUPLICATED)],
    ids=["memory is short", "two prompts are computed side by side"],
)
def test_shortage_and_duplicates_are_told_of(
    shared: int, changes: dict[str, int], event: Event, ask: Ask, script: Callable[..., TraceSource]
) -> None:
    """E3, R4: who must yield has a row still, who is refused has none; duplicates are still there."""
    output, chunk = changes.get("output", 30), changes.get("chunk")
    prompt = range(100, 100 + shared)
    engine, diary = watched(
        script([ask(n, 12 + shared // 2 + n, output, tokens=prompt) for n in range(3)], chunk=chunk)
    )
    engine.run()
    told = [number for kind, number in diary.entries if kind is event]
    assert told
    assert all(diary.rows[event, number] > 0 for number in told)
    assert all(row == 0 for (kind, _), row in diary.rows.items() if kind is Event.REFUSED)


@pytest.mark.parametrize(
    ("changes", "event"),
    [({"cache": "chunk"}, Event.UNCACHED), ({"cache": "mamba", "track_slots": 0}, Event.SNAPSHOT_SKIPPED)],
)
def test_what_is_not_cached_is_told_of(changes: dict[str, object], event: Event, ask: Ask) -> None:
    """S7, B77: the cache has nothing of what was computed, or no track slot for its state; both go on."""
    engine, diary = watched(TraceSource([ask(0, 30, 2)]), **changes)
    engine.run()
    assert diary.entries[0] == (Event.ADMITTED, 0)
    assert set(diary.entries[1:-1]) == {(event, 0)}
    assert diary.entries[-1] == (Event.FINISHED, 0)


def test_tests_of_laws_are_counted(ask: Ask) -> None:
    """E1-E6: a run that shares, decodes and empties its cache has tested every law of the engine."""
    prompt = range(100, 120)
    engine, _ = watched(TraceSource([ask(n, 22 + n, 20, tokens=prompt) for n in range(6)]))
    engine.run()
    assert set(engine.watch.tested) == {"E1", "E2", "E3", "E4", "E5", "E6"}
    assert min(engine.watch.tested.values()) > 0
    exits = engine.report().finished + engine.report().retractions
    assert engine.watch.tested["E3"] > exits


def test_rest_without_writes_tests_no_padding(ask: Ask) -> None:
    """E5: only a test that could have failed is counted."""
    engine, _ = watched(TraceSource([ask(0, 5, 2)]))
    engine.check_quiescent()
    assert engine.watch.tested["E5"] == 0
    engine.run()
    tested = engine.watch.tested["E5"]
    assert tested > 0
    engine.check_quiescent()
    assert engine.watch.tested["E5"] == tested


@pytest.mark.parametrize(("tokens", "tested"), [(9, 0), (8, 1), (4, 1)])
def test_room_that_was_there_counts_as_a_test(tokens: int, tested: int, ask: Ask) -> None:
    """E4: nothing is demanded where free and evictable do not suffice."""
    watch = make_watch()
    watch.check_progress(tokens, (12, 8), (8, 8))
    assert watch.tested["E4"] == tested


def test_room_that_was_not_made_is_noticed() -> None:
    """E4: either half counts."""
    for available in ((7, 9), (9, 7)):
        with pytest.raises(InvariantViolation, match=r"E4: 8 tokens are needed and \(12, 8\) were free"):
            make_watch().check_progress(8, (12, 8), available)


def make_watch() -> EngineWatch:
    """Give the watch of an engine that has nothing to do."""
    return watched(TraceSource([]))[0].watch


def test_states_are_read_where_content_is_checked(ask: Ask) -> None:
    """E1: a working state is compared after each restore, each piece of a prompt, and at the end."""
    requests = [ask(n, 20, 4, tokens=range(100, 118), arrival_ms=9_000.0 * n) for n in range(2)]
    engine, _ = watched(TraceSource(requests), cache="mamba")
    engine.run()
    assert engine.watch.recurrent is not None
    # Each is admitted and finishes; the second stops where the prompts part. Chunks are of 16 tokens.
    assert engine.watch.recurrent.checked_states == 2 * 2 + 2 + 3
    blind, _ = watched(TraceSource(requests), cache="mamba", content_check=False)
    assert blind.watch.recurrent is None
    assert blind.run().hit_tokens == engine.report().hit_tokens


def test_state_that_changes_between_two_iterations_is_noticed(ask: Ask) -> None:
    """E5: what nobody wrote is looked for after every iteration, free rows and track slots included."""
    engine, _ = watched(TraceSource([ask(0, 20, 9)]), cache="mamba")
    engine.step()
    assert engine.memory.pools.kind.state_pool is not None
    engine.memory.pools.kind.state_pool.recurrent_state[0, -1] = 1
    with pytest.raises(InvariantViolation, match="E5: recurrent_state of row 15"):
        engine.step()


def test_a_request_without_work_is_not_admitted(engine_of: EngineOf, ask: Ask) -> None:
    """E4: a full hit leaves a token to compute."""
    watch = engine_of([ask(0, 8)]).watch
    live = LiveRequest(ask(0, 8), place=1)
    live.length = 7
    watch.check_work(live)
    live.length = 8
    with pytest.raises(InvariantViolation, match="E4: request 0: 8 tokens are a hit"):
        watch.check_work(live)
