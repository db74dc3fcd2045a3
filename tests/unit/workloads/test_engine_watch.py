"""The watch passes on sound engines, counts what it tested, and tells the onlooker of every event."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pymllm.errors import InvariantViolation
from pymllm.workloads.engine import Engine, EngineConfig
from pymllm.workloads.engine_watch import EngineWatch, Event
from pymllm.workloads.live_request import LiveRequest
from pymllm.workloads.request import Request
from pymllm.workloads.source import Stage, TraceSource

Ask = Callable[..., Request]
CHECKED = {"capacity": 64, "max_running": 3, "chunk_tokens": 16, "content_check": True, "check_every": 1}


class Diary:
    """Writes down who was told what, and what could still be seen then."""

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


def test_shortage_is_told_of(ask: Ask, script: Callable[..., TraceSource]) -> None:
    """E3: who cannot be admitted, and who must yield."""
    engine, diary = watched(script([ask(n, 12, 30) for n in range(3)]))
    engine.run()
    assert diary.entries.count((Event.RETRACTED, 2)) > 0
    assert diary.rows[Event.RETRACTED, 2] > 0
    assert diary.rows[Event.REFUSED, 2] == 0


def test_duplicates_are_told_of(ask: Ask, script: Callable[..., TraceSource]) -> None:
    """R4: two prompts that are computed side by side; the second is ahead by what it finds of the first."""
    prompt = range(100, 120)
    engine, diary = watched(script([ask(n, 22 + n, 9, tokens=prompt) for n in range(2)], chunk=5))
    engine.run()
    assert (Event.DUPLICATED, 0) in diary.entries


def test_insert_that_is_refused_whole_is_told_of(ask: Ask) -> None:
    """S7: the cache has nothing of what was computed, and the request goes on with its own."""
    engine, diary = watched(TraceSource([ask(0, 30, 2), ask(1, 12, 2)]), cache="chunk")
    engine.run()
    assert (Event.UNCACHED, 0) in diary.entries


def test_tests_of_laws_are_counted(ask: Ask) -> None:
    """E1-E5: a run that shares, decodes and empties its cache has tested every law of the engine."""
    prompt = range(100, 120)
    engine, _ = watched(TraceSource([ask(n, 22 + n, 20, tokens=prompt) for n in range(6)]))
    engine.run()
    assert set(engine.watch.tested) == {"E1", "E2", "E3", "E4", "E5"}
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


def test_unwatched_engine_tests_nothing_between_its_steps(ask: Ask) -> None:
    """E2: checks that are off are not counted as made."""
    engine = Engine(EngineConfig(capacity=32), TraceSource([ask(0, 9, 5)]))
    while engine.step():
        pass
    assert engine.watch.forward is None
    assert +engine.watch.tested == {"E4": 1}


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


def test_skipped_snapshot_is_told_of(ask: Ask) -> None:
    """B77: no track slot is no reason to stop."""
    engine, diary = watched(TraceSource([ask(0, 20, 4)]), cache="mamba", track_slots=0)
    engine.run()
    assert diary.entries == [(Event.ADMITTED, 0), (Event.SNAPSHOT_SKIPPED, 0), (Event.FINISHED, 0)]


def test_state_that_changes_between_two_iterations_is_noticed(ask: Ask) -> None:
    """E5: what nobody wrote is looked for after every iteration, free rows and track slots included."""
    engine, _ = watched(TraceSource([ask(0, 20, 9)]), cache="mamba")
    engine.step()
    assert engine.memory.pools.kind.state_pool is not None
    engine.memory.pools.kind.state_pool.recurrent_state[0, -1] = 1
    with pytest.raises(InvariantViolation, match="E5: recurrent_state of row 15"):
        engine.step()


def test_a_request_without_work_is_not_admitted(
    engine_of: Callable[..., Engine], ask: Callable[..., Request]
) -> None:
    """E4: a full hit leaves a token to compute."""
    watch = engine_of([ask(0, 8)]).watch
    live = LiveRequest(ask(0, 8), place=1)
    live.length = 7
    watch.check_work(live)
    live.length = 8
    with pytest.raises(InvariantViolation, match="E4: request 0: 8 tokens are a hit"):
        watch.check_work(live)
