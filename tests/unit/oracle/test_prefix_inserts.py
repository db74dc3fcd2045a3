"""Wrong inserts are refused by the law that they break; wrong arguments must be refused by the cache."""

from __future__ import annotations

from typing import Any

import pytest
from told_program import ToldProgram

from pymllm.errors import ProgramError
from pymllm.history.operations import (
    Alloc,
    Evict,
    Fault,
    FreeSWA,
    Insert,
    Inspect,
    Key,
    Lock,
    Match,
    Span,
)
from pymllm.history.outcomes import INJECTED, Effect, Failed, Inserted

# -- without a window --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "law"),
    [
        ({"prefix_len": 0}, "R3"),
        ({"prefix_len": 3}, "R3"),
        ({"adopted": ((0, 3),)}, "R4"),
        ({"adopted": ((2, 4),)}, "R4"),
        ({"adopted": ()}, "R4"),
        ({"node_len": 2}, "R3"),
        ({"effects": (Effect("free", (4, 5)),)}, "R4"),
        ({"effects": (Effect("free", (1,)),)}, "R4"),
        ({"effects": (Effect("free_swa", (1,)),)}, "R4"),
        ({"effects": (Effect("move_swa", (4,), (1,)),)}, "R4"),
        ({"effects": (Effect("callback", node=1),)}, "R5"),
        ({"result": Failed("ValueError")}, "R3"),
        ({"sizes": {"total_size": 5}}, "R7"),
    ],
)
def test_a_wrong_insert_is_refused(changes: dict[str, Any], law: str) -> None:
    """R3, R4: what was there, what is adopted, and that no incoming slot is freed."""
    told = ToldProgram()
    told.put(7, 7)
    inserted = told.put(7, 7, 8)
    assert told.law(inserted) is None
    assert told.law(inserted, **changes) == law


def test_an_insert_meets_what_was_there() -> None:
    """R3, R4: duplicates and the matched prefix are told apart."""
    told = ToldProgram(page_size=2, slots=16, swa_slots=16)
    told.put(7, 7, 8, 8)
    told.put(7, 7, 8, 8)
    given = told(Alloc(2))
    told(Insert(Key((7, 7, 9, 9)), (Span(1, 0, 2), Span(given, 0, 2))))
    told.put(7, 7, 5)
    reached = told.judged()[0].reached
    assert reached["an insert finds the whole key cached"] == 2
    assert reached["an insert brings duplicates"] == 2
    assert reached["an insert passes the matched prefix back"] == 1
    assert reached["an unaligned tail stays the caller's"] == 1
    assert reached["an insert leaves a node in its middle"] == 0  # nobody has looked at the nodes


def test_an_empty_key_is_a_no_op() -> None:
    """R3: nothing is there, nothing is adopted."""
    told = ToldProgram(page_size=2)
    inserted = told.put(7)
    told.sound()
    assert told.law(inserted, adopted=((0, 1),)) == "R4"


def bad_insert(told: ToldProgram, key: Key, spans: tuple[Span, ...] | None, **bounds: int) -> int:
    told(Alloc(8))
    return told(Insert(key, spans, **bounds))


@pytest.mark.parametrize(
    ("spans", "config"),
    [
        ((Span(1, 0, 3),), {}),
        ((Span(1, 0, 5),), {}),
        (None, {}),
        ((Span(1, 1, 5),), {"page_size": 2}),
        ((Span(1, 2, 3), Span(1, 1, 2), Span(1, 2, 4)), {"page_size": 2}),
    ],
)
def test_slots_that_do_not_fit_are_refused(spans: tuple[Span, ...] | None, config: dict[str, Any]) -> None:
    """R1: one per token, and each page of the key one page of the pool, in order."""
    told = ToldProgram(**config)
    inserted = bad_insert(told, Key((7, 7, 7, 7)), spans)
    assert told.sound().reached["a bad insert is refused"] == 1
    assert told.law(inserted, result=Inserted(0, ((0, 4),))) == "R1"
    assert told.law(inserted, effects=(Effect("free", (1,)),)) == "X1"
    assert told.law(inserted, sizes={"total_size": 4}) == "X1"


def test_token_ids_stand_in_for_slots_without_a_pool() -> None:
    """R1: only for plain tokens."""
    told = ToldProgram(pool="none")
    told(Insert(Key((7, 8))))
    match = told(Match(Key((7, 8))))
    wide = told(Insert(Key(((7, 8),))))
    assert told.law(match, slots=(8, 7)) == "E1"
    assert told.law(wide, result=Inserted(0, ((0, 1),))) == "R1"


def test_a_breach_of_the_callers_duty_has_no_meaning() -> None:
    """R1, R9: slots of nobody, of another key, or twice in one key."""
    for spans in ((Span(0, 9, 10),), (Span(1, 1, 2),), (Span(3, 0, 1), Span(3, 0, 1))):
        wrong = ToldProgram()
        wrong.put(7, 7)
        wrong(Alloc(2))
        wrong(Insert(Key((7,) * len(spans)), spans))
        with pytest.raises(ProgramError, match="slot"):
            wrong.judged()


def test_misuse_has_no_meaning_where_it_is_not_refused() -> None:
    """X1: only adapters that claim to refuse are asked to."""
    told = ToldProgram(without=("refusals",))
    bad_insert(told, Key((7,)), None)
    with pytest.raises(ProgramError, match="refuse"):
        told.judged()


# -- with a window -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bounds",
    [{"prev_prefix_len": 5}, {"prev_prefix_len": 3}, {"swa_evicted_seqlen": 6}, {"swa_evicted_seqlen": 1}],
)
def test_bounds_that_do_not_fit_are_refused(bounds: dict[str, int]) -> None:
    """S7: within the key, in whole pages, and no more than is cached."""
    told = ToldProgram("radix-window", window=2, page_size=2)
    inserted = bad_insert(told, Key((7, 7, 7, 7)), (Span(1, 0, 4),), **bounds)
    told.sound()
    assert told.law(inserted, result=Inserted(0, ((0, 4),))) == "S7"


def test_halves_must_be_as_the_insert_says() -> None:
    """S7: returned before e, and there from e on."""
    told = ToldProgram("radix-window", window=1)
    told(Alloc(3))
    there = told(Insert(Key((7, 7, 7)), (Span(1, 0, 3),), swa_evicted_seqlen=1))
    told(FreeSWA((Span(1, 2, 3),)))
    gone = told(Insert(Key((7, 7, 7)), (Span(1, 0, 3),)))
    assert told.sound().reached["halves that were not returned are refused"] == 2
    assert [told.law(number, result=Inserted(0, ((0, 3),))) for number in (there, gone)] == ["S7", "S7"]


def tombstoned(held: bool) -> ToldProgram:
    """Cache four pages in two nodes, and free the windows of the upper one."""
    return prepare(ToldProgram("radix-window", window=2, slots=16, swa_slots=16), held)


def prepare(told: ToldProgram, held: bool) -> ToldProgram:
    lower = told.put(7, 7, 8, 8)
    told(Match(Key((7, 7))))
    told(Inspect())
    told(Match(Key((7, 7, 8, 8))))
    if held:
        told(Lock(lower))
    told(Evict(0, 2))
    return told


def test_a_tombstone_is_revived_by_the_incoming_slots() -> None:
    """S7, X2: displaced slots go back in one call, and the ranges are adopted."""
    told = tombstoned(held=False)
    inserted = told.put(7, 7, 8, 8)
    assert told.sound().reached["an unlocked tombstone is revived"] == 1
    assert told.effects(inserted) == (Effect("free", (1, 2)),)
    assert told.law(inserted, adopted=()) == "S7"
    assert told.law(inserted, effects=()) == "S7"
    assert told.law(inserted, effects=(Effect("free", (1,)),)) == "S7"
    assert told.law(inserted, effects=(Effect("free", (5, 6)),)) == "R4"
    assert told.law(inserted, effects=(Effect("free", (1,)), Effect("free", (2,)))) == "X2"
    assert told.law(inserted, sizes={"swa_evictable_size": 2}) == "S6"


def test_a_held_tombstone_takes_the_incoming_halves() -> None:
    """S7: it keeps its full slots, so nothing is adopted there."""
    told = tombstoned(held=True)
    inserted = told.put(7, 7, 8, 8)
    assert told.sound().reached["a tombstone is revived under a hold"] == 1
    assert told.effects(inserted) == (Effect("move_swa", (5, 6), (1, 2)),)
    assert told.law(inserted, adopted=((0, 2),)) == "S7"
    assert told.law(inserted, effects=()) == "S7"
    assert told.law(inserted, effects=(Effect("move_swa", (5, 6), (2, 1)),)) == "S7"
    assert told.law(inserted, sizes={"swa_available_size": 9}) == "A7"
    assert told.law(told(Match(Key((7, 7, 8, 8)))), slots=(5, 6, 3, 4)) == "R2"


def test_a_page_with_its_own_slots_stays_dead() -> None:
    """S7: passing the tree's own slots back brings no window KV."""
    told = tombstoned(held=False)
    again = told(Insert(Key((7, 7, 8, 8)), (Span(1, 0, 4),)))
    assert told.sound().reached["a dead page gets its own slots back"] == 1
    assert told.law(again, adopted=((0, 2),)) == "S7"


def test_a_held_tombstone_stays_dead_before_a_bound() -> None:
    """S7: tokens before prev_prefix_len are not revived."""
    told = tombstoned(held=True)
    told.put(7, 7, 8, 8, prev_prefix_len=2)
    assert told.sound().reached["a held tombstone stays dead"] == 1


def test_a_held_tombstone_stays_dead_where_no_halves_can_move() -> None:
    """S7: only a pool with halves moves them; its full slots are the reader's."""
    told = prepare(ToldProgram("radix-window", window=2, slots=16, swa_slots=16, pool="token"), held=True)
    inserted = told.put(7, 7, 8, 8)
    assert told.sound().reached["a held tombstone stays dead"] == 1
    assert told.law(inserted, adopted=((0, 2),)) == "S7"


def test_pages_before_the_freed_halves_are_born_dead() -> None:
    """S7: they are adopted like the others."""
    told = ToldProgram("radix-window", window=1)
    told(Alloc(3))
    told(FreeSWA((Span(1, 0, 2),)))
    inserted = told(Insert(Key((7, 7, 7)), (Span(1, 0, 3),), swa_evicted_seqlen=2))
    assert told.sound().reached["new pages are born dead"] == 1
    assert told.law(inserted, adopted=((2, 3),)) == "S7"


def refused_insert() -> tuple[ToldProgram, int]:
    """Insert a key whose window is gone, below a prefix of four alive pages in two nodes."""
    told = ToldProgram("radix-window", window=2)
    told.put(7, 7, 7, 7)
    told(Match(Key((7, 7))))
    told(Inspect())
    given = told(Alloc(6))
    told(FreeSWA((Span(given, 0, 6),)))
    return told, told(Insert(Key((7, 7, 7, 7, 8, 8)), (Span(given, 0, 6),), swa_evicted_seqlen=6))


def test_an_insert_is_refused_whole() -> None:
    """S7: nothing changes, and last_node is the deepest existing one whose end is usable."""
    told, inserted = refused_insert()
    assert told.sound().reached["an insert is refused whole"] == 1
    assert told.outcome(inserted).result == Inserted(4, (), 4)
    assert told.law(inserted, adopted=((4, 6),)) == "S7"
    assert told.law(inserted, prefix_len=0) == "R3"
    assert told.law(inserted, sizes={"total_size": 6}) == "R7"
    assert [told.law(inserted, node_len=length) for length in (0, 2, 3, 4, 6)] == [
        "S7",
        "S7",
        "S7",
        None,
        "S7",
    ]


def test_what_a_refused_insert_returned_can_be_held() -> None:
    """S7, R6: where it could be told which node that was."""
    told, inserted = refused_insert()
    held = told(Lock(inserted))
    told.sound()
    assert told.law(held, result=Failed("ValueError")) == "R6"
    with pytest.raises(ProgramError, match="gave no node"):
        told.law(inserted, node_len=None)


def test_without_a_look_any_usable_end_may_be_a_node() -> None:
    """S7: the deepest existing node is known only to who was shown the nodes."""
    told, inserted = refused_insert()
    del told.steps[3]
    assert [told.law(inserted, node_len=length) for length in (0, 1, 3, 5)] == [None, None, None, "S7"]


def test_an_insert_that_finds_another_namespace_is_named_by_that() -> None:
    """K1, and not R3: the tokens that it tells are cached, and not its own's; others are nobody's."""
    told = ToldProgram(page_size=2, slots=32, swa_slots=32)
    told.put(7, 7, 8, 8, extra_key="a")
    met = told.put(7, 7, 8, 8, extra_key="b")
    told.sound()
    words = told.words(met, result=Inserted(4, (), 4))
    assert words == "K1: tokens of another namespace that an insert finds: expected none, observed 4"
    assert told.law(met, result=Inserted(2, ((2, 4),), 4)) == "K1"
    assert [told.law(met, prefix_len=length) for length in (1, 3, 6)] == ["R3", "R3", "R3"]
    told.put(7, 7, extra_key="c")
    longer = told.put(7, 7, 8, 8, extra_key="c")
    assert told.law(longer, prefix_len=4) == "K1"
    assert told.law(longer, prefix_len=0) == "R3"


def test_a_node_that_is_not_shown_is_not_compared() -> None:
    """R3: some caches have none."""
    told = ToldProgram()
    inserted = told.put(7)
    assert told.law(inserted, node_len=None) is None


# -- failing pools -----------------------------------------------------------------------------------------


def strike(held: bool, call: str) -> tuple[ToldProgram, int]:
    """Revive what was tombstoned, with a pool that refuses."""
    told = tombstoned(held)
    given = told(Alloc(4))
    told(Fault(call))
    return told, told(Insert(Key((7, 7, 8, 8)), (Span(given, 0, 4),)))


@pytest.mark.parametrize(
    ("held", "call", "goal"),
    [
        (False, "free", "the pool refuses displaced slots"),
        (True, "move_swa", "the pool refuses a revival under a hold"),
    ],
)
def test_an_insert_whose_pool_refuses_adopts_nothing(held: bool, call: str, goal: str) -> None:
    """X2: the error is raised, and everything is as it was."""
    told, inserted = strike(held, call)
    assert told.sound().reached[goal] == 1
    assert told.law(inserted, sizes={"total_size": 8}) == "X2"
    assert told.law(inserted, effects=(Effect("free", (1, 2)),)) == "X2"
    assert told.law(inserted, effects=(Effect("move_swa", (9,), (1,)),)) == "X2"
    moves = (Effect("move_swa", (5, 6), (1, 2)),)
    what = "moves before the call that failed" if held else "SWA halves that a failed insert moved"
    assert told.words(inserted, effects=moves) == f"X2: {what}: expected {{}}, observed {{5: 1, 6: 2}}"
    unharmed = tombstoned(held)
    done = unharmed.outcome(unharmed.put(7, 7, 8, 8))
    assert told.law(inserted, result=done.result, effects=done.effects, sizes=done.sizes) == "X2"


@pytest.mark.parametrize(("held", "call"), [(False, "free"), (True, "move_swa")])
def test_an_insert_that_swallows_a_refusal_is_named_by_it(held: bool, call: str) -> None:
    """X2, and not S7: the pool took nothing, whatever is told to be adopted."""
    told, inserted = strike(held, call)
    unharmed = tombstoned(held)
    done = unharmed.outcome(unharmed.put(7, 7, 8, 8))
    for adopted in ((), ((0, 2),)):
        result = Inserted(4, adopted, 4)
        assert told.law(inserted, result=result, effects=(), sizes=done.sizes) == "X2"
    other = Effect("free", (3, 4))
    assert told.law(inserted, result=Inserted(4, ((0, 4),), 4), effects=(other,), sizes=done.sizes) == "S7"


def test_without_an_order_of_calls_some_halves_may_have_moved() -> None:
    """X2: what was moved before another call failed stays moved."""
    told = ToldProgram("radix-window", ("call_order",), window=2, slots=16, swa_slots=16)
    prepare(told, held=True)
    given = told(Alloc(4))
    told(Fault("move_swa"))
    inserted = told(Insert(Key((7, 7, 8, 8)), (Span(given, 0, 4),)))
    moved = {"swa_evictable_size": 1, "swa_protected_size": 2}
    assert told.outcome(inserted).sizes["swa_evictable_size"] == 0
    assert told.law(inserted, effects=(Effect("move_swa", (5,), (1,)),), sizes=moved) is None


def test_an_insert_fails_only_in_calls_that_it_must_make() -> None:
    """R4, S7: where nothing is displaced, nothing is freed; where nothing is held, nothing is moved."""
    for call, law in (("free", "R4"), ("move_swa", "S7")):
        told = ToldProgram("radix-window", window=2)
        given = told(Alloc(1))
        told(Fault(call))
        inserted = told(Insert(Key((7,)), (Span(given, 0, 1),)))
        assert told.law(inserted, result=Failed(INJECTED), sizes=told.outcome(given).sizes) == law


@pytest.mark.parametrize(
    "bounds", [{"prev_prefix_len": 5}, {"prev_prefix_len": -1}, {"swa_evicted_seqlen": 6}]
)
def test_bounds_outside_the_key_are_refused_without_a_window_too(bounds: dict[str, int]) -> None:
    """X1: they change nothing there, and are lengths within the key all the same."""
    told = ToldProgram(page_size=2)
    inserted = bad_insert(told, Key((7, 7, 7, 7)), (Span(1, 0, 4),), **bounds)
    told.sound()
    assert told.law(inserted, result=Inserted(0, ((0, 4),))) == "X1"


def test_bounds_within_the_key_change_nothing_without_a_window() -> None:
    """R3: neither whole pages nor what is cached matter."""
    told = ToldProgram(page_size=2)
    told.put(7, 7, 7, 7, prev_prefix_len=3, swa_evicted_seqlen=1)
    told.sound()


def test_bounds_are_nothing_to_a_cache_with_states() -> None:
    """M1: they are options of another cache, which it ignores."""
    told = ToldProgram("mamba", page_size=2, pool="token", track_slots=2)
    told.put(7, 7, 7, 7, prev_prefix_len=9, swa_evicted_seqlen=-1)
    told.sound()
