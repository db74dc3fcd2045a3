"""When the coverage goals of matches and evictions count as met."""

from __future__ import annotations

from collections import Counter

from told_program import HYBRID, ToldProgram

from pymllm.history.operations import (
    Alloc,
    Evict,
    FreeSWA,
    Insert,
    Inspect,
    Key,
    Lock,
    Match,
    Reset,
    Span,
    Unlock,
)


def test_goals_of_matches_are_met() -> None:
    """R2, S1, K1: equal tokens elsewhere, and a dead window that leaves nothing."""
    told = ToldProgram("radix-window", window=2)
    told.put(5, extra_key="a")
    told.put(7, 7, 7)
    for tokens in ((7,), (7, 7, 7), (5,)):
        told(Match(Key(tokens)))
    told(Evict(0, 2))
    told(Match(Key((7, 7))))
    evidence = told.sound()
    assert evidence.reached["equal tokens are cached in another space only"] == 1
    assert evidence.reached["a dead window leaves no match"] == 1


def test_a_page_beside_two_others_is_noticed() -> None:
    """R2, R5: where it is matched and where it goes; two children are not yet three."""
    told = ToldProgram("radix")
    told.put(7, 1)
    told.put(7, 2)
    told(Match(Key((7, 1))))
    assert not told.sound().reached["a match goes by a page that has two siblings"]
    told.put(7, 3)
    told(Match(Key((7, 1))))
    told(Evict(1, 0))
    told(Evict(1, 0))
    met = reached_by(told)
    assert met["a match goes by a page that has two siblings"] == 1
    assert met["an eviction takes one of three siblings"] == 1


def test_what_is_false_but_there_is_noticed() -> None:
    """R2, K1: token 0 behind another, alone or first of a tuple, and the namespaces 0 and "", but not "0"."""
    told = ToldProgram("radix")
    told.put(0, 7)
    told.put(7, 0)
    told.put((7, 1), (0, 1))
    told.put(7, extra_key="")
    tuples = ((7, 1), (0, 1))
    keys = (Key((0, 7)), Key((7,)), Key((7, 0)), Key(tuples), Key((7,), ""), Key((7,), 0), Key((7,), "0"))
    for key in keys:
        told(Match(key))
    met = reached_by(told)
    assert met["a match finds token 0 behind others"] == 2
    assert met["a key of an empty namespace is matched"] == 2


def test_likenesses_of_values_are_noticed() -> None:
    """K2: one value differs, two are exchanged, both spell the same, one is empty; and nothing of K1's."""
    told = ToldProgram("radix")
    for number, (cached, asked) in enumerate(
        (
            (("a", "b"), ("a", "c")),
            (("a", "b"), ("b", "a")),
            (("a", "bc"), ("ab", "c")),
            (("", "b"), (None, "b")),
            ("a", "b"),
            (("a", "b"), ("c", "d")),
        )
    ):
        told.put(number, extra_key=cached)
        told(Match(Key((number,), asked)))
    told(Match(Key((0,), ("a", "b"))))
    met = reached_by(told)
    assert met["equal tokens are cached under one other value only"] == 2
    assert met["equal tokens are cached under exchanged values only"] == 1
    assert met["equal tokens are cached under values only that spell the same"] == 1
    assert met["equal tokens are cached under an empty value only, or a missing one"] == 1
    assert met["a key is found under its several values"] == 1


def test_a_match_may_end_inside_a_node_or_before_a_dead_window() -> None:
    """R2, S1: which only who was shown the nodes can tell."""
    told = ToldProgram("radix-window", window=2)
    told.put(9, 9, 9, 9)
    told(Inspect())
    told(Lock(told(Match(Key((9,))))))
    for tokens in ((9, 9, 9), (9, 9, 9, 9)):
        told(Match(Key(tokens)))
    told(Evict(0, 2))
    told(Match(Key((9, 9, 9))))
    evidence = told.sound()
    assert evidence.reached["a match ends inside a node"] == 2
    assert evidence.reached["a match ends before a dead window"] == 1


def reached_by(told: ToldProgram) -> Counter[str]:
    """Return the situations that a program met, which breaks no law."""
    evidence = told.sound()
    return evidence.reached


def test_pages_that_differ_at_their_end_are_noticed() -> None:
    """R1, R2: a key that leaves a cached page in its middle, and one that is no page at all."""
    told = ToldProgram("radix", page_size=4, slots=24, swa_slots=24)
    told.put(1, 2, 3, 4)
    for tokens in ((7, 7, 7, 7), (1, 2, 3, 4), (1, 2, 9, 9), (1, 2)):
        told(Match(Key(tokens)))
    told.put(5, 6)
    told(Insert(Key(()), ()))
    met = reached_by(told)
    assert met["a key leaves a cached page in its middle"] == 2
    assert met["a key shorter than a page is inserted"] == 1
    assert met["an empty key is inserted"] == 1


def test_a_leaf_that_gains_a_child_is_noticed() -> None:
    """R6, R7: held or not; who has a child already is no leaf."""
    told = ToldProgram("radix")
    told.put(7, 7)
    told.put(7, 7, 8)
    told.put(7, 7, 9)
    assert reached_by(told)["a leaf gains a child"] == 1
    told(Lock(told(Match(Key((7, 7, 8))))))
    told.put(7, 7, 8, 8)
    met = reached_by(told)
    assert (met["a leaf gains a child"], met["a held leaf gains a child"]) == (2, 1)


def test_tombstones_that_stay_say_why() -> None:
    """S7: for what is protected, for what is evicted; what goes between two that live makes two ranges."""
    told = ToldProgram("radix-window", window=2)
    told.put(7, 7, 7, 7)
    told(Evict(0, 4))  # a leaf goes whole; what is left is inserted again
    told.put(7, 7, 7, 7)
    told(Inspect())
    told(Lock(told(Match(Key((7, 7, 7, 7))))))
    told(Evict(0, 2))
    assert reached_by(told)["a locked page is tombstoned"] == 1
    first = told(Alloc(5))
    told(Insert(Key((7, 7, 7, 7, 8)), (Span(first, 0, 5),), prev_prefix_len=1))
    met = reached_by(told)
    assert met["a tombstone before prev_prefix_len stays dead"] == 1
    assert met["a stretch of tombstones is revived in part"] == 1
    second = told(Alloc(3))
    told(FreeSWA((Span(second, 0, 1),)))
    told(Insert(Key((7, 7, 7)), (Span(second, 0, 3),), swa_evicted_seqlen=1))
    met = reached_by(told)
    assert met["a tombstone before swa_evicted_seqlen stays dead"] == 1


def test_what_an_eviction_leaves_is_noticed() -> None:
    """R5, R6, R7: nothing asked for, an older page held, a held parent, and in the end nothing at all."""
    told = ToldProgram("radix")
    told.put(7, 7)
    lock = told(Lock(told(Match(Key((7, 7))))))
    told.put(8, 8)
    told.put(7, 7, 9)
    told(Evict(0, 0))
    told(Evict(1, 0))
    met = reached_by(told)
    assert met["an eviction asks for nothing"] == 1
    assert met["a held page is older than what is evicted"] == 0
    told.put(8, 8)
    told(Match(Key((7, 7, 9))))
    told(Evict(3, 0))
    met = reached_by(told)
    assert met["a leaf goes and its held parent stays"] == 1
    assert met["an eviction empties the cache"] == 0
    told(Unlock(lock))
    told(Evict(9, 0))
    assert reached_by(told)["an eviction empties the cache"] == 1


def test_an_older_page_that_is_held_is_noticed() -> None:
    """R8: it would have been the first to go; one that was used together with what goes is not older."""
    told = ToldProgram("radix")
    told(Lock(told.put(9)))
    told.put(9, 9)
    told(Evict(1, 0))
    assert reached_by(told)["a held page is older than what is evicted"] == 0
    told(Lock(told.put(7, 7)))
    told.put(8, 8)
    told(Evict(1, 0))
    assert reached_by(told)["a held page is older than what is evicted"] == 1


def test_three_nodes_one_above_the_other_are_noticed() -> None:
    """R5: chosen one by one, where nodes are shown; two and one beside them are not three."""
    told = ToldProgram("radix")
    for length in (1, 2, 3):
        told.put(*[7] * length)
    told.put(8)
    told(Match(Key((8,))))
    told(Inspect())
    told(Evict(2, 0))
    assert reached_by(told)["an eviction climbs through three nodes"] == 0
    told.put(7, 7)
    told.put(7, 7, 7)
    told(Inspect())
    told(Evict(4, 0))
    assert reached_by(told)["an eviction climbs through three nodes"] == 1


def test_a_cascade_of_three_levels_is_noticed() -> None:
    """M5: three nodes without states go with the last child."""
    told = ToldProgram("mamba", **HYBRID)
    told.put_state(7, 7, 7, 7)
    for length in (1, 2, 3):
        told.put(*[7] * length)
    told(Inspect())
    told(Evict(0, 1))
    met = reached_by(told)
    assert met["a cascade goes through three levels"] == 1


def test_the_phases_of_an_eviction_are_told_apart() -> None:
    """S3: what the first frees counts for the second, which does the rest."""
    told = ToldProgram("radix-window", window=2)
    told.put(7, 7, 7)
    told.put(8)
    told.put(9)
    told(Match(Key((7, 7, 7))))
    told(Evict(1, 1))
    met = reached_by(told)
    assert met["phase 1 frees enough for phase 2"] == 1
    assert met["phase 2 takes what phase 1 has left"] == 0
    told(Lock(told(Match(Key((7, 7, 7))))))
    told(Evict(1, 2))
    met = reached_by(told)
    assert met["phase 2 takes what phase 1 has left"] == 1
    told(Evict(0, 9))
    told(Evict(0, 9))
    assert reached_by(told)["every window is held and an eviction of windows is asked for"] == 2


def test_the_phases_of_an_eviction_of_states_are_told_apart() -> None:
    """M5: a leaf with its state is enough, or another state goes by itself."""
    told = ToldProgram("mamba", **HYBRID)
    told.put_state(7)
    told.put_state(7, 7)
    told.put_state(8)
    told(Evict(1, 1))
    assert reached_by(told)["phase 1 frees enough for phase 2"] == 1
    told(Match(Key((7,))))
    told.put_state(7, 7, 7)
    told(Evict(1, 2))
    assert reached_by(told)["phase 2 takes what phase 1 has left"] == 1


def test_windows_of_pages_used_together_go_from_the_top() -> None:
    """R8, S3: the access is the same, the depth is not."""
    told = ToldProgram("radix-window", window=2)
    told.put(7)
    told.put(7, 7)
    told.put(7, 7, 7)
    told(Evict(0, 1))
    assert reached_by(told)["a window goes before that of a page used together with it"] == 1


def test_a_window_that_was_used_later_does_not_go_together() -> None:
    """R8, S3: its child is held, so that it goes although it was used since."""
    told = ToldProgram("radix-window", window=1)
    told.put(7)
    told(Lock(told.put(7, 7)))
    told(Match(Key((7,))))
    told(Evict(0, 1))
    met = reached_by(told)
    assert met["a window is tombstoned"] == 1
    assert met["a window goes before that of a page used together with it"] == 0


def test_what_lives_at_the_end_of_a_match_is_noticed() -> None:
    """S1: behind a tombstone; with the window and no page more, or with one more."""
    told = ToldProgram("radix-window", window=2)
    told.put(7)
    told.put(7, 7, 7)
    told.put(7, 7, 7, 7)
    told(Evict(0, 1))
    told(Match(Key((7, 7, 7, 7))))
    met = reached_by(told)
    assert met["a match passes a tombstone"] == 1
    assert met["a match has its window alive and no page more"] == 0
    told(Match(Key((7, 7, 7))))
    met = reached_by(told)
    assert met["a match passes a tombstone"] == 2
    assert met["a match has its window alive and no page more"] == 1
    told(Reset())
    assert reached_by(told)["a reset with tombstones"] == 1
