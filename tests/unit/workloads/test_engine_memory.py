"""Requests and cache pass slots and states to each other without losing or sharing one by mistake."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from pymllm.errors import InvariantViolation, OwnershipError
from pymllm.mem_cache.base_prefix_cache import InsertResult
from pymllm.mem_cache.radix_cache import RadixCache
from pymllm.workloads.engine import Engine
from pymllm.workloads.engine_memory import EngineMemory, EngineStates
from pymllm.workloads.engine_pools import StatePool
from pymllm.workloads.engine_report import EngineReport
from pymllm.workloads.engine_watch import Event
from pymllm.workloads.live_request import LiveRequest
from pymllm.workloads.request import Request

Ask = Callable[..., Request]
EngineOf = Callable[..., Engine]
Script = Callable[..., Any]


def started(memory: EngineMemory, request: Request, tokens: int) -> LiveRequest:
    """Admit a request and give it slots for its first tokens that are not cached."""
    live = LiveRequest(request, place=request.request_id)
    assert memory.take_row(live, memory.match_and_hold(live))
    slots = memory.extend(live, tokens)
    assert slots is not None
    live.length += len(slots)
    return live


def row_of(memory: EngineMemory, live: LiveRequest) -> list[int]:
    """Read the whole row of a request."""
    row: list[int] = memory.pools.rows.req_to_token[live.row, : live.length].tolist()
    return row


@pytest.mark.notices("B202")
def test_short_memory_changes_nothing_but_what_is_evicted(engine_of: EngineOf, ask: Ask) -> None:
    """E3, X4: a request that cannot grow keeps its row and its slots, and gets no others."""
    memory = engine_of([], capacity=16, page_size=4).memory
    live = started(memory, ask(0, 30), 5)
    assert memory.extend(live, 12) is None
    assert (row_of(memory, live), memory.available()) == ([4, 5, 6, 7, 8], (8, 8))
    assert memory.probe.evict_calls == 1


@pytest.mark.notices("B101")
def test_duplicates_are_given_back_after_the_row_names_the_tree(engine_of: EngineOf, ask: Ask) -> None:
    """E2: of two requests that compute one prefix at a time, the later goes on with the other's slots."""
    memory = engine_of([], page_size=4).memory
    prompt = range(100, 114)
    first = started(memory, ask(0, 14, tokens=prompt), 14)
    second = started(memory, ask(1, 14, tokens=prompt), 14)
    memory.share(first)
    free = memory.available()[0]
    memory.share(second)
    assert row_of(memory, second)[:12] == row_of(memory, first)[:12]
    assert memory.available()[0] == free + 12
    assert row_of(memory, second)[12:] == [32, 33]
    memory.finish(first)
    memory.finish(second)
    assert memory.available()[0] + memory.probe.cache.total_size() == 64


@pytest.mark.notices("B10")
def test_finish_gives_back_duplicates_and_tail(engine_of: EngineOf, ask: Ask) -> None:
    """R4: what insert did not adopt is the request's to free, and its row is empty afterwards."""
    memory = engine_of([], page_size=4).memory
    prompt = range(100, 114)
    first, second = (started(memory, ask(number, 14, tokens=prompt), 14) for number in range(2))
    memory.finish(first)
    memory.finish(second)
    assert (memory.probe.cache.total_size(), memory.available()[0]) == (12, 52)
    assert memory.pools.rows.available_size() == 4
    assert not memory.pools.rows.req_to_token.any()


@pytest.mark.notices("B29")
def test_failed_admission_gives_its_hold_back(engine_of: EngineOf, ask: Ask) -> None:
    """E3: a request without a row owns nothing but its hold."""
    memory = engine_of([], page_size=4, max_running=1).memory
    memory.finish(started(memory, ask(0, 9), 9))
    live = LiveRequest(ask(1, 9, tokens=range(1000, 1008)), place=2)
    running = started(memory, ask(2, 4), 4)
    prefix = memory.match_and_hold(live)
    assert memory.probe.cache.protected_size() == len(prefix) == 8
    assert not memory.take_row(live, prefix)
    memory.give_back(live)
    assert memory.probe.cache.protected_size() == 0
    memory.give_back(running)
    assert memory.available()[0] == 64 - 8


@pytest.mark.notices("B47", when="False", shows_as=OwnershipError)
@pytest.mark.notices("B38", when="True", shows_as=OwnershipError)
@pytest.mark.notices("B32", when="True")
@pytest.mark.parametrize("early", [False, True])
def test_window_halves_behind_the_window_are_returned(engine_of: EngineOf, ask: Ask, early: bool) -> None:
    """S7: released early they enter the tree as tombstones, otherwise alive and evictable."""
    engine = engine_of([], page_size=4, sliding_window_size=6, release_window_early=early)
    memory = engine.memory
    live = started(memory, ask(0, 23, 9), 22)
    memory.share(live)
    cache = memory.probe.cache
    # 20 tokens are cached; the window before the last whole page covers tokens 14 to 19, pages 3 and 4.
    assert (live.held_length, live.released_length) == (20, 20)
    assert (cache.swa_protected_size(), cache.swa_evictable_size()) == ((8, 0) if early else (8, 12))
    assert memory.available() == ((40, 52) if early else (40, 40))
    memory.give_back(live)
    assert memory.available()[1] + cache.swa_evictable_size() == 64


def test_own_halves_leave_with_the_window_while_nothing_is_cached(engine_of: EngineOf, ask: Ask) -> None:
    """A7: without a prefix cache the request itself returns each half once, all at its end."""
    memory = engine_of([], cache="chunk", page_size=4, sliding_window_size=6).memory
    live = started(memory, ask(0, 40), 15)
    memory.share(live)
    assert (live.held_length, live.released_length, memory.available()) == (0, 4, (48, 52))
    slots = memory.extend(live, 13)
    assert slots is not None
    live.length += 13
    memory.share(live)
    assert (live.released_length, memory.available()) == (20, (36, 56))
    memory.finish(live)
    assert memory.available() == (64, 64)


@pytest.mark.notices("B170")
def test_chunk_is_cut_to_what_the_window_half_has(engine_of: EngineOf, ask: Ask) -> None:
    """E4: a prompt longer than the SWA half passes through it piece by piece."""
    memory = engine_of([], page_size=4, sliding_window_size=4, swa_capacity=12).memory
    live = LiveRequest(ask(0, 40), place=1)
    assert memory.take_row(live, memory.match_and_hold(live))
    pieces = []
    while live.length < 40:
        slots = memory.extend(live, 40 - live.length)
        assert slots is not None
        live.length += len(slots)
        pieces.append(len(slots))
        memory.share(live)
    assert pieces == [12, 8, 8, 8, 4]


@pytest.mark.notices("B173")
def test_a_whole_hit_is_held_as_any_other(engine_of: EngineOf, ask: Ask) -> None:
    """R6, E3: who gives a hold back has taken it, also where everything that may be hit was."""
    memory = engine_of([], page_size=4).memory
    prompt = range(100, 116)
    memory.finish(started(memory, ask(0, 16, tokens=prompt), 16))
    live = LiveRequest(ask(1, 20, tokens=prompt), place=1)
    memory.match_and_hold(live)
    assert (live.held_length, memory.probe.cache.protected_size()) == (16, 16)
    memory.give_back(live)
    assert memory.probe.cache.protected_size() == 0


@pytest.mark.notices("B178")
def test_tokens_behind_a_dead_window_are_counted(engine_of: EngineOf, ask: Ask) -> None:
    """S1, R4: KV that is cached but not usable is computed again; what revives it is the cache's."""
    memory = engine_of([], page_size=4, sliding_window_size=6).memory
    prompt = range(100, 116)
    memory.finish(started(memory, ask(0, 16, tokens=prompt), 16))
    memory.finish(started(memory, ask(1, 24, tokens=prompt), 8))
    memory.probe.cache.evict(0, 16)
    live = started(memory, ask(2, 20, tokens=prompt), 16)
    assert live.held_length == 0
    memory.share(live)
    assert memory.dead_window_tokens == 16
    assert live.held_length == 16
    memory.finish(live)
    assert memory.available()[0] + memory.probe.cache.total_size() == 64


class AdoptsWithoutKeeping(RadixCache):
    """Claims to own what was inserted, but caches nothing."""

    def insert(self, key: Any, value: torch.Tensor | None = None, **kwargs: Any) -> InsertResult:
        """Lie."""
        return InsertResult(adopted=((0, 1), (2, len(key))))


def test_adopting_without_caching_is_noticed(engine_of: EngineOf, ask: Ask) -> None:
    """R3: after an insert the key must be there."""
    memory = engine_of([]).memory
    live = started(memory, ask(0, 8), 8)
    memory.probe.cache = AdoptsWithoutKeeping()
    with pytest.raises(InvariantViolation, match=r"R3: request 0: insert adopted \(\(0, 1\), \(2, 8\)\)"):
        memory.share(live)


TRUNK = range(100, 120)


def states_of(engine: Engine) -> tuple[EngineStates, StatePool]:
    """Return what requests do with states, and where these are."""
    pool = engine.memory.pools.kind.state_pool
    assert engine.memory.states is not None
    assert pool is not None
    return engine.memory.states, pool


def one_after_another(ask: Ask, *prompts: tuple[int, range], output: int = 2) -> list[Request]:
    """Make requests that never live at one time, each of a length and with shared tokens in front."""
    return [
        ask(n, length, output, tokens=shared, arrival_ms=10_000.0 * n)
        for n, (length, shared) in enumerate(prompts)
    ]


def run(engine_of: EngineOf, requests: list[Request], **changes: Any) -> EngineReport:
    """Replay requests over a cache of states, with every check."""
    return engine_of(requests, cache="mamba", **changes).run()


@pytest.mark.notices("B71", when="1")
@pytest.mark.notices("B70", when="4")
@pytest.mark.parametrize("page_size", [1, 4])
def test_a_longer_prompt_begins_where_the_shorter_one_ended(
    page_size: int, engine_of: EngineOf, ask: Ask
) -> None:
    """M1, M2, E1: the state at the end of a prompt's whole pages is restored, and nothing is lost."""
    requests = one_after_another(ask, (18, TRUNK[:18]), (27, TRUNK[:18]))
    report = run(engine_of, requests, page_size=page_size)
    assert report.hit_tokens == report.ceiling_tokens == 18 // page_size * page_size
    assert (report.stateless_tokens, report.skipped_snapshots) == (0, 0)


# Prompts by length and shared beginning, one after another; how the engine differs; and what the report says.
STATES: dict[str, tuple[list[tuple[int, range]], dict[str, Any], dict[str, object]]] = {
    "the second prompt finds KV without a state and leaves one, which the third begins from (M2)": (
        [(20, TRUNK[:12])] * 3,
        {},
        {"ceiling_tokens": 24, "hit_tokens": 12, "stateless_tokens": 12},
    ),
    "a snapshot is optional: KV without states is cached, and every prompt computed anew (B77)": (
        [(20, TRUNK), (25, TRUNK)],
        {"track_slots": 0},
        {"hit_tokens": 0, "peak_states_held": 0, "stateless_tokens": 20, "skipped_snapshots": 3},
    ),
    "the least recent state goes for a new one, and its prompt is computed anew (M5)": (
        [(20, TRUNK), (20, range(0)), (25, TRUNK)],
        {"track_slots": 1},
        {"hit_tokens": 0, "evicted_states": 2, "skipped_snapshots": 1, "peak_states_held": 1},
    ),
    "a state that a request began from is held, so the snapshot at the end is left out (M4)": (
        [(18, TRUNK[:18]), (27, TRUNK[:18]), (27, TRUNK[:18])],
        {"track_slots": 1},
        {"hit_tokens": 36, "evicted_states": 0, "skipped_snapshots": 2},
    ),
    "a state belongs to the end of a page, so less than a page leaves none (M1)": (
        [(3, range(0))],
        {"page_size": 4},
        {"finished": 1, "peak_states_held": 0, "skipped_snapshots": 0},
    ),
}


@pytest.mark.parametrize("name", STATES)
def test_states_are_left_restored_and_evicted(name: str, engine_of: EngineOf, ask: Ask) -> None:
    """M1, M2, M4, M5: with every check, over a cache of states."""
    prompts, changes, said = STATES[name]
    report = run(engine_of, one_after_another(ask, *prompts), **changes)
    assert {field: getattr(report, field) for field in said} == said


def test_branching_point_costs_no_iteration(engine_of: EngineOf, ask: Ask) -> None:
    """Snapshots cut a chunk in pieces that are computed in one iteration all the same."""
    prompts = [(16, TRUNK[:12]), (16, TRUNK[:12])]
    engine = engine_of(one_after_another(ask, *prompts, output=1), cache="mamba", page_size=4)
    assert engine.run().iterations == 2
    assert engine.report().stateless_tokens == 12


@pytest.mark.notices("B89")
def test_state_that_is_there_already_stays_the_callers(engine_of: EngineOf, ask: Ask, script: Script) -> None:
    """M1, E3: of two equal prompts computed at one time, the second gives its track slot back."""
    heard: list[Event] = []
    source = script([ask(0, 20, 2, tokens=TRUNK), ask(1, 20, 2, tokens=TRUNK)], chunk=15)
    sized = engine_of(source, cache="mamba", chunk_tokens=30)
    engine = Engine(sized.config, source, onlooker=lambda event, live: heard.append(event))
    report = engine.run()
    assert heard.count(Event.STATE_DUPLICATED) == heard.count(Event.DUPLICATED) == 1
    assert (report.peak_states_held, report.skipped_snapshots) == (1, 0)


def test_prefix_without_a_state_is_noticed(
    engine_of: EngineOf, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M2: KV that no state goes with cannot be resumed from, whatever the KV."""
    engine = engine_of(one_after_another(ask, (20, TRUNK), (25, TRUNK)), cache="mamba")
    states, kind = states_of(engine)[0], engine.memory.pools.kind
    monkeypatch.setattr(states, "_kind", replace(kind, state_of=lambda node: None))
    with pytest.raises(InvariantViolation, match="M2: request 1 was given a prefix of 20 tokens"):
        engine.run()


def test_cache_that_loses_a_state_is_noticed(
    engine_of: EngineOf, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """M1, M2: what was just handed over must be found where it belongs."""
    source = [ask(0, 20, 2, tokens=TRUNK), ask(1, 20, 2, tokens=TRUNK)]
    engine = engine_of(source, cache="mamba", chunk_tokens=15, check_every=0)
    cache = engine.memory.pools.kind.cache
    insert = cache.insert
    monkeypatch.setattr(cache, "insert", lambda key, value, mamba_value=None: insert(key, value))
    with pytest.raises(InvariantViolation, match="M2: request 1: a state was cached after 19 tokens"):
        engine.run()
