"""Wrong evictions are refused by the law that they break."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from told_program import ToldProgram

from pymllm.errors import ProgramError
from pymllm.history.files import Step
from pymllm.history.operations import Evict, Fault, Inspect, Key, Lock, Match
from pymllm.history.outcomes import INJECTED, Effect, Evicted, Failed, Outcome


def freed(*slots: int) -> Effect:
    return Effect("free", slots)


def two_leaves(adapter: str = "radix", without: tuple[str, ...] = (), **config: Any) -> ToldProgram:
    """Cache (7, 7, 8) in slots 1, 2, 3 and then (7, 7, 9), whose last page is slot 6, in three nodes."""
    told = ToldProgram(adapter, without, **config)
    told.put(7, 7, 8)
    told.put(7, 7, 9)
    told(Inspect())
    return told


@pytest.mark.parametrize(
    ("changes", "law"),
    [
        ({"full": 2}, "R5"),
        ({"full": 0}, "R5"),
        ({"swa": 1}, "R5"),
        ({"slots": (6,)}, "R8"),
        ({"slots": (3, 6), "full": 2}, "R5"),
        ({"slots": (2,)}, "R9"),
        ({"slots": (4,)}, "R4"),
        ({"slots": (9,)}, "A2"),
        ({"slots": (3, 3)}, "A2"),
        ({"slots": (), "full": 0}, "R5"),
        ({"more": (Effect("free_swa", (3,)),)}, "R5"),
        ({"more": (Effect("move_swa", (4,), (1,)),)}, "R4"),
        ({"result": Failed("KeyError")}, "R5"),
        ({"sizes": {"total_size": 4}}, "R7"),
        ({"sizes": {"available_size": 5}}, "A2"),
    ],
)
def test_a_wrong_eviction_is_refused(changes: dict[str, Any], law: str) -> None:
    """R4, R5, R8, R9: the least recent leaf, enough, no more, and no page above another."""
    told = two_leaves()
    evicted = told(Evict(1))
    told.sound()
    removal, callback = told.effects(evicted)
    changes = dict(changes)
    if "slots" in changes:
        slots = changes.pop("slots")
        changes["effects"] = (*([freed(*slots)] if slots else []), *([callback] if slots else []))
    if "more" in changes:
        changes["effects"] = (removal, *changes.pop("more"), callback)
    assert told.law(evicted, **changes) == law


def test_a_refusal_says_what_was_looked_at() -> None:
    """R5, S3: and what there should have been, with and without an order."""
    told = two_leaves()
    evicted = told(Evict(1))
    assert told.words(evicted, full=2) == "R5: tokens evicted: expected 1, observed 2"
    told = unordered()
    evicted = told(Evict(1))
    callback = told.effects(evicted)[1]
    said = told.words(evicted, effects=(freed(3, 6), callback), full=2)
    assert said.startswith("R5: pages evicted: expected none but what was needed, observed ")


def test_windows_that_went_are_evidence() -> None:
    """S3: an eviction of windows counts once more than one of leaves."""
    told = windowed()
    told(Evict(0, 2))
    windows = told.judged()[0].exercised["S3"]
    told = windowed()
    told(Evict(2, 0))
    # Without windows it is not tested that just the right ones have gone, and that they suffice.
    assert windows == told.judged()[0].exercised["S3"] + 1


def test_a_page_goes_whole() -> None:
    """R5: all of its slots."""
    told = ToldProgram(page_size=2)
    told.put(7, 7)
    evicted = told(Evict(2))
    _, callback = told.effects(evicted)
    assert told.law(evicted, effects=(freed(2), callback), full=1) == "R5"


def test_a_locked_page_stays() -> None:
    """R6: whoever is the least recent."""
    told = ToldProgram()
    told(Lock(told.put(7)))
    told.put(8)
    evicted = told(Evict(2))
    evidence = told.sound()
    assert evidence.exercised["R6"] == 2
    assert evidence.reached["an eviction spares what is held"] == 1
    removal, callback = told.effects(evicted)
    assert told.law(evicted, effects=(freed(1, 2), callback), full=2) == "R6"
    nothing = told(Evict(1))
    assert told.judged()[0].reached["everything is locked and an eviction is asked for"] == 1
    assert told.law(nothing, full=1) == "R5"
    assert removal == freed(2)


def test_parents_follow_their_children() -> None:
    """R5: they become leaves."""
    told = two_leaves()
    evicted = told(Evict(3))
    evidence = told.sound()
    assert evidence.reached["an eviction takes a parent after its last child"] == 1
    assert evidence.reached["an eviction takes more than was asked for"] == 1
    assert told.law(evicted, effects=(freed(3, 6),), full=2) == "R5"


def test_who_was_shown_the_nodes_knows_which_are_called_back() -> None:
    """R5, X2, X3: each removed node once, in order of removal, under an id that was never used."""
    told = two_leaves()
    evicted = told(Evict(2))
    removal, one, two = told.effects(evicted)
    told.sound()
    assert told.law(evicted, effects=(removal, one)) == "R5"
    assert told.law(evicted, effects=(removal, one, two, two)) == "R5"
    assert told.law(evicted, effects=(removal, two, one)) == "X2"
    assert told.law(evicted, effects=(one, removal, two)) == "X2"
    assert told.law(evicted, effects=(freed(3), freed(6), one, two)) == "X2"


def test_who_gives_back_and_calls_back_in_one_wrong_order_has_chosen_in_it() -> None:
    """R8, R11: the victims went in a wrong order; X2 where the callbacks alone are out of it."""
    for config, without, law in (({}, (), "R8"), ({"policy": "fifo"}, ("exact_lru",), "R11")):
        told = two_leaves(adapter="radix-policy" if config else "radix", without=without, **config)
        evicted = told(Evict(2))
        told.sound()
        _, one, two = told.effects(evicted)
        assert told.law(evicted, effects=(freed(6, 3), two, one)) == law
        assert told.law(evicted, effects=(freed(3, 6), two, one)) == "X2"


# -- windows -----------------------------------------------------------------------------------------------


def windowed(**config: Any) -> ToldProgram:
    """Cache (7, 7, 8, 8) in slots 1 to 4 and two nodes, alive and equally old, under a window of two."""
    told = ToldProgram("radix-window", **{"window": 2, "slots": 24, "swa_slots": 24, **config})
    told.put(7, 7, 8, 8)
    told(Match(Key((7, 7))))
    told(Match(Key((7, 7, 8, 8))))
    told(Inspect())
    return told


def halved(*slots: int) -> Effect:
    return Effect("free_swa", slots)


@pytest.mark.parametrize(
    ("changes", "law"),
    [
        ({"swa": 1}, "S3"),
        ({"swa": 0}, "S3"),
        ({"effects": ()}, "S3"),
        ({"effects": (), "swa": 0}, "S3"),
        ({"effects": (halved(1),), "swa": 1}, "S3"),
        ({"effects": (halved(1, 2, 3),), "swa": 3}, "S3"),
        ({"effects": (halved(2, 3),)}, "R8"),
        ({"effects": (halved(1, 2, 2),)}, "A7"),
        ({"effects": (halved(1, 2, 24),)}, "A7"),
        ({"effects": (halved(1, 2, 3, 4),), "swa": 4}, "S4"),
        ({"sizes": {"swa_evictable_size": 4}}, "S6"),
        ({"sizes": {"swa_available_size": 20}}, "A7"),
    ],
)
def test_a_wrong_window_eviction_is_refused(changes: dict[str, Any], law: str) -> None:
    """S2, S3, S4, R8: the least recent window, whole, and the full slots stay."""
    told = windowed()
    evicted = told(Evict(0, 2))
    evidence, accused = told.judged()
    assert accused is None
    assert told.effects(evicted) == (halved(1, 2),)
    assert {"S2", "S3"} <= set(evidence.exercised)
    assert told.law(evicted, **changes) == law


def test_a_half_of_the_callers_stays() -> None:
    """R4: the cache frees no slot that it does not own."""
    told = windowed()
    told.put(7, 7, 8, 8)
    evicted = told(Evict(0, 2))
    assert told.law(evicted, effects=(halved(1, 2, 5),)) == "R4"


def test_a_window_is_freed_in_whole_pages() -> None:
    """S2: all halves of a page."""
    told = windowed(page_size=2)
    evicted = told(Evict(0, 2))
    assert told.law(evicted, effects=(halved(2),)) == "S2"


def test_a_half_is_freed_once() -> None:
    """A7: a tombstone has none left."""
    told = windowed()
    told(Evict(0, 2))
    told.put(9, 9)
    evicted = told(Evict(0, 2))
    removal = told.effects(evicted)
    assert told.law(evicted, effects=(halved(1), *removal)) == "A7"


def test_a_window_under_a_hold_stays() -> None:
    """S6: but not what lies before it on the held path."""
    told = windowed()
    told(Lock(2))
    evicted = told(Evict(0, 4))
    evidence = told.sound()
    assert evidence.reached["a locked page is tombstoned"] == 1
    assert evidence.exercised["S6"]
    assert told.law(evicted, effects=(halved(1, 2, 3),), swa=3) == "S6"


def test_a_tombstone_goes_with_its_last_child() -> None:
    """S4: and is counted."""
    told = windowed()
    told(Evict(0, 2))
    evicted = told(Evict(2))
    evidence = told.sound()
    assert evidence.reached["a tombstone goes with its last child"] == 1
    assert evidence.exercised["S4"] >= 1
    told(Inspect())
    callbacks = told.effects(evicted)[1:]
    assert told.law(evicted, effects=(freed(3, 4), callbacks[0]), full=2) == "S4"


def test_phase_2_may_remove_a_leaf() -> None:
    """S3: with what is dead above it."""
    told = windowed()
    evicted = told(Evict(0, 3))
    assert told.sound().reached["phase 2 removes a leaf"] == 1
    assert told.outcome(evicted).result == Evicted(4, 4)
    _, one, two = told.effects(evicted)
    assert told.law(evicted, effects=(freed(1, 2, 3, 4), one, two)) is None
    more = windowed()
    more.put(9)
    evicted = more(Evict(0, 3))
    effects = (freed(1, 2, 3, 4, 5), *more.effects(evicted)[1:])
    assert more.law(evicted, effects=effects, full=5, swa=5) == "S3"


@pytest.mark.parametrize("pool", ["none", "token"])
def test_windows_without_halves_are_told_by_counts(pool: str) -> None:
    """S2, S3: a pool without free_swa gets no call at all."""
    told = windowed(pool=pool)
    evicted = told(Evict(0, 2))
    removed = told(Evict(1))
    evidence = told.sound()
    assert told.effects(evicted) == ()
    assert evidence.reached["a window is tombstoned"] == 1
    assert [told.law(evicted, swa=count) for count in (0, 1, 3)] == ["S3", "S3", "S3"]
    assert [told.law(removed, full=count) for count in (0, 1, 5)] == ["R5", "R5", "R5"]
    if pool == "none":  # else the pool has shown what went
        assert told.law(removed, full=2) == "S4"
        assert told.law(removed, full=3) == "R5"
    assert told.law(removed, swa=0) == "S3"
    if pool == "none":
        assert told.law(evicted, full=4, swa=4) == "S3"


def test_a_leaf_that_loses_its_window_and_stays_is_told_by_counts() -> None:
    """S4, S3: what the tokens asked for is right, and what the windows asked for is not."""
    for amounts, full in (((0, 3), 0), ((1, 3), 2)):
        told = windowed(pool="none")
        told.put(9)
        evicted = told(Evict(*amounts))
        told.sound()
        assert told.outcome(evicted).result == Evicted(4, 4)
        assert told.law(evicted, full=full) == "S4"
        assert told.law(evicted, full=full, swa=5) == "S3"
        assert told.law(evicted, full=5, swa=5) == ("R5" if full else "S3")


# -- failing calls -----------------------------------------------------------------------------------------


def struck(call: str, *amounts: int, **config: Any) -> tuple[ToldProgram, int]:
    """Let a call of an eviction fail."""
    told = windowed(**config)
    told.put(9)
    told(Fault(call))
    return told, told(Evict(*amounts))


@pytest.mark.parametrize(("call", "amounts"), [("free", (3, 0)), ("free", (1, 3)), ("free_swa", (0, 1))])
def test_what_a_pool_did_not_take_is_still_there(call: str, amounts: tuple[int, int]) -> None:
    """X2: and what it took is gone."""
    told, evicted = struck(call, *amounts)
    evidence = told.sound()
    assert evidence.reached["the pool refuses an eviction"] == 1
    assert evidence.reached["the pool refuses the windows of an eviction"] == (call == "free_swa")
    assert evidence.reached["the pool takes the windows of an eviction and refuses the rest"] == 0
    assert evidence.exercised["X2"]
    size = told.outcome(evicted).sizes
    assert told.law(evicted, sizes={"total_size": size["total_size"] - 1}) == "X2"
    assert told.law(evicted, effects=(*told.effects(evicted), Effect("callback", node=1))) == "X2"
    assert told.law(evicted, effects=(*told.effects(evicted), freed(3, 4))) == "X2"


def test_windows_that_went_before_a_call_failed_are_noticed() -> None:
    """X2: the leaf is still there, the tombstones are made."""
    told = windowed()
    told.put(9)
    told(Match(Key((7, 7, 8, 8))))
    told(Fault("free"))
    told(Evict(1, 3))
    evidence = told.sound()
    assert evidence.reached["the pool takes the windows of an eviction and refuses the rest"] == 1
    assert evidence.reached["the pool refuses the windows of an eviction"] == 0


def test_a_refused_call_is_raised() -> None:
    """X2: an eviction that goes on as if nothing had happened is refused."""
    for call, amounts in (("free", (2, 0)), ("free_swa", (0, 1)), ("callback", (2, 0))):
        told, evicted = struck(call, *amounts)
        good = windowed()
        good.put(9)
        done = good(Evict(*amounts))
        assert (
            told.law(
                evicted,
                result=good.outcome(done).result,
                effects=good.effects(done),
                sizes=good.outcome(done).sizes,
            )
            == "X2"
        )


@pytest.mark.parametrize(
    ("call", "amounts", "results"),
    [
        ("free", (2, 0), (Evicted(0), Evicted(2, 2), Evicted(4, 4))),
        ("free_swa", (0, 1), (Evicted(0), Evicted(0, 2))),
    ],
)
def test_a_refused_call_that_is_swallowed_is_named_before_its_consequences(
    call: str, amounts: tuple[int, int], results: tuple[Evicted, ...]
) -> None:
    """X2, and not R5 or S3: the pool took nothing, whatever is told to have gone."""
    told, evicted = struck(call, *amounts)
    before = told.outcome(evicted - 1).sizes
    for result in results:
        assert told.law(evicted, result=result, effects=(), sizes=before) == "X2"
    words = told.words(evicted, result=Evicted(0), effects=(), sizes=before)
    assert words == f"X2: what a failing call raises: expected {INJECTED}, observed no error"


def test_the_first_call_of_a_fault_that_is_swallowed_is_found_in_what_follows() -> None:
    """X2: whoever frees node by node has lost one of them."""
    told = two_leaves()
    told(Fault("free"))
    evicted = told(Evict(2))
    assert told.law(evicted, result=Evicted(2), effects=(freed(6),)) == "X2"
    told.steps[-2] = dataclasses.replace(told.steps[-2], operation=Fault("free", 2))
    assert told.law(evicted, result=Evicted(2), effects=(freed(3),)) == "X2"


def test_what_a_swallowed_refusal_does_not_explain_breaks_its_own_law() -> None:
    """R5, R6, R8, S3: another call was to fail, or a later one, or none had to be made, or enough went."""
    told = two_leaves()
    told(Fault("free", 2))
    evicted = told(Evict(1))
    assert told.law(evicted, result=Evicted(1), effects=()) == "R5"
    told.steps[-2] = dataclasses.replace(told.steps[-2], operation=Fault("callback", 3))
    assert told.law(evicted, result=Evicted(0), effects=()) == "R5"
    told.steps[-2] = dataclasses.replace(told.steps[-2], operation=Fault("free"))
    assert told.law(evicted, result=Evicted(1), effects=(freed(6),)) == "R8"
    told = two_leaves()
    told(Fault("free"))
    assert told.law(told(Evict(0)), result=Evicted(1)) == "R5"
    told, evicted = struck("free_swa", 0, 1)
    assert told.law(evicted, result=Evicted(0, 3), effects=(halved(1, 2, 3),)) == "S3"
    told = ToldProgram()
    told(Lock(told.put(7)))
    told.put(8)
    told(Fault("free"))
    assert told.law(told(Evict(2)), result=Evicted(1), effects=(freed(1),)) == "R6"


def test_a_dead_leaf_that_a_swallowed_refusal_left_is_named_by_its_cause() -> None:
    """X2, and not S4: a leaf went, and the call for the tombstone above it was refused."""
    told = windowed()
    told(Evict(0, 1))
    told(Fault("free", 2))
    evicted = told(Evict(4))
    assert told.law(evicted, result=Evicted(4, 2), effects=(freed(3, 4),)) == "X2"


def test_an_eviction_fails_only_in_calls_that_it_must_make() -> None:
    """X2: where nothing is tombstoned, no halves are freed."""
    told = two_leaves(adapter="radix-window", window=2)
    told(Fault("free_swa"))
    evicted = told(Evict(1))
    before = told.outcome(evicted - 2).sizes
    assert told.law(evicted, result=Failed(INJECTED), effects=(), sizes=before) == "X2"


@pytest.mark.parametrize("is_first", [True, False])
def test_tombstoning_may_come_before_or_after_a_refused_free(is_first: bool) -> None:
    """X2: where no pool call tells, the sizes do."""
    told, evicted = struck("free", 1, 3, pool="token")
    told.sound()
    before = told.outcome(evicted - 1).sizes
    seen = told.outcome(evicted).sizes
    assert told.law(evicted, sizes=seen if is_first else before) is None
    odd = {"swa_evictable_size": seen["swa_evictable_size"] + 1}
    assert told.law(evicted, sizes=odd) == "X2"


def test_every_callback_runs_and_the_first_error_is_raised() -> None:
    """X2: the eviction is complete all the same."""
    told = two_leaves()
    told(Fault("callback"))
    evicted = told(Evict(2))
    assert told.sound().reached["a callback raises"] == 1
    removal, one, _ = told.effects(evicted)
    assert told.law(evicted, effects=(removal, one)) == "R5"
    assert told.law(evicted, result=Failed("LaterFault")) == "X2"
    assert told.law(evicted, result=Evicted(2)) == "X2"
    assert told.law(evicted, sizes={"total_size": 4}) == "R5"


def test_a_later_callback_may_be_told_to_raise() -> None:
    """X2: nothing happens where there are not so many."""
    told = two_leaves()
    told(Fault("callback", 2))
    evicted = told(Evict(1))
    told(Fault("callback", 2))
    both = told(Evict(2))
    told.sound()
    assert told.outcome(evicted).result == Evicted(1)
    assert told.law(both, result=Evicted(3)) == "X2"


def test_counts_are_unknown_where_a_callback_raised_and_sizes_are_not_told() -> None:
    """X2: what the pool saw is enough."""
    told = two_leaves()
    told(Fault("callback"))
    evicted = told(Evict(1))
    assert told.outcome(evicted).result.error == INJECTED
    for step in told.steps:
        told.outcome(step.number).sizes.clear()
    told.sound()


def test_without_an_order_of_calls_all_windows_may_go_before_a_refused_free() -> None:
    """X2: those of the pages that were to be freed, too; then nothing of the plan but that is left."""
    told, evicted = struck("free", 1, 3, without=("call_order",))
    good = windowed(without=("call_order",))
    good.put(9)
    planned = [slot for effect in good.effects(good(Evict(1, 3))) for slot in effect.slots]
    for step in told.steps:
        told.outcome(step.number).sizes.clear()
    outcome = Outcome(Failed(INJECTED), (halved(*planned),))
    step = told.step(evicted)
    evidence, law = told.judged(Step(evicted, step.operation, outcome))
    assert law is None
    assert evidence.reached["the pool refuses an eviction"] == 1


def test_a_call_that_is_not_made_does_not_fail() -> None:
    """X2: the eviction goes well."""
    told = two_leaves()
    told(Fault("free", 2))
    told(Evict(2))
    told.sound()


# -- in another order --------------------------------------------------------------------------------------


def unordered(**config: Any) -> ToldProgram:
    return two_leaves(without=("exact_lru", "call_order"), **config)


def test_without_an_order_any_window_may_go() -> None:
    """S3: but no more than the last one explains."""
    told = windowed(without=("exact_lru", "call_order"))
    told(Evict(0, 1))
    assert told.sound().exercised["S3"] == 2


def test_without_an_order_any_leaf_may_go() -> None:
    """R5: but no more than the last one explains."""
    told = unordered()
    evicted = told(Evict(1))
    _, callback = told.effects(evicted)
    younger = {node.id: node for node in told.outcome(evicted - 1).result.nodes}  # type: ignore[union-attr]
    other = next(number for number, node in younger.items() if node.slots == (6,))
    assert told.law(evicted, effects=(freed(6), Effect("callback", node=other))) is None
    assert told.law(evicted, effects=(freed(3, 6), callback), full=2) == "R5"
    assert told.law(evicted, effects=(freed(3), callback)) is None
    assert told.law(evicted, effects=(), full=0) == "R5"


def test_without_an_order_nodes_are_called_back_in_any_order() -> None:
    """X2: nobody knows in which they went."""
    told = unordered()
    evicted = told(Evict(2))
    removal, one, two = told.effects(evicted)
    assert told.law(evicted, effects=(removal, two, one)) is None
    assert told.law(evicted, effects=(removal, two, two)) == "R5"


def test_without_an_order_a_failed_call_leaves_parts_of_what_may_go() -> None:
    """X2: locked pages stay, and pages below what went."""
    told = unordered()
    told(Fault("free"))
    evicted = told(Evict(1))
    told.sound()
    assert told.law(evicted, effects=(freed(2),)) == "R9"
    assert told.law(evicted, effects=(freed(3),), sizes={"total_size": 3}) == "X2"


def test_what_nobody_sees_cannot_be_followed() -> None:
    """R5: an order, or a pool that tells."""
    told = ToldProgram(pool="none", without=("exact_lru",))
    told(Evict(1))
    with pytest.raises(ProgramError, match="exact_lru"):
        told.judged()


def test_without_an_order_of_calls_part_of_a_plan_may_be_done() -> None:
    """X2: several frees, the second of which fails."""
    told = two_leaves(without=("call_order",))
    told(Fault("free", 2))
    evicted = told(Evict(2))
    sizes = told.outcome(evicted - 2).sizes
    pool_sizes = ("available_size", "full_available_size", "swa_available_size")
    part = {"total_size": 3, "evictable_size": 3, **{name: sizes[name] + 1 for name in pool_sizes}}
    result = Failed(INJECTED)
    assert told.law(evicted, result=result, effects=(freed(3),), sizes=part) is None
    assert told.law(evicted, result=result, effects=(freed(3, 6),), sizes=part) == "X2"
