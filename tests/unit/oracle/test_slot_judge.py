"""Slot allocators: a spoiled outcome breaks the law it is about, and what was tested is counted."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from pymllm.errors import InvariantViolation, ProgramError
from pymllm.history.files import Header
from pymllm.history.operations import (
    Alloc,
    BeginGroup,
    BeginTransfer,
    Clear,
    EndGroup,
    EndTransfer,
    Free,
    FreeSWA,
    Malformed,
    Match,
    Merge,
    MoveSWA,
    Operation,
    ReadHalves,
    Span,
)
from pymllm.history.operations import Key as PrefixKey
from pymllm.history.outcomes import Done, Failed, NoRoom, Outcome, Result, Slots, Unsupported
from pymllm.oracle.judge import Judge, make_judge
from pymllm.oracle.models.slots import SlotModel

# -- The judge of slot allocators: every law is seen to hold, and to be broken by one spoiled outcome --------


EVERYTHING = "pool merges sorted groups group_errors refusals transfers"
NOT_OWNED = Failed("OwnershipError")
TWICE_OPEN = Failed("RuntimeError")

Free_ = int | tuple[int, int]
"""Free pages afterwards; of both pools where there is a window."""

Done_ = tuple[Operation, Result, Free_]
"""An operation, its result, and the pages that are free then."""


def header(claims: str = EVERYTHING, page_size: int = 1, pages: int = 4) -> Header:
    config = {"page_size": page_size, "pages": pages}
    if "swa" in claims:
        config["swa_pages"] = 3
    return Header("hand-made", "slots", config, tuple(claims.split()))


def judge_by(header: Header) -> Judge:
    return make_judge(header)


def model_of(judge: Judge) -> SlotModel:
    assert isinstance(judge.model, SlotModel)
    return judge.model


def outcome(judge: Judge, result: Result, free: Free_) -> Outcome:
    size = model_of(judge).page_size
    if isinstance(free, int):
        return Outcome(result, (), {"available_size": free * size})
    full, swa = free
    sizes = {"available_size": min(free) * size, "full_available_size": full * size}
    return Outcome(result, (), {**sizes, "swa_available_size": swa * size})


def play(judge: Judge, *steps: Done_) -> int:
    """Judge steps, and return the number that the next one has."""
    for number, (operation, result, free) in enumerate(steps, 1):
        judge.judge(number, operation, outcome(judge, result, free))
    return len(steps) + 1


def slots(*numbers: int, swa: tuple[int, ...] = ()) -> Slots:
    return Slots(numbers, swa)


def literal(*numbers: int) -> tuple[Span, ...]:
    return tuple(Span(0, number, number + 1) for number in numbers)


@dataclass
class Case:
    """The last step of a program: as it should be, and spoiled in one way."""

    law: str
    before: tuple[Done_, ...]
    last: Done_
    spoiled: Result | Free_
    claims: str = EVERYTHING
    page_size: int = 1
    counts: bool = True  # whether the good outcome tests the same law


TOOK_1 = (Alloc(1), slots(1), 3)
TOOK_2 = (Alloc(2), slots(1, 2), 2)
TOOK_ALL = (Alloc(4), slots(1, 2, 3, 4), 0)
TOO_MUCH = (Alloc(9), NoRoom(), 3)
GAVE_1 = (Free((Span(1, 0, 1),)), Done(), 4)
OPENED = (BeginGroup(), Done(), 3)
SENT_1 = (BeginTransfer((Span(1, 0, 1),)), Done(), 3)
WAITS_1 = (GAVE_1[0], Done(), 3)
ENDED_1 = (EndTransfer(2), Done(), 3)
UNSORTED = "pool merges groups group_errors refusals"
UNORDERED = "pool groups group_errors refusals"

TOKEN_CASES = {
    "padding is handed out": Case("A1", (), TOOK_1, slots(0)),
    "a slot beyond the end is handed out": Case("A1", (), TOOK_1, slots(5)),
    "page 0 is handed out": Case("A1", (), (Alloc(2), slots(4, 5), 3), slots(1, 2), page_size=4),
    "too few slots": Case("A3", (), TOOK_2, slots(1)),
    "too many slots": Case("A3", (), TOOK_2, slots(1, 2, 3)),
    "a slot twice": Case("A3", (), TOOK_2, slots(1, 1)),
    "a page in pieces": Case("A3", (), (Alloc(3), slots(4, 5, 6), 3), slots(4, 5, 7), page_size=4),
    "a page that begins late": Case("A3", (), (Alloc(3), slots(4, 5, 6), 3), slots(5, 6, 7), page_size=4),
    "a page twice": Case("A3", (), (Alloc(6), slots(*range(4, 10)), 2), slots(4, 5, 6, 7, 4, 5), page_size=4),
    "no room where there is": Case("A3", (TOOK_1,), (Alloc(3), slots(2, 3, 4), 0), NoRoom()),
    "an error instead of None": Case(
        "A3", (TOOK_1,), (Alloc(4), NoRoom(), 3), Failed("ValueError"), counts=False
    ),
    "nothing where nothing is asked for": Case("A3", (), (Alloc(0), slots(), 4), NoRoom()),
    "a held slot is handed out": Case("A2", (TOOK_1,), (Alloc(1), slots(2), 2), slots(1)),
    "slots where there is no room": Case(
        "A2", (TOOK_1,), (Alloc(4), NoRoom(), 3), slots(2, 3, 4, 1), counts=False
    ),
    "a slot where there is no room": Case("A2", (TOOK_ALL,), (Alloc(1), NoRoom(), 0), slots(3), counts=False),
    "a pending slot is handed out": Case(
        "A2", (TOOK_1, OPENED, (GAVE_1[0], Done(), 3)), (Alloc(1), slots(2), 2), slots(1)
    ),
    "a page is lost by an alloc": Case("A2", (), TOOK_1, 2),
    "a page is lost by a free": Case("A2", (TOOK_1,), GAVE_1, 3),
    "a pending page counts as free": Case("A2", (TOOK_1, OPENED), (GAVE_1[0], Done(), 3), 4),
    "what is not supported changes something": Case(
        "A2", (), (Merge(), Unsupported("merge"), 4), 3, counts=False
    ),
    "a good free is refused": Case("A2", (TOOK_1,), GAVE_1, NOT_OWNED),
    "the lowest is not first": Case("A4", (), TOOK_1, slots(2)),
    "slots out of order": Case("A4", (), TOOK_2, slots(2, 1)),
    "a freed slot does not wait": Case("A4", (TOOK_1, GAVE_1), (Alloc(1), slots(2), 3), slots(1)),
    "a freed slot does not wait, unsorted": Case(
        "A4", (TOOK_1, GAVE_1), (Alloc(2), slots(4, 3), 2), slots(4, 1), claims=UNSORTED
    ),
    "a slot under transfer is free": Case("A2", (TOOK_1, SENT_1), WAITS_1, 4),
    "a slot under transfer is handed out": Case(
        "A2", (TOOK_1, SENT_1, WAITS_1), (Alloc(1), slots(2), 2), slots(1)
    ),
    "a transfer never gives its slots back": Case(
        "A2", (TOOK_1, SENT_1, WAITS_1), (EndTransfer(2), Done(), 4), 3
    ),
    "the first of two transfers gives slots back": Case(
        "A2", (TOOK_1, SENT_1, SENT_1, WAITS_1), (EndTransfer(2), Done(), 3), 4
    ),
    "the end of a transfer frees what is held": Case("A2", (TOOK_1, SENT_1), ENDED_1, 4),
    "a transfer in a group frees at its end": Case(
        "A2", (TOOK_1, SENT_1, OPENED, WAITS_1), (EndTransfer(2), Done(), 3), 4
    ),
    "a transfer cannot begin": Case("A2", (TOOK_1,), SENT_1, NOT_OWNED),
    "a transfer cannot end": Case("A2", (TOOK_1, SENT_1), ENDED_1, NOT_OWNED),
    "a double free under transfer is accepted": Case(
        "A5", (TOOK_1, SENT_1, WAITS_1), (GAVE_1[0], NOT_OWNED, 3), Done()
    ),
    "a transfer of a free slot begins": Case("A5", (TOOK_1, GAVE_1), (SENT_1[0], NOT_OWNED, 4), Done()),
    "a transfer ends twice": Case("A5", (TOOK_1, SENT_1, ENDED_1), (EndTransfer(2), NOT_OWNED, 3), Done()),
    "a transfer ends after a clear": Case(
        "A5", (TOOK_1, SENT_1, (Clear(), Done(), 4)), (EndTransfer(2), NOT_OWNED, 4), Done()
    ),
    "a merged slot does wait": Case(
        "A4", (TOOK_1, GAVE_1, (Merge(), Done(), 4)), (Alloc(1), slots(1), 3), slots(2)
    ),
    "a merge fails": Case("A4", (), (Merge(), Done(), 4), Failed("RuntimeError")),
    "a merge fails where no order is claimed": Case(
        "A2", (), (Merge(), Done(), 4), Failed("RuntimeError"), claims=UNORDERED
    ),
    "a double free is accepted": Case("A5", (TOOK_1, GAVE_1), (GAVE_1[0], NOT_OWNED, 4), Done()),
    "a double free is another error": Case(
        "A5", (TOOK_1, GAVE_1), (GAVE_1[0], NOT_OWNED, 4), Failed("KeyError")
    ),
    "padding is accepted": Case("A5", (), (Free(literal(0)), NOT_OWNED, 4), Done()),
    "a slot beyond the end is accepted": Case("A5", (), (Free(literal(5)), NOT_OWNED, 4), Done()),
    "a negative slot is accepted": Case("A5", (), (Free(literal(-1)), NOT_OWNED, 4), Done()),
    "a pending slot is accepted": Case(
        "A5", (TOOK_1, OPENED, (GAVE_1[0], Done(), 3)), (GAVE_1[0], NOT_OWNED, 3), Done()
    ),
    "a slot named twice is accepted": Case("A5", (TOOK_1,), (Free(literal(1, 1)), NOT_OWNED, 3), Done()),
    "a page named twice is freed twice": Case(
        "A5", ((Alloc(4), slots(4, 5, 6, 7), 3),), (Free(literal(4, 7)), Done(), 4), 5, page_size=4
    ),
    "a refused free frees": Case("X1", (TOOK_1,), (Free(literal(0, 1)), NOT_OWNED, 3), 4),
    "a refused free merges": Case(
        "X1", (TOOK_1, GAVE_1, (GAVE_1[0], NOT_OWNED, 4)), (Alloc(1), slots(2), 3), slots(1)
    ),
    "a malformed call is accepted": Case(
        "X1", (), (Malformed("free", "a list"), Failed("TypeError"), 4), Done()
    ),
    "a malformed call crashes": Case(
        "X1", (), (Malformed("free", "a list"), Failed("TypeError"), 4), Failed("ZeroDivisionError")
    ),
    "a malformed call takes a slot": Case(
        "X1", (TOOK_1,), (Malformed("alloc", "float size"), Failed("TypeError"), 3), 2
    ),
    "a slot is missing from the start": Case(
        "A2", (), (Malformed("alloc", "float size"), Failed("TypeError"), 4), 3, counts=False
    ),
    "a failed alloc takes slots": Case("X4", (TOOK_1,), TOO_MUCH, 2),
    "a failed alloc merges": Case(
        "X4", (TOOK_1, GAVE_1, (Alloc(9), NoRoom(), 4)), (Alloc(1), slots(2), 3), slots(1)
    ),
    "a group in a group is accepted": Case("A6", (TOOK_1, OPENED), (BeginGroup(), TWICE_OPEN, 3), Done()),
    "a group cannot be opened": Case("A6", (TOOK_1,), OPENED, TWICE_OPEN),
    "an end without a group is accepted": Case("A6", (), (EndGroup(), TWICE_OPEN, 4), Done()),
    "a group cannot be closed": Case("A6", (TOOK_1, OPENED), (EndGroup(), Done(), 3), TWICE_OPEN),
    "a group closes and frees nothing": Case(
        "A6", (TOOK_1, OPENED, (GAVE_1[0], Done(), 3)), (EndGroup(), Done(), 4), 3
    ),
    "clear fails": Case("X7", (TOOK_1,), (Clear(), Done(), 4), Failed("RuntimeError")),
    "clear leaves a slot behind": Case("X7", (TOOK_1,), (Clear(), Done(), 4), 3),
    "clear leaves a page twice": Case("X7", (TOOK_2, (Clear(), Done(), 4)), TOOK_2, slots(1, 1)),
    "clear leaves another order": Case("X7", (TOOK_1, (Clear(), Done(), 4)), TOOK_1, slots(4)),
}

WINDOW = f"{EVERYTHING} swa"
TOOK_12 = (Alloc(2), slots(1, 2, swa=(1, 2)), (2, 1))
HALF_1_WENT = (FreeSWA((Span(1, 0, 1),)), Done(), (2, 2))
MOVED_2_TO_1 = (MoveSWA((Span(1, 1, 2),), (Span(1, 0, 1),)), Done(), (2, 2))
BOTH_WENT = (Free((Span(1, 0, 2),)), Done(), (4, 3))


def moved(source: tuple[int, ...], target: tuple[int, ...], error: str = "OwnershipError") -> Done_:
    return MoveSWA(literal(*source), literal(*target)), Failed(error), (2, 2)


WINDOW_CASES = {
    "no half": Case("A7", (), TOOK_12, slots(1, 2)),
    "padding as a half": Case("A7", (), TOOK_12, slots(1, 2, swa=(1, 0))),
    "a half for two": Case("A7", (), TOOK_12, slots(1, 2, swa=(1, 1))),
    "a half too many": Case("A7", (), TOOK_12, slots(1, 2, swa=(1, 2, 3))),
    "a half that is held": Case("A7", (TOOK_12,), (Alloc(1), slots(3, swa=(3,)), (1, 0)), slots(3, swa=(2,))),
    "a half beyond the end": Case("A7", (), TOOK_12, slots(1, 2, swa=(1, 4))),
    "slots without room for their halves": Case(
        "A7",
        (TOOK_12,),
        (Alloc(2), NoRoom(), (2, 1)),
        slots(3, 4, swa=(3, 1)),
        counts=False,
    ),
    "a half out of its turn": Case("A4", (), TOOK_12, slots(1, 2, swa=(2, 1))),
    "a failed alloc takes full slots": Case("X4", (TOOK_12,), (Alloc(2), NoRoom(), (2, 1)), (0, 1)),
    "clear leaves a half behind": Case("X7", (TOOK_12,), (Clear(), Done(), (4, 3)), (4, 2)),
    "a half is lost": Case("A7", (TOOK_12,), BOTH_WENT, (4, 2)),
    "half of a half is kept": Case("A7", (TOOK_12,), HALF_1_WENT, (2, 1)),
    "a half takes its slot along": Case("A7", (TOOK_12,), HALF_1_WENT, (3, 2)),
    "a good free of a half is refused": Case("A7", (TOOK_12,), HALF_1_WENT, NOT_OWNED),
    "a half that is gone goes again": Case(
        "A7", (TOOK_12, HALF_1_WENT), (FreeSWA(literal(1)), NOT_OWNED, (2, 2)), Done()
    ),
    "the half of a free slot goes": Case("A5", (), (FreeSWA(literal(1)), NOT_OWNED, (4, 3)), Done()),
    "a good move is refused": Case("A7", (TOOK_12, HALF_1_WENT), MOVED_2_TO_1, NOT_OWNED),
    "a move frees": Case("A7", (TOOK_12, HALF_1_WENT), MOVED_2_TO_1, (2, 3)),
    "a half moves to one that has one": Case("A7", (TOOK_12, HALF_1_WENT), moved((2,), (2,)), Done()),
    "no half moves": Case("A7", (TOOK_12, HALF_1_WENT), moved((1,), (1,)), Done()),
    "a half moves from a free slot": Case("A7", (TOOK_12, HALF_1_WENT), moved((3,), (1,)), Done()),
    "a half moves to a free slot": Case("A7", (TOOK_12, HALF_1_WENT), moved((2,), (3,)), Done()),
    "a half moves to nowhere": Case("A7", (TOOK_12, HALF_1_WENT), moved((2,), (), "ValueError"), Done()),
    "a refused move moves": Case("X1", (TOOK_12, HALF_1_WENT), moved((1,), (1,)), (2, 1)),
    "another half is read": Case(
        "A7", (TOOK_12,), (ReadHalves(literal(1, 2)), slots(swa=(1, 2)), (2, 1)), slots(swa=(1, 3))
    ),
    "a half that is gone is read": Case(
        "A7", (TOOK_12, HALF_1_WENT), (ReadHalves(literal(1)), slots(swa=(0,)), (2, 2)), slots(swa=(1,))
    ),
    "a half outside the pool is read": Case(
        "X1", (TOOK_12,), (ReadHalves(literal(1, 5)), NOT_OWNED, (2, 1)), slots(swa=(1, 0))
    ),
    "a half before the pool is read": Case(
        "X1", (TOOK_12,), (ReadHalves(literal(-1)), NOT_OWNED, (2, 1)), slots(swa=(0,))
    ),
}
CASES = {**TOKEN_CASES, **WINDOW_CASES}
for case in WINDOW_CASES.values():
    case.claims = WINDOW


def judge_of(case: Case) -> Judge:
    return judge_by(header(case.claims, case.page_size))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_spoiled_outcome_breaks_the_law_it_is_about(case: Case) -> None:
    """A1-A7, X1, X4, X7: the same program, with one outcome that no correct allocator has."""
    judge = judge_of(case)
    step = play(judge, *case.before)
    operation, result, free = case.last
    spoiled = (case.spoiled, free) if isinstance(case.spoiled, Result) else (result, case.spoiled)
    with pytest.raises(InvariantViolation) as caught:
        judge.judge(step, operation, outcome(judge, *spoiled))
    assert caught.value.law == case.law


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_good_outcome_counts_as_a_test_of_the_law(case: Case) -> None:
    """A1-A7, X1, X4, X7: what is never counted would stay unknown."""
    judge = judge_of(case)
    step = play(judge, *case.before)
    operation, result, free = case.last
    before = judge.evidence.exercised[case.law]
    judge.judge(step, operation, outcome(judge, result, free))
    assert (judge.evidence.exercised[case.law] > before) == case.counts


def test_halves_follow_their_slots() -> None:
    """A7: a half that went early, a half that moved, and a free of what is left of both."""
    judge = judge_by(header(WINDOW))
    play(
        judge,
        TOOK_12,
        HALF_1_WENT,
        MOVED_2_TO_1,
        (ReadHalves((Span(1, 0, 2), Span(0, 0, 1))), slots(swa=(2, 0, 0)), (2, 2)),
    )
    model = model_of(judge)
    assert model.window_pool is not None
    assert (model.window_pool.alive, model.window_pool.gone) == ([1], [2])
    judge.judge(5, BOTH_WENT[0], outcome(judge, *BOTH_WENT[1:]))
    assert (model.full.young, model.window_pool.swa.young, model.window_pool.half) == ({1, 2}, {1, 2}, {})


def test_halves_under_transfer_wait_wherever_they_moved() -> None:
    """A2, A7: a transfer holds the half, and not the slot before it."""
    judge = judge_by(header(WINDOW + " transfers"))
    play(
        judge,
        TOOK_12,
        (BeginTransfer((Span(1, 1, 2),)), Done(), (2, 1)),
        HALF_1_WENT,
        MOVED_2_TO_1,
        (BOTH_WENT[0], Done(), (3, 2)),
        (EndTransfer(2), Done(), (4, 3)),
    )
    assert {"halves move under transfer", "pages are freed under transfer"} <= judge.evidence.reached.keys()
    assert "halves are freed under transfer" not in judge.evidence.reached


def test_transfers_reach_their_coverage_goals() -> None:
    """A2: each state that a search is to reach."""
    judge = judge_by(header())
    everything = (Span(1, 0, 4),)
    play(
        judge,
        TOOK_ALL,
        (BeginTransfer((Span(1, 0, 1),)), Done(), 0),
        (BeginTransfer(everything), Done(), 0),
        (BeginGroup(), Done(), 0),
        (Free((Span(1, 0, 3),)), Done(), 0),
        (EndTransfer(3), Done(), 0),
        (EndGroup(), Done(), 2),
        (Alloc(3), NoRoom(), 2),
        (Clear(), Done(), 4),
    )
    assert judge.evidence.reached.keys() >= {
        *("a page is in two transfers", "every page is under transfer"),
        *("pages are freed under transfer", "pages are freed under transfer inside a group"),
        *("a transfer ends before its pages are freed", "a transfer ends after its pages were freed"),
        *("a freed page waits for another transfer", "a transfer ends inside a group"),
        *("an alloc fails for pages under transfer", "a clear ends a transfer"),
    }


def test_paged_halves_keep_their_place_in_the_page() -> None:
    """A7: page 1's half is window page 1; slot 6 of page 1 has slot 6 behind it."""
    judge = judge_by(header(WINDOW, page_size=4))
    taken = slots(4, 5, 6, 7, 8, 9, swa=(4, 5, 6, 7, 8, 9))
    read = slots(swa=(6, 11, 0))
    play(judge, (Alloc(6), taken, (2, 1)), (ReadHalves(literal(6, 11, 12)), read, (2, 1)))
    assert judge.evidence.exercised["A7"]


def test_an_order_counts_as_kept_after_a_failure_only() -> None:
    """X4: the same pages, before and after an alloc that failed."""
    judge, kept = judge_by(header()), "an alloc fails and the order stays"
    step = play(judge, TOOK_1)
    assert kept not in judge.evidence.reached
    for operation, result, free in (TOO_MUCH, (Alloc(1), slots(2), 2)):
        judge.judge(step, operation, outcome(judge, result, free))
        step += 1
    assert kept in judge.evidence.reached


def test_an_order_that_nobody_claims_is_not_judged() -> None:
    """A4 needs merges: without it any free page will do, and nothing is counted."""
    judge = judge_by(header("pool"))
    play(judge, (Alloc(2), slots(4, 2), 2), (Free((Span(1, 0, 1),)), Done(), 3), (Alloc(1), slots(4), 2))
    assert judge.evidence.exercised["A4"] == 0


def test_an_unsorted_choice_among_all_free_pages_is_no_test() -> None:
    """A4: where every free page is old, or all are needed, nothing could have gone wrong."""
    judge = judge_by(header(UNSORTED))
    play(judge, (Alloc(1), slots(3), 3), GAVE_1, (Alloc(4), slots(3, 1, 4, 2), 0))
    assert judge.evidence.exercised["A4"] == 0


def test_after_a_merge_an_old_failure_is_no_longer_blamed() -> None:
    """X4: what it could have done to the order is undone by a merge of everything."""
    judge = judge_by(header())
    step = play(judge, TOOK_1, TOO_MUCH, GAVE_1, (Merge(), Done(), 4))
    with pytest.raises(InvariantViolation, match=r"^A4: pages of an .*: expected \[1\], observed \[2\]$"):
        judge.judge(step, Alloc(1), outcome(judge, slots(2), 3))


def test_an_alloc_that_needs_a_merge_clears_the_suspicion_too() -> None:
    """X4: the young pages joined the old ones by need."""
    judge = judge_by(header())
    step = play(
        judge,
        TOOK_1,
        GAVE_1,
        (Alloc(9), NoRoom(), 4),
        (Alloc(4), slots(1, 2, 3, 4), 0),
        (Free((Span(4, 0, 2),)), Done(), 2),
    )
    with pytest.raises(InvariantViolation, match="A4"):
        judge.judge(step, Alloc(1), outcome(judge, slots(2), 1))


def test_what_came_back_goes_lowest_first() -> None:
    """A4: one after the other, before what was never handed out."""
    judge = judge_by(header())
    back = (Free((Span(1, 0, 2),)), Done(), 3), (Merge(), Done(), 3)
    step = play(judge, TOOK_2, (Alloc(1), slots(3), 1), *back, (Alloc(1), slots(1), 2))
    judge.judge(step, Alloc(1), outcome(judge, slots(2), 1))
    with pytest.raises(InvariantViolation, match="A2"):
        judge.judge(step + 1, Alloc(1), outcome(judge, slots(2), 0))


def test_sizes_that_cannot_be_told_are_not_judged() -> None:
    """An adapter leaves out what it cannot tell."""
    judge = judge_by(header())
    judge.judge(1, Alloc(1), Outcome(slots(1)))
    assert judge.evidence.exercised["A2"] == 1  # the pages themselves, and no size


def test_what_is_not_supported_is_passed_over() -> None:
    """Nothing was done, so nothing is followed."""
    judge = judge_by(header("pool"))
    play(judge, TOOK_1, (BeginGroup(), Unsupported("begin_group"), 3), GAVE_1)
    assert model_of(judge).full.free_count == 4


@pytest.mark.parametrize(
    ("claims", "operation"),
    [
        (EVERYTHING, Match(PrefixKey((1,)))),
        (EVERYTHING, Alloc(-1)),
        (EVERYTHING, Free((Span(7, 0, 1),))),
        (EVERYTHING, Free((Span(1, 0, 2),))),
        (EVERYTHING, Free((Span(1, 0, 1),), "float32")),
        (EVERYTHING, FreeSWA((Span(1, 0, 1),))),
        (EVERYTHING, MoveSWA((Span(1, 0, 1),), ())),
        (EVERYTHING, ReadHalves((Span(1, 0, 1),))),
        ("pool", Free(literal(2))),
        ("pool", Malformed("free", "None")),
        ("pool", BeginGroup()),
        ("pool", EndGroup()),
        ("pool groups", EndGroup()),
        ("pool", BeginTransfer((Span(1, 0, 1),))),
        (EVERYTHING, EndTransfer(1)),
    ],
)
def test_an_operation_without_meaning_is_the_programs_fault(claims: str, operation: Operation) -> None:
    """Nothing was judged, and nothing is followed."""
    judge = judge_by(header(claims))
    step = play(judge, TOOK_1)
    seen = judge.evidence.exercised.copy()
    with pytest.raises(ProgramError):
        judge.judge(step, operation, outcome(judge, Done(), 3))
    assert (judge.evidence.exercised, model_of(judge).full.held) == (seen, {1})


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (Header("x", "slots", {"page_size": 1, "pages": 4}, ("merges",)), "does not claim a pool"),
        (Header("x", "slots", {"page_size": 0, "pages": 4}, ("pool",)), "page_size is 0"),
        (Header("x", "slots", {"page_size": 1}, ("pool",)), "has no pages"),
        (Header("x", "slots", {"page_size": 1, "pages": 4}, ("pool", "swa")), "has no swa_pages"),
    ],
)
def test_a_header_that_says_too_little_is_refused(made: Header, reason: str) -> None:
    """The judge knows the configuration from the header alone."""
    with pytest.raises(ProgramError, match=reason):
        judge_by(made)


def test_a_group_in_a_group_has_no_meaning_where_none_is_refused() -> None:
    """A6: whose groups are undefined when misused is not asked to misuse them."""
    judge = judge_by(header("pool groups"))
    judge.judge(1, BeginGroup(), outcome(judge, Done(), 4))
    with pytest.raises(ProgramError, match="a group in a group must be refused"):
        judge.judge(2, BeginGroup(), outcome(judge, Done(), 4))


# -- When the less obvious coverage goals of slot allocators count as met ------------------------------------


def met(claims: str, steps: list[tuple[Operation, Result]], page_size: int = 1, **config: int) -> set[str]:
    """Coverage goals that the last of some operations on a pool of three pages meets and none before it."""
    sizes = {"page_size": page_size, "pages": 3, "swa_pages": 3, **config}
    judge = judge_by(Header("hand-made", "slots", sizes, tuple(claims.split())))
    before: set[str] = set()
    for number, (operation, result) in enumerate(steps, 1):
        before = set(judge.evidence.reached)
        judge.judge(number, operation, Outcome(result))
    return set(judge.evidence.reached) - before


def took(*pages: int, size: int = 1, swa: bool = False) -> tuple[Operation, Result]:
    given = tuple(range(pages[0] * size, (pages[-1] + 1) * size)) if pages else ()
    return Alloc(len(given)), Slots(given, given if swa else ())


def freed(*numbers: int) -> tuple[Operation, Result]:
    return Free(literal(*numbers)), Done()


def test_what_an_allocation_reaches() -> None:
    """A3, A4: nothing, freed pages that wait, a merge by need, an empty pool."""
    claims = "pool merges groups"
    begun = [took(1, 2), freed(1)]
    assert met(claims, [took()]) == {"nothing is asked for"}
    assert met(claims, [*begun, took(3)]) == {"freed pages wait while older ones suffice"}
    assert met(claims, [*begun, (Alloc(2), slots(1, 3))]) == {"need merges", "the pool is exhausted"}
    opened = (BeginGroup(), Done())
    assert met(claims, [opened, took()]) == {"nothing is asked for"}
    assert met(claims, [opened, took(1)]) == {"pages are handed out while a group is open"}


@pytest.mark.parametrize(
    ("pages", "swa_pages", "first"), [(3, 2, {"window"}), (2, 3, {"full"}), (2, 2, set())]
)
def test_which_pool_runs_out_first(pages: int, swa_pages: int, first: set[str]) -> None:
    """A7: an allocation that takes all of the smaller pool."""
    found = met("pool swa", [took(1, 2, swa=True)], pages=pages, swa_pages=swa_pages)
    assert found == {"the pool is exhausted", *(f"the {name} pool runs out first" for name in first)}


PART = "part of an allocation is freed"
ONE = "one slot frees its page"


@pytest.mark.parametrize(
    ("numbers", "found"),
    [
        ((), {"nothing is freed"}),
        ((12, 13), set()),
        ((4, 8, 12), {ONE, "the last page in somebody's hands is freed"}),
        ((4, 5), {PART}),
        ((4, 9, 8), set()),
        ((5,), {PART, ONE}),
        ((12, 13, 12), {"slots of a page are named twice"}),
        ((8, 9, 10, 11), {PART}),
        ((10, 11), {PART, "a slot beyond those asked for frees its page"}),
    ],
)
def test_what_a_free_reaches(numbers: tuple[int, ...], found: set[str]) -> None:
    """A5: how pages are named, and what is left of their allocation: slots 4 to 9, and those of page 3."""
    begun = [(Alloc(6), Slots(tuple(range(4, 10)))), took(3, size=4)]
    assert met("pool", [*begun, freed(*numbers)], page_size=4) == found


def test_pages_of_one_token_are_named_by_their_slot() -> None:
    """A5: nothing is worth reaching in that; with pages of two there is."""
    assert met("pool", [took(1, 2), freed(1, 2)]) == {"the last page in somebody's hands is freed"}
    assert ONE in met("pool", [took(1, 2, size=2), freed(2)], page_size=2)


def test_a_free_in_a_group_and_the_last_one_are_noticed() -> None:
    """A2, A6: pages of an earlier call wait in the group; nothing else is in anybody's hands."""
    begun = [took(1, 2, 3), (BeginGroup(), Done()), freed(1)]
    collected = "a group collects pages of several calls"
    assert collected not in met("pool groups", begun)
    assert collected in met("pool groups", [*begun, freed(2)])
    assert collected not in met("pool groups", [*begun, freed()])
    assert "the last page in somebody's hands is freed" in met("pool groups", [*begun, freed(2), freed(3)])


def test_a_free_of_what_is_left_of_both() -> None:
    """A7: the half went before."""
    begun = [took(1, 2, 3, swa=True), (FreeSWA(literal(3)), Done())]
    both = "a free returns what is left of both"
    assert both in met("pool swa", [*begun, freed(3)])
    assert both not in met("pool swa", [*begun, freed(1)])
