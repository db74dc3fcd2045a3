"""Wrong holds are refused by the law that they break; wrong releases must be refused by the cache."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from told_program import ToldProgram

from pymllm.errors import ProgramError
from pymllm.history.operations import Evict, Inspect, Key, Lock, Match, Unlock
from pymllm.history.outcomes import Done, Effect, Failed, Locked


def held(window: int | None = None, **config: Any) -> tuple[ToldProgram, int, int]:
    """Hold a path of four; return the numbers of the insert and of the hold."""
    told = ToldProgram("radix" if window is None else "radix-window", window=window, **config)
    inserted = told.put(7, 7, 7, 7)
    return told, inserted, told(Lock(inserted))


def test_a_wrong_hold_is_refused() -> None:
    """R6: it protects its path, and nothing else happens."""
    told, _, hold = held()
    told.sound()
    assert told.law(hold, result=Failed("ValueError")) == "R6"
    assert told.law(hold, result=Done()) == "R6"
    assert told.law(hold, sizes={"evictable_size": 4, "protected_size": 0}) == "R6"
    assert told.law(hold, effects=(Effect("free", (1,)),)) == "R4"
    assert told.law(hold, result=Locked("opaque")) is None


def test_a_wrong_release_is_refused() -> None:
    """R6: it undoes exactly what the hold did."""
    told, inserted, _ = held()
    release = told(Unlock(told(Lock(inserted))))
    told.sound()
    assert told.law(release, sizes={"evictable_size": 4, "protected_size": 0}) == "R6"
    assert told.law(release, result=Failed("LockError")) == "R6"
    assert told.law(release, effects=(Effect("callback", node=1),)) == "R4"


def test_a_release_without_that_hold_must_be_refused() -> None:
    """R6: twice, or at an ancestor."""
    told, _, hold = held()
    upper = told(Match(Key((7, 7))))
    above = told(Unlock(hold, at=upper))
    told(Unlock(hold))
    twice = told(Unlock(hold))
    evidence = told.sound()
    assert evidence.reached["a hold is released at an ancestor"] == 1
    assert evidence.reached["a hold is released twice"] == 1
    assert [told.law(number, result=Done()) for number in (above, twice)] == ["R6", "R6"]
    assert told.law(twice, sizes={"protected_size": 4}) == "X1"


def test_two_holds_at_one_node_stand_for_each_other() -> None:
    """R6: a hold that was released by the other's name is released by its own."""
    told, inserted, first = held(window=2)
    second = told(Lock(inserted))
    for number in (first, first, second):
        told(Unlock(number))
    told.sound()
    assert told.law(len(told.steps), result=Done()) == "R6"


def test_the_root_is_held_by_nobody() -> None:
    """R6: locking it is a no-op, whatever is passed."""
    told = ToldProgram("radix-window", window=2)
    root = told(Match(Key((7,))))
    hold = told(Lock(root))
    told(Unlock(hold))
    release = told(Unlock(hold))
    told.sound()
    assert told.law(hold, token=3) == "S5"
    assert told.law(release, result=Failed("LockError")) == "R6"


def test_a_stale_node_must_be_refused() -> None:
    """X1: a node that was evicted does not come back with its path."""
    told = ToldProgram()
    inserted = told.put(7)
    released = told(Lock(inserted))
    told(Unlock(released))
    told(Evict(1))
    told.put(7)
    used = [told(Lock(inserted)), told(Unlock(released))]
    assert told.sound().reached["a stale node is used"] == 2
    assert [told.law(number, result=Done()) for number in used] == ["X1", "X1"]
    assert told.law(used[0], effects=(Effect("free", (1,)),)) == "R4"


# -- windows -----------------------------------------------------------------------------------------------


def test_a_token_is_needed_where_the_window_ends_inside_the_path() -> None:
    """S5: and nowhere else."""
    told, _, hold = held(window=2)
    short = told(Lock(told(Match(Key((7, 7))))))
    assert told.sound().reached["a hold's window covers the whole path"] == 1
    assert told.law(hold, token=None) == "S5"
    assert told.law(short, token=9) == "S5"
    assert told.law(hold, sizes={"swa_protected_size": 4, "swa_evictable_size": 0}) == "S6"


def test_holds_share_a_token_where_they_share_an_edge() -> None:
    """S5: the token is the edge's."""
    told = ToldProgram("radix-window", window=2, slots=24, swa_slots=24)
    one = told(Lock(told.put(7, 7, 8)))
    two = told(Lock(told.put(7, 7, 9)))
    other = told(Lock(told.put(7, 7, 8, 8)))
    assert told.sound().reached["two holds share an edge"] == 1
    token = told.outcome(one).result.token  # type: ignore[union-attr]
    assert (
        told.words(two, token=99) == f"S5: token of a hold: expected that of step {one}: {token}, observed 99"
    )
    wrong = f"S5: token of a hold: expected not that of step {one}: {token}, observed {token}"
    assert told.words(other, token=token) == wrong


def test_a_wrong_token_must_be_refused() -> None:
    """S5: another hold's, or none."""
    told, _, hold = held(window=2)
    other = told(Lock(told.put(8, 8, 8)))
    wrong = [told(Unlock(hold, token=0)), told(Unlock(hold, token=other))]
    told(Unlock(hold, token=hold))
    assert told.sound().reached["a wrong token is refused"] == 2
    assert [told.law(number, result=Done()) for number in wrong] == ["S5", "S5"]


def test_tokens_are_ignored_without_a_window() -> None:
    """S5: there is nothing that they could tell."""
    told, _, hold = held()
    release = told(Unlock(hold, token=0))
    assert told.law(release) is None


def test_a_hold_on_a_dead_window_must_be_refused() -> None:
    """S5: the prefix must be usable."""
    told = ToldProgram("radix-window", window=2)
    told.put(7, 7, 7, 7)
    upper = told(Match(Key((7, 7))))
    told(Match(Key((7, 7, 7, 7))))
    told(Inspect())
    told(Evict(0, 2))
    hold = told(Lock(upper))
    assert told.sound().reached["a hold is refused on a dead window"] == 1
    assert told.law(hold, result=Locked()) == "S5"


def test_a_hold_splits_at_the_edge_of_its_window() -> None:
    """S5: which is met only where somebody looked before."""
    told, inserted, _ = held(window=2)
    assert not told.judged()[0].reached["a hold splits at the edge of its window"]
    told = ToldProgram("radix-window", window=2)
    inserted = told.put(7, 7, 7, 7)
    told(Inspect())
    told(Lock(inserted))
    told(Inspect())
    assert told.sound().reached["a hold splits at the edge of its window"] == 1


@pytest.mark.parametrize(
    "operation", [Lock(1), Lock(9), Unlock(2), Unlock(9), Unlock(3, at=1), Unlock(3, token=2)]
)
def test_a_step_that_gave_no_node_or_hold_names_none(operation: Lock | Unlock) -> None:
    """R6: a program must name what there is."""
    told, _, _ = held()
    told.steps.append(type(told.steps[0])(4, operation, told.outcome(3)))
    with pytest.raises(ProgramError, match=r"gave no node|took no hold"):
        told.judged()


def reached_by(told: ToldProgram) -> Counter[str]:
    """Return the situations that a program met, which breaks no law."""
    evidence = told.sound()
    return evidence.reached


def test_what_became_of_a_held_path_is_noticed_at_its_release() -> None:
    """R6, R10: another hold there, or a split since; one that was taken after the split knows of none."""
    told, inserted, first = held()
    second = told(Lock(inserted))
    told(Unlock(first))
    met = reached_by(told)
    assert met["one of two holds at a node is released"] == 1
    told(Inspect())
    third = told(Lock(told(Match(Key((7, 7))))))
    told(Inspect())
    told(Unlock(third))
    assert reached_by(told)["a hold is released after its path was split"] == 0
    told(Unlock(second))
    met = reached_by(told)
    assert met["a hold is released after its path was split"] == 1
    assert met["one of two holds at a node is released"] == 1


def test_a_release_after_a_revival_is_noticed() -> None:
    """S6: only of the hold whose path it was, also where the insert failed after it."""
    told, _, hold = held(window=2)
    other = told(Lock(told.put(8, 8)))
    told(Evict(0, 2))
    told.put(7, 7, 7, 7)
    told(Unlock(other))
    assert reached_by(told)["a hold is released after a tombstone on its path was revived"] == 0
    told(Unlock(hold))
    assert reached_by(told)["a hold is released after a tombstone on its path was revived"] == 1


def test_windows_that_overlap_are_told_from_those_that_are_the_same() -> None:
    """S5: a page is in both and one has more; a window further down has none of it."""
    told, inserted, _ = held(window=2, slots=24, swa_slots=24)
    told(Lock(inserted))
    assert reached_by(told)["two held windows overlap in part"] == 0
    told(Lock(told.put(7, 7, 7, 7, 7, 7)))
    assert reached_by(told)["two held windows overlap in part"] == 0
    told(Lock(told.put(7, 7, 7, 7, 7)))
    assert reached_by(told)["two held windows overlap in part"] == 1


@pytest.mark.parametrize(
    ("window", "goal"),
    [(2, None), (4, "a held window is the last page alone"), (6, "a held window begins inside a page")],
)
def test_windows_and_pages_of_other_sizes_are_noticed(window: int, goal: str | None) -> None:
    """S5: a window is whole pages, one at least."""
    page_size = 2 if window == 2 else 4
    told = ToldProgram("radix-window", window=window, page_size=page_size, slots=16, swa_slots=16)
    told(Lock(told.put(*[7] * 12)))
    names = ("a held window is the last page alone", "a held window begins inside a page")
    met = [name for name in names if reached_by(told)[name]]
    assert met == ([names[0]] if goal is None else [goal])


def test_a_stale_node_whose_key_is_back_is_noticed() -> None:
    """X1: it is another node."""
    told = ToldProgram("radix")
    gone = told.put(7, 7)
    told(Evict(2, 0))
    told(Lock(gone))
    told.put(7, 7)
    told(Lock(gone))
    met = reached_by(told)
    assert met["a stale node is used"] == 2
    assert met["a stale node is used whose key is cached again"] == 1


def test_a_refusal_names_the_call() -> None:
    """R6: a hold must be given back when its holder asks."""
    told = ToldProgram()
    release = told(Unlock(told(Lock(told.put(7)))))
    assert told.words(release, result=Failed("KeyError")).startswith("R6: unlock: ")
