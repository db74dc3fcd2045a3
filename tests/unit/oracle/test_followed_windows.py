"""Windows that are followed: any choice of the cache's, held to S1, S2, S3 and S5.

Our own tree plays, as if it claimed nothing of its windows; what it did is changed afterwards.
"""

from __future__ import annotations

from typing import Any

import pytest
from told_program import ToldProgram

from pymllm.errors import ProgramError
from pymllm.history.operations import (
    Alloc,
    Evict,
    FreeSWA,
    Insert,
    Inspect,
    Key,
    Lock,
    Match,
    ReadHalves,
    Span,
    Unlock,
)
from pymllm.history.outcomes import Effect, Evicted, Inserted
from pymllm.oracle.judge import judge_steps, make_judge

RULES = ("exact_windows", "exact_lru", "faults", "call_order", "hold_tokens", "callbacks")


def followed(**config: Any) -> ToldProgram:
    """Cache (7, 7, 8, 8) in slots 1 to 4, of which the first two are older, under a window of two."""
    config = {"window": 2, "slots": 24, "swa_slots": 24, **config}
    told = ToldProgram("radix-window", without=RULES, **config)
    told.put(7, 7, 8, 8)
    told(Match(Key((7, 7))))
    told(Match(Key((7, 7, 8, 8))))
    return told


def halved(*slots: int) -> Effect:
    return Effect("free_swa", slots)


def freed(*slots: int) -> Effect:
    return Effect("free", slots)


# -- matches and evictions ---------------------------------------------------------------------------------


def test_a_match_ends_where_halves_allow_it() -> None:
    """S1: exactly there, whatever has let them go."""
    told = followed()
    told(Evict(0, 2))
    short, whole = told(Match(Key((7, 7)))), told(Match(Key((7, 7, 8, 8))))
    assert {"S1", "S2", "S3"} <= set(told.sound().exercised)
    assert told.law(short, slots=(1, 2), prefix_len=2, node_len=2) == "S1"
    assert told.law(whole, slots=(), prefix_len=0, node_len=0) == "R2"


@pytest.mark.parametrize(
    ("effects", "swa", "law"),
    [
        ((halved(1, 2),), 2, None),
        ((halved(2, 3),), 2, None),
        ((halved(4),), 1, "S3"),
        ((halved(1, 2, 3, 4),), 4, None),
        ((halved(1, 2),), 3, "S3"),
        ((halved(1, 1),), 1, "A7"),
        ((), 0, "S3"),
    ],
)
def test_an_eviction_takes_the_windows_that_it_likes(
    effects: tuple[Effect, ...], swa: int, law: str | None
) -> None:
    """S2, S3: enough of them, each once and as it says."""
    told = followed()
    evicted = told(Evict(0, 2))
    live = {"swa_evictable_size": 4 - swa, "swa_available_size": 20 + swa, "available_size": 20}
    assert told.law(evicted, effects=effects, result=Evicted(0, swa), sizes=live) == law


def test_enough_is_what_the_cache_has_told() -> None:
    """S3: as far as its size goes; what may go and what may not is all that lives."""
    told = followed()
    held = told(Lock(told(Match(Key((7, 7, 8, 8))))))
    evicted = told(Evict(0, 9))
    assert told.sound().exercised["S3"] == 2
    assert told.law(evicted, sizes={"swa_evictable_size": 1}) == "S3"
    assert "together: expected 2, observed 3" in told.words(evicted, sizes={"swa_evictable_size": 1})
    modest = told.step(held)
    assert modest.outcome is not None
    modest.outcome.sizes.update(swa_evictable_size=1, swa_protected_size=3)
    assert told.law(evicted, effects=(halved(1),), result=Evicted(0, 1), sizes=gone(1)) is None
    assert told.law(evicted, effects=(), result=Evicted(0, 0), sizes=gone(0)) == "S3"


def gone(windows: int) -> dict[str, int]:
    """Return sizes after so many windows of one token have gone, of four of which two are held."""
    return {"swa_evictable_size": 2 - windows, "swa_available_size": 20 + windows}


def test_what_is_not_told_is_not_tested() -> None:
    """S3: who tells no sizes of windows only has to tell right what went."""
    told = followed()
    evicted = told(Evict(0, 2))
    for step in told.steps:
        assert step.outcome is not None
        for name in ("swa_evictable_size", "swa_protected_size"):
            del step.outcome.sizes[name]
    assert told.law(evicted, effects=(), result=Evicted(0, 0), sizes={"swa_available_size": 20}) is None
    assert told.sound().exercised["S3"] == 1


@pytest.mark.parametrize(
    ("asked", "law"), [(Evict(0, 1), None), (Evict(1), "R5"), (Evict(0, 0), "S3")], ids=str
)
def test_pages_go_as_far_as_tokens_are_asked_for(asked: Evict, law: str | None) -> None:
    """R5, S3: where windows are asked for, any leaves may go with them."""
    told = followed()
    told.put(9)
    evicted = told(asked)
    told.sound()
    sizes = told.outcome(evicted).sizes
    empty = {name: 24 if name.endswith("available_size") else 0 for name in sizes}
    assert told.law(evicted, effects=(freed(1, 2, 3, 4, 5),), result=Evicted(5, 5), sizes=empty) == law


def test_a_held_window_keeps_its_halves() -> None:
    """S5: until the release, and what lies before it may go."""
    told = followed()
    held = told(Lock(told(Match(Key((7, 7, 8, 8))))))
    evicted = told(Evict(0, 4))
    read = told(ReadHalves((Span(1, 0, 4),)))
    evidence = told.sound()
    assert evidence.exercised["S5"] == 2
    assert told.law(evicted, effects=(halved(1, 2, 3),), result=Evicted(0, 3)) == "S5"
    assert told.law(read, swa_slots=(0, 0, 0, 4)) == "S5"
    assert told.law(read, swa_slots=(1, 0, 3, 4)) == "S2"
    told(Unlock(held))
    told(Evict(0, 1))
    told.sound()


def test_dead_leaves_and_window_locks_are_nobodys_business() -> None:
    """S4, S6: of who does not claim our rules; what lives is shown (S2)."""
    told = followed()
    told(Lock(told(Match(Key((7, 7, 8, 8))))))
    look = told(Inspect())
    told.sound()
    result: Any = told.outcome(look).result
    first, *rest = result.nodes
    assert told.law(look, nodes=(changed(first, swa_lock_ref=5), *rest)) is None
    assert told.law(look, nodes=(changed(first, is_alive=False), *rest)) == "S2"


def changed(node: Any, **fields: Any) -> Any:
    """Return a node that is shown otherwise."""
    return type(node)(**{**{name: getattr(node, name) for name in node.__struct_fields__}, **fields})


# -- inserts -----------------------------------------------------------------------------------------------


def revived(**bounds: int) -> tuple[ToldProgram, int]:
    """Insert (7, 7, 8, 8) again in slots 5 to 8, where the first two windows have gone."""
    told = followed()
    told(Evict(0, 2))
    return told, told.put(7, 7, 8, 8, **bounds)


SIZES = {"full_available_size": 16, "swa_available_size": 16, "available_size": 16}


@pytest.mark.parametrize(
    ("adopted", "effects", "free", "law"),
    [
        (((0, 2),), (freed(1, 2),), (18, 18), None),
        (((0, 1),), (freed(1),), (17, 18), None),
        ((), (), (16, 18), None),
        ((), (freed(5, 6, 7, 8),), (20, 22), None),
        (((0, 2),), (freed(1, 2, 7, 8),), (20, 20), None),
        (((0, 2),), (), (16, 18), "R4"),
        (((0, 4),), (freed(1, 2),), (18, 18), "R4"),
        (((0, 2),), (freed(1, 2, 5),), (19, 19), "R4"),
        ((), (freed(5, 5),), (17, 18), "R4"),
        ((), (freed(3),), (17, 18), "R4"),
        (((0, 2),), (freed(1, 2), Effect("move_swa", (7,), (3,))), (18, 18), "R4"),
    ],
)
def test_a_dead_page_may_take_what_comes_or_not(
    adopted: Any, effects: tuple[Effect, ...], free: tuple[int, int], law: str | None
) -> None:
    """R4: its own slots go back, and duplicates may; nothing else does."""
    told, inserted = revived()
    told.sound()
    sizes = {"full_available_size": free[0], "swa_available_size": free[1], "available_size": min(free)}
    assert told.law(inserted, adopted=adopted, effects=effects, sizes=sizes) == law


def test_what_is_revived_can_be_matched() -> None:
    """S1: and what is not cannot."""
    told, inserted = revived()
    told(Match(Key((7, 7))))
    told.sound()
    outcome = told.outcome(inserted)
    told.steps = told.steps[:-1]
    told.steps[-1] = type(told.steps[-1])(
        inserted,
        told.step(inserted).operation,
        type(outcome)(Inserted(4, (), 4), (), {**outcome.sizes, **SIZES, "swa_available_size": 18}),
    )
    match = told(Match(Key((7, 7))))
    assert told.judged()[1] == "S1"
    assert match == inserted + 1


def test_what_was_matched_comes_back() -> None:
    """R4: it is the cache's, dead or alive, and stays where it is."""
    told = followed()
    told(Evict(0, 2))
    fresh = told(Alloc(1))
    inserted = told(Insert(Key((7, 7, 8, 8, 9)), (Span(1, 0, 4), Span(fresh, 0, 1)), prev_prefix_len=4))
    assert told.sound().reached["an insert passes the matched prefix back"] == 1
    assert told.law(inserted, adopted=((0, 1), (4, 5))) == "R4"


def test_a_held_tombstone_takes_halves_only() -> None:
    """R4: the slots that came stay the caller's, or go back without them."""
    told = followed()
    told(Evict(0, 2))
    told(Lock(told(Match(Key((7, 7, 8, 8))))))
    inserted = told.put(7, 7, 8, 8)
    told(Match(Key((7, 7))))
    told.sound()
    (move,) = told.effects(inserted)
    assert move == Effect("move_swa", (5, 6), (1, 2))
    sizes = {"full_available_size": 18, "swa_available_size": 18}
    told.steps.pop()
    assert told.law(inserted, effects=(move, freed(5, 6)), sizes={**sizes, "available_size": 18}) is None
    assert told.law(inserted, adopted=((0, 2),), effects=(freed(1, 2),)) == "R4"
    part = Effect("move_swa", (5, 6), (2, 1))
    assert told.law(inserted, effects=(part,)) == "R4"


@pytest.mark.parametrize(
    ("effects", "law"),
    [
        ((halved(5, 6),), None),
        ((halved(1, 5),), None),
        ((halved(3),), "S5"),
        ((halved(5, 5),), "S2"),
        ((halved(9),), "S2"),
    ],
)
def test_an_insert_may_let_go_of_windows(effects: tuple[Effect, ...], law: str | None) -> None:
    """S2, S5: of its own, once, and of none that is held."""
    told = followed()
    told(Lock(told(Match(Key((7, 7, 8, 8))))))
    inserted = told.put(9, 9, 9)
    told(Alloc(1))
    gone = sum(len(effect.slots) for effect in effects)
    sizes = {"swa_available_size": 17 + gone, "available_size": 17}
    told.steps.pop()
    assert told.law(inserted, effects=effects, sizes=sizes) == law
    if law is None:
        assert told.judged()[0].exercised["S5"] == 0


def test_an_insert_that_lets_go_is_followed() -> None:
    """S1, S5: what it let go of cannot be matched; a held window is a test."""
    told = followed()
    told(Lock(told(Match(Key((7, 7, 8, 8))))))
    inserted = told.put(9)
    step, outcome = told.step(inserted), told.outcome(inserted)
    sizes = {**outcome.sizes, "swa_available_size": 20}
    told.steps[-1] = type(step)(inserted, step.operation, type(outcome)(outcome.result, (halved(5),), sizes))
    evidence = told.sound()
    assert evidence.exercised["S5"] == 1
    match = told(Match(Key((9,))))
    assert told.judged()[1] == "S1"
    assert match == inserted + 1


def test_a_key_that_cannot_be_used_is_kept_or_refused_whole() -> None:
    """R3, R4: as the cache likes, but not in part."""
    told = followed()
    told(Alloc(2))
    step = len(told.steps)
    told(FreeSWA((Span(step, 0, 2),)))
    inserted = told(Insert(Key((9, 9)), (Span(step, 0, 2),), swa_evicted_seqlen=2))
    assert told.outcome(inserted).result == Inserted(0, (), 0)
    told.sound()
    assert told.law(inserted, adopted=((0, 2),), node_len=2, sizes=kept(2)) is None
    assert told.law(inserted, adopted=((0, 1),), node_len=1, sizes=kept(1)) == "R4"


def kept(tokens: int) -> dict[str, int]:
    """Return the sizes of four tokens and so many more."""
    return {"evictable_size": 4 + tokens, "total_size": 4 + tokens}


# -- what has no meaning -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spans", "bounds", "says"),
    [
        ((Span(5, 0, 2),), {"prev_prefix_len": 1}, "slot 5 is the caller's, and prev_prefix_len is 1"),
        ((Span(1, 0, 1), Span(5, 0, 1)), {}, "slot 1 is the cache's, and prev_prefix_len is 0"),
        ((Span(5, 0, 2),), {"swa_evicted_seqlen": 1}, "slot 5 has its SWA half, and swa_evicted_seqlen is 1"),
        ((Span(6, 0, 2),), {}, "slot 7 lacks its SWA half, and swa_evicted_seqlen is 0"),
        ((Span(5, 0, 2),), {"prev_prefix_len": 3}, "that is undefined where windows are followed"),
    ],
)
def test_a_caller_says_what_is_so(spans: tuple[Span, ...], bounds: dict[str, int], says: str) -> None:
    """Its duties are judged nowhere: such a program has no meaning."""
    told = followed()
    told(Alloc(2))
    told(Alloc(2))
    told(FreeSWA((Span(6, 0, 2),)))
    told(Insert(Key((7, 7)), spans, **bounds))
    with pytest.raises(ProgramError, match=says):
        judge_steps(told.header, told.steps)


def test_a_dead_window_is_not_held() -> None:
    """S5: who claims our rules refuses it, of others nobody asks it."""
    told = followed()
    told(Evict(0, 2))
    told(Lock(3))
    with pytest.raises(ProgramError, match="a hold on a dead window"):
        judge_steps(told.header, told.steps)


@pytest.mark.parametrize(
    ("adapter", "config", "without"),
    [
        ("radix-window", {"pool": "token"}, RULES),
        ("radix-window", {}, ("exact_windows", "faults")),
        ("radix-window", {}, ("exact_windows", "exact_lru")),
    ],
)
def test_what_cannot_be_followed_is_said(
    adapter: str, config: dict[str, Any], without: tuple[str, ...]
) -> None:
    """Without halves, or with an order or faults, which only rules could tell."""
    told = ToldProgram(adapter, window=2, without=without, **config)
    with pytest.raises(ProgramError, match="a window without exact_windows"):
        make_judge(told.header)
