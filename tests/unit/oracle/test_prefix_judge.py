"""Wrong answers of matches, hashes and resets, and wrong sizes, are refused by the law that they break."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from told_program import HYBRID, ToldProgram

from pymllm.errors import ProgramError
from pymllm.history.files import Header
from pymllm.history.operations import (
    Alloc,
    Evict,
    Fault,
    Free,
    FreeSWA,
    Hash,
    Insert,
    Inspect,
    Key,
    Lock,
    Malformed,
    Match,
    Reset,
    Span,
    Unlock,
)
from pymllm.history.outcomes import Done, Effect, Failed, Hashes, Matched, Outcome, Slots, Unsupported
from pymllm.oracle.judge import make_judge


def test_a_good_program_is_accepted_and_tests_what_it_touches() -> None:
    """All of R: nothing is refused, and each law counts once it could have been broken."""
    told = ToldProgram(page_size=2)
    inserted = told.put(7, 7, 7, 8, 5)
    told(Match(Key((7, 7, 7, 9))))
    told(Inspect())
    told(Hash(inserted))
    hold = told(Lock(inserted))
    told(Evict(4))
    told(Unlock(hold))
    told(Evict(4))
    told(Reset())
    evidence = told.sound()
    assert {"A1", "A2", "A3", "E1", "H2", "R1", "R2", "R3", "R4", "R5", "R6", "R7", "R9"} <= set(
        evidence.exercised
    )
    assert not {"K1", "S1", "X1", "X4", "H3"} & set(evidence.exercised)


# -- match -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "law"),
    [
        ({"slots": (2, 3), "prefix_len": 2}, "R2"),
        ({"slots": (), "prefix_len": 0}, "R2"),
        ({"slots": (3, 2, 4, 5)}, "E1"),
        ({"slots": (4, 5, 6, 7)}, "E1"),
        ({"slots": (8, 9, 10, 11)}, "R2"),
        ({"slots": (2, 3, 4), "prefix_len": 3}, "R1"),
        ({"prefix_len": 2}, "R2"),
        ({"node_len": 2}, "R2"),
        ({"dtype": "int32"}, "R2"),
        ({"effects": (Effect("free", (9,)),)}, "R2"),
        ({"result": Failed("ValueError")}, "R2"),
        ({"sizes": {"evictable_size": 0}}, "R7"),
        ({"sizes": {"total_size": 2}}, "R7"),
        ({"sizes": {"available_size": 0}}, "A2"),
    ],
)
def test_a_wrong_match_is_refused(changes: dict[str, Any], law: str) -> None:
    """R1, R2, R7, E1: slots in order, with this key's KV, not a duplicate's; and nothing else happens."""
    told = ToldProgram(page_size=2)
    told.put(7, 7, 7, 8, 5)
    told.put(7, 7, 7, 8)
    match = told(Match(Key((7, 7, 7, 8, 6))))
    assert told.law(match, **changes) == law


def test_a_refusal_says_which_part_of_a_match_is_wrong() -> None:
    """R2: its length, or the form of its indices."""
    told = ToldProgram()
    told.put(7, 7)
    match = told(Match(Key((7, 7))))
    words = told.words(match, dtype="int32")
    assert words == "R2: dtype of a match's indices: expected int64, observed int32"


def test_what_another_namespace_caches_is_not_found() -> None:
    """K1: equal tokens elsewhere are no match."""
    told = ToldProgram()
    told.put(7, 7, extra_key="1")
    match = told(Match(Key((7, 7), 1)))
    assert told.law(match, slots=(1, 2), prefix_len=2) == "K1"
    assert told.judged()[0].exercised["K1"] == 1


VALUES = ("extra_key", "lora", "lora_version")


def test_what_is_cached_under_other_values_is_not_found() -> None:
    """K2, and not K1: of several values, whichever differs; of one value each it is K1's."""
    told = ToldProgram()
    told.put(7, 7, extra_key=("a", "b"))
    match = told(Match(Key((7, 7), ("b", "a"))))
    again = told(Match(Key((7, 7), ("a", "b"))))
    alone = told(Match(Key((7, 7), "a")))
    told.sound()
    assert told.judged()[0].exercised["K2"] == 3
    words = "K2: slots of ('a', 'b') for ('b', 'a') that match (7, 7): expected 0, observed 2"
    assert told.words(match, slots=(1, 2), prefix_len=2) == words
    assert told.law(alone, slots=(1, 2), prefix_len=2) == "K2"
    assert told.law(again, slots=(), prefix_len=0) == "R2"


def test_a_match_or_an_insert_that_goes_on_under_other_values_is_named_by_that() -> None:
    """K2, where its own values have the first page; of another width it is K1's."""
    told = ToldProgram(page_size=2, slots=32, swa_slots=32)
    told.put(7, 7, 8, 8, extra_key=("a", "b"))
    told.put(7, 7, extra_key=("a", "c"))
    match = told(Match(Key((7, 7, 8, 8), ("a", "c"))))
    longer = told.put(7, 7, 8, 8, extra_key=("a", "c"))
    told.sound()
    assert told.law(match, slots=(2, 3, 4, 5), prefix_len=4) == "K2"
    words = "K2: tokens of ('a', 'b') that an insert of ('a', 'c') finds: expected 0, observed 4"
    assert told.words(longer, prefix_len=4) == words
    assert told.law(longer, prefix_len=0) == "R3"


def test_a_match_that_goes_on_in_another_namespace_is_named_by_that() -> None:
    """K1, and not R2: its own space has the first page, and the answer is as long as the other's."""
    told = ToldProgram()
    told.put(7, 8, 9, extra_key="1")
    told.put(7, extra_key=1)
    match = told(Match(Key((7, 8, 9), 1)))
    told.sound()
    assert told.law(match, slots=(1, 2, 3), prefix_len=3) == "K1"
    assert told.law(match, slots=(1, 2), prefix_len=2) == "K1"
    assert told.law(match, slots=(4, 5, 6, 7), prefix_len=4) == "R2"
    assert told.law(match, slots=(), prefix_len=0) == "R2"


def test_who_splits_no_node_shows_none_of_several_pages() -> None:
    """R9, M3: the configuration says so, and a law that needs a split is not held against it."""
    told = ToldProgram(splits=False)
    told.put(7)
    told.put(7, 8)
    look = told(Inspect())
    told.sound()
    told.put(9, 9)
    long = told(Inspect())
    with pytest.raises(ProgramError, match="have several pages, and the configuration's splits is false"):
        told.judged()
    assert look < long


def test_a_dead_window_ends_a_match() -> None:
    """S1: what is stored beyond the last usable prefix is not returned."""
    told = ToldProgram("radix-window", window=2)
    told.put(7, 7, 7)
    told.put(7, 7, 7, 8, 8, swa_evicted_seqlen=0)
    told(Evict(0, 3))
    match = told(Match(Key((7, 7, 7))))
    assert told.law(match, slots=(1, 2, 3), prefix_len=3) == "S1"
    assert told.judged()[0].exercised["S1"] == 1


@pytest.mark.parametrize(("left_out", "law"), [((), "R2"), (("lean_matches",), None)], ids=str)
def test_a_match_may_split_where_it_finds_no_state_if_nothing_else_is_claimed(
    left_out: tuple[str, ...], law: str | None
) -> None:
    """R2: (7, 8) is looked for and its KV found, but no state, so that the match is empty."""
    told = ToldProgram("mamba", without=left_out, **HYBRID)
    told.put_state(7, 8, 9)
    told(Inspect())
    told(Match(Key((7, 8))))
    look = told(Inspect())
    (node,) = told.outcome(look).result.nodes
    upper = dataclasses.replace(
        node, id=99, tokens=(7, 8), slots=node.slots[:2], state=None, state_lock_ref=0, kept_bytes=16
    )
    lower = dataclasses.replace(node, parent=99, tokens=(9,), slots=node.slots[2:], kept_bytes=8)
    changes = {"nodes": (upper, lower), "full_lru": None, "mamba_lru": None}
    assert told.law(look, **changes) == law


def test_a_read_of_a_window_without_halves_is_noticed() -> None:
    """E1, S1: the last W tokens are read from their SWA halves, too."""
    told = ToldProgram("radix-window", window=2)
    told.put(7, 8)
    again = told.put(7, 8)
    told(FreeSWA((Span(again - 1, 0, 1),)))
    match = told(Match(Key((7, 8))))
    assert told.law(match, slots=(3, 4)) == "E1"
    assert told.law(match, slots=(1, 4)) == "R2"


def test_numbers_that_stand_for_two_contents_are_not_read() -> None:
    """E1, R1: without a pool a number may stand for several rows, such as a token id does."""
    told = ToldProgram(pool="none")
    told(Insert(Key((7, 7)), (Span(0, 4, 6),)))
    told(Insert(Key((8, 8)), (Span(0, 5, 7),)))
    match = told(Match(Key((8, 8))))
    assert told.judged()[0].exercised["E1"] == 0
    assert told.law(match) is None


# -- hashes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("extra_key", "law"), [(None, "H2"), ("a", "H3")])
def test_a_wrong_hash_is_refused(extra_key: str | None, law: str) -> None:
    """H2, H3: each page chains from the one before it, the first one from its namespace."""
    told = ToldProgram(page_size=2)
    hashed = told(Hash(told.put(7, 7, 8, 8, extra_key=extra_key)))
    digests = told.outcome(hashed).result.digests  # type: ignore[union-attr]
    assert told.law(hashed, digests=("0" * 64, digests[1])) == law
    assert told.law(hashed, digests=(digests[0], "0" * 64)) == "H2"
    assert told.law(hashed, digests=digests[:1]) == "H2"
    assert told.law(hashed, effects=(Effect("free", (2,)),)) == "R4"
    assert told.law(hashed, result=Failed("KeyError")) == "H2"


def test_the_root_has_no_hashes() -> None:
    """H2: an empty path has no pages."""
    told = ToldProgram()
    hashed = told(Hash(told(Match(Key((7,))))))
    told.sound()
    assert told.law(hashed, result=Hashes(("0" * 64,))) == "H2"


def test_a_stale_node_is_not_hashed() -> None:
    """X1: a node that left is refused."""
    told = ToldProgram()
    inserted = told.put(7)
    told(Evict(1))
    hashed = told(Hash(inserted))
    assert told.law(hashed, result=Hashes(("0" * 64,))) == "X1"
    assert told.judged()[0].reached["a stale node is used"] == 1


# -- reset -------------------------------------------------------------------------------------------------


def reset_program(**config: Any) -> tuple[ToldProgram, int]:
    told = ToldProgram(**config)
    told(Lock(told.put(7, 8)))
    return told, told(Reset())


def test_a_reset_gives_every_slot_back_once() -> None:
    """X7: whatever is held, without a callback."""
    told, reset = reset_program()
    assert told.judged()[0].reached["a reset with holds outstanding"] == 1
    assert told.law(reset, effects=()) == "X7"
    assert told.law(reset, effects=(Effect("free", (1,)),)) == "X7"
    assert told.law(reset, effects=(Effect("free", (1, 2, 2)),)) == "X7"
    assert told.law(reset, effects=(*told.effects(reset), Effect("callback", node=1))) == "X7"
    assert told.law(reset, result=Failed("KeyError")) == "X7"
    assert told.law(reset, sizes={"total_size": 2}) == "X7"
    assert told.law(reset, effects=(Effect("free", (1,)), Effect("free", (2,)))) is None


def test_after_a_reset_old_nodes_are_stale_and_old_roots_are_not() -> None:
    """X7: releasing the old root stays a no-op."""
    told = ToldProgram()
    root = told(Lock(told(Match(Key((7,))))))
    inserted = told.put(7)
    hold = told(Lock(inserted))
    told(Reset())
    told(Unlock(root))
    used = [told(Lock(inserted)), told(Unlock(hold))]
    told.sound()
    assert [told.law(number, result=Done()) for number in used] == ["X1", "X1"]


def test_what_a_refused_reset_drops_is_the_callers() -> None:
    """X7: the tree is gone, and the slots that no pool took can be given back."""
    told = ToldProgram()
    told.put(7, 8)
    told(Fault("free"))
    reset = told(Reset())
    told(Free((Span(1, 0, 2),)))
    told.sound()
    assert told.judged()[0].reached["the pool refuses a reset"] == 1
    assert told.law(reset, result=Done(), effects=()) == "X2"
    assert told.law(reset, effects=(Effect("free", (9,)),)) == "X7"
    assert told.law(reset, sizes={"total_size": 2}) == "X7"


# -- the rest ----------------------------------------------------------------------------------------------


def test_sizes_are_those_of_the_model() -> None:
    """R7, S6, A2, A7: each size has its law."""
    told = ToldProgram("radix-window", window=2)
    inserted = told.put(7, 7)
    names = {
        "evictable_size": "R7",
        "protected_size": "R7",
        "swa_evictable_size": "S6",
        "swa_protected_size": "S6",
        "available_size": "A2",
        "full_available_size": "A2",
        "swa_available_size": "A7",
    }
    assert {name: told.law(inserted, sizes={name: 5}) for name in names} == names


def test_what_is_not_supported_changes_nothing() -> None:
    """R7: an adapter that cannot do something has done nothing."""
    told = ToldProgram()
    told.put(7)
    number = told(Malformed("evict", "something unheard of"))
    assert isinstance(told.outcome(number).result, Unsupported)
    told.sound()
    assert told.law(number, sizes={"evictable_size": 0}) == "R7"


def test_a_malformed_call_is_refused_and_leaves_no_trace() -> None:
    """X1: an error, and the sizes are what they were."""
    told = ToldProgram()
    told.put(7)
    number = told(Malformed("lock", "a node of another cache"))
    assert told.sound().reached["a node of another cache is used"] == 1
    assert told.law(number, result=Done()) == "X1"
    assert told.law(number, sizes={"evictable_size": 0}) == "X1"


def test_a_look_at_the_nodes_answers_with_nodes() -> None:
    """R9: an error is no answer."""
    told = ToldProgram()
    assert told.law(told(Inspect()), result=Failed("KeyError")) == "R9"


@pytest.mark.parametrize(
    ("operation", "without"),
    [
        (Fault("free"), "faults"),
        (Inspect(), "inspect"),
        (Hash(1), "hashes"),
        (Malformed("a", "b"), "refusals"),
    ],
)
def test_what_is_not_claimed_is_not_asked(operation: Any, without: str) -> None:
    """A program for one adapter may have no meaning for another."""
    told = ToldProgram(without=(without,))
    told(Match(Key((7,))))
    outcome = Outcome(Failed("ValueError")) if isinstance(operation, Malformed) else Outcome(Done())
    judge = make_judge(told.header)
    judge.judge(1, told.steps[0].operation, told.outcome(1))
    with pytest.raises(ProgramError, match="claim"):
        judge.judge(2, operation, outcome)


@pytest.mark.parametrize("call", ["reenter", "callback", "free"])
def test_a_fault_is_that_of_the_first_call_or_a_later_one(call: str) -> None:
    """X2: no program lets a call before the first one fail."""
    judge = make_judge(ToldProgram().header)
    with pytest.raises(ProgramError, match="counted from 1"):
        judge.judge(1, Fault(call, 0), Outcome(Done()))


def test_a_fault_is_forgotten_after_the_next_operation() -> None:
    """X2: whatever that operation is."""
    told = ToldProgram()
    told.put(7)
    told(Fault("free"))
    told(Match(Key((7,))))
    told(Evict(1))
    told.sound()


def test_a_cache_that_keeps_nothing_finds_nothing() -> None:
    """R2, R3, R4, R5: a cache that retains nothing."""
    told = ToldProgram("chunk", retains=False, pool="token")
    inserted, match = told.put(7, 8), told(Match(Key((7, 8))))
    hold = told(Lock(inserted))
    told(Unlock(hold))
    evicted = told(Evict(5))
    told(Reset())
    evidence = told.sound()
    assert {"R2", "R3", "R4", "R5", "R7"} <= set(evidence.exercised)
    assert told.law(match, slots=(1,), prefix_len=1) == "R2"
    assert told.law(inserted, prefix_len=2) == "R3"
    words = told.words(inserted, adopted=((0, 2),))
    assert words == "R4: adopted ranges: expected (), observed ((0, 2),)"
    assert told.law(inserted, effects=(Effect("free", (1,)),)) == "R4"
    assert told.law(inserted, result=Done()) == "R3"
    assert told.law(evicted, full=1) == "R5"


def test_windows_may_be_claimed_by_a_cache_without_one() -> None:
    """S3, S4, S5, S6: of such a cache they say nothing."""
    told = ToldProgram()
    hold = told(Lock(told.put(7, 8)))
    told(Inspect())
    told(Unlock(hold))
    told(Evict(1))
    claims = (*told.header.capabilities, "swa", "exact_windows")
    told.header = dataclasses.replace(told.header, capabilities=claims)
    assert not {"S2", "S3", "S4", "S5", "S6"} & set(told.sound().exercised)


def test_books_are_open_to_who_chooses_the_next_operation() -> None:
    """The model, the ledger and the nodes tell a caller what there is."""
    config = {"page_size": 2, "window": None, "pool": "token", "slots": 4}
    judge = make_judge(Header("x", "prefix", dict(config), ("exact_lru", "pool")))
    judge.judge(1, Match(Key((1, 2))), Outcome(Matched((), 0)))
    model = judge.model
    assert (model.cache.clock, model.ownership.room(), model.nodes.ends) == (1, 2, {})
    assert model.can_follow_evictions
    assert model.sizes()["available_size"] == 4
    judge.judge(2, Alloc(2), Outcome(Slots((2, 3)), sizes={"available_size": 2}))
    assert model.ownership.callers_slots() == [2, 3]
    assert model.ownership.name([3, 2]) == (Span(2, 1, 2), Span(2, 0, 1))
    bare = make_judge(Header("x", "prefix", {"page_size": 1, "pool": "none"}, ("exact_lru",))).model
    assert bare.ownership.callers_slots() == []


def test_a_step_of_another_kind_has_no_meaning() -> None:
    """Alloc of a pool that is not there, for one."""
    judge = make_judge(Header("x", "prefix", {"page_size": 1, "pool": "none"}, ("exact_lru",)))
    with pytest.raises(ProgramError, match="pool"):
        judge.judge(1, Alloc(1), Outcome(Done()))
