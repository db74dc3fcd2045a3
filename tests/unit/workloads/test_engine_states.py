"""Requests begin from cached states, leave snapshots, and give back every track slot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from pymllm.errors import InvariantViolation
from pymllm.workloads.engine import Engine
from pymllm.workloads.engine_memory import EngineStates
from pymllm.workloads.engine_pools import StatePool
from pymllm.workloads.engine_report import EngineReport
from pymllm.workloads.engine_watch import Event
from pymllm.workloads.live_request import LiveRequest
from pymllm.workloads.request import Request

Ask = Callable[..., Request]
EngineOf = Callable[..., Engine]
Script = Callable[..., Any]

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


@pytest.mark.parametrize("page_size", [1, 4])
def test_a_longer_prompt_begins_where_the_shorter_one_ended(
    page_size: int, engine_of: EngineOf, ask: Ask
) -> None:
    """M1, M2, E1: the state at the end of a prompt's whole pages is restored, and nothing is lost."""
    requests = one_after_another(ask, (18, TRUNK[:18]), (27, TRUNK[:18]))
    report = run(engine_of, requests, page_size=page_size)
    assert report.hit_tokens == report.ceiling_tokens == 18 // page_size * page_size
    assert (report.stateless_tokens, report.skipped_snapshots) == (0, 0)


def test_branching_point_is_resumed_from_the_third_time(engine_of: EngineOf, ask: Ask) -> None:
    """M2: the second prompt finds KV without a state and leaves one there, which the third begins from."""
    prompts = [(20, TRUNK[:12]), (20, TRUNK[:12]), (20, TRUNK[:12])]
    report = run(engine_of, one_after_another(ask, *prompts))
    assert report.ceiling_tokens == 24
    assert (report.hit_tokens, report.stateless_tokens) == (12, 12)


def test_branching_point_costs_no_iteration(engine_of: EngineOf, ask: Ask) -> None:
    """Snapshots cut a chunk in pieces that are computed in one iteration all the same."""
    prompts = [(16, TRUNK[:12]), (16, TRUNK[:12])]
    engine = engine_of(one_after_another(ask, *prompts, output=1), cache="mamba", page_size=4)
    assert engine.run().iterations == 2
    assert engine.report().stateless_tokens == 12


def test_without_a_track_slot_requests_go_without(engine_of: EngineOf, ask: Ask) -> None:
    """B77: a snapshot is optional; KV without states is cached, and every prompt is computed anew."""
    report = run(engine_of, one_after_another(ask, (20, TRUNK), (25, TRUNK)), track_slots=0)
    assert (report.finished, report.hit_tokens, report.peak_states_held) == (2, 0, 0)
    assert (report.stateless_tokens, report.skipped_snapshots) == (20, 3)


def test_least_recent_state_makes_room_for_a_snapshot(engine_of: EngineOf, ask: Ask) -> None:
    """M5: a state is evicted for a new one, and its prompt is computed anew."""
    prompts = [(20, TRUNK), (20, range(0)), (25, TRUNK)]
    report = run(engine_of, one_after_another(ask, *prompts), track_slots=1)
    assert (report.hit_tokens, report.evicted_states, report.skipped_snapshots) == (0, 2, 1)
    assert report.peak_states_held == 1


def test_state_that_a_request_began_from_is_not_evicted_under_it(engine_of: EngineOf, ask: Ask) -> None:
    """M4: the only track slot is held, so the snapshot at the end is left out."""
    prompts = [(18, TRUNK[:18]), (27, TRUNK[:18]), (27, TRUNK[:18])]
    report = run(engine_of, one_after_another(ask, *prompts), track_slots=1)
    assert (report.hit_tokens, report.evicted_states, report.skipped_snapshots) == (36, 0, 2)


def test_state_that_is_there_already_stays_the_callers(engine_of: EngineOf, ask: Ask, script: Script) -> None:
    """M1, E3: of two equal prompts computed at one time, the second gives its track slot back."""
    heard: list[Event] = []
    source = script([ask(0, 20, 2, tokens=TRUNK), ask(1, 20, 2, tokens=TRUNK)], chunk=15)
    sized = engine_of(source, cache="mamba", chunk_tokens=30)
    engine = Engine(sized.config, source, onlooker=lambda event, live: heard.append(event))
    report = engine.run()
    assert heard.count(Event.STATE_DUPLICATED) == heard.count(Event.DUPLICATED) == 1
    assert (report.peak_states_held, report.skipped_snapshots) == (1, 0)


def test_prompt_of_less_than_a_page_leaves_no_state(engine_of: EngineOf, ask: Ask) -> None:
    """M1: a state belongs to the end of a page."""
    report = run(engine_of, [ask(0, 3, 2)], page_size=4)
    assert (report.finished, report.peak_states_held, report.skipped_snapshots) == (1, 0, 0)


def test_request_that_leaves_gives_its_track_slot_back(engine_of: EngineOf, ask: Ask) -> None:
    """E3: it may be thrown out between taking a track slot and handing it over."""
    memory = engine_of([], cache="mamba", capacity=16, page_size=4, track_slots=1).memory
    live = LiveRequest(ask(0, 30), place=1)
    assert memory.take_row(live, memory.match_and_hold(live))
    assert memory.extend(live, 28) is None
    assert live.track_slot == 5
    memory.give_back(live)
    assert live.track_slot == 0
    assert memory.pools.kind.state_pool is not None
    assert memory.pools.kind.state_pool.available_track_slots() == 1


def test_shortage_of_slots_takes_no_second_track_slot(engine_of: EngineOf, ask: Ask) -> None:
    """X4: a request that asks again has what it was given before."""
    engine = engine_of([], cache="mamba", capacity=16, page_size=4)
    live = LiveRequest(ask(0, 30), place=1)
    assert engine.memory.take_row(live, engine.memory.match_and_hold(live))
    for _ in range(2):
        assert engine.memory.extend(live, 28) is None
    assert states_of(engine)[0].held() == 1


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
