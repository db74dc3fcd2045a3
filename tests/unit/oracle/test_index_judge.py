"""Indexes of who has which blocks: what is owed, what may be forgotten, and whose law is broken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from pymllm.errors import InvariantViolation, ProgramError
from pymllm.history.files import Header
from pymllm.history.operations import (
    ClearWorker,
    DropWorker,
    FindBlocks,
    Inspect,
    Operation,
    Rebuild,
    RemoveBlocks,
    Reset,
    StoreBlocks,
)
from pymllm.history.outcomes import (
    Done,
    Failed,
    Indexed,
    IndexedBlock,
    Leading,
    Missed,
    NoRoom,
    NotThere,
    Outcome,
    Result,
)
from pymllm.oracle.judge import Judge, make_judge
from pymllm.oracle.models.block_index import IndexModel

CLAIMS = ("early_exit", "inspect", "refusals")
EXACT = (*CLAIMS, "exact_removals")
CHAIN = ((101, 1), (102, 2), (103, 3))
"""Three blocks of one sequence: 1, 2, 3."""
ALL = FindBlocks((1, 2, 3))

Program = Sequence[tuple[Operation, Result]]
STORED: Program = [(StoreBlocks(1, CHAIN), Done())]
CUT_OFF: Program = [*STORED, (RemoveBlocks(1, (102,)), Done())]
CLOSED: Program = [*CUT_OFF, (StoreBlocks(1, CHAIN[1:2], 101), Done())]
TWO: Program = [*STORED, (StoreBlocks(2, CHAIN[:2]), Done())]


def found(**workers: int) -> Leading:
    """Name workers as ``w1``."""
    return Leading(tuple((int(name[1:]), count) for name, count in workers.items()))


def shown(*hashes: int, worker: int = 1) -> Indexed:
    """Show blocks of the chain."""
    return Indexed(tuple(IndexedBlock(worker, it, it - 100, None if it == 101 else it - 1) for it in hashes))


def play(program: Program, claims: Sequence[str] = CLAIMS, **config: bool) -> Judge[IndexModel]:
    """Judge a program that breaks nothing."""
    judge: Judge[IndexModel] = make_judge(Header("x", "index", {**config}, tuple(claims)))
    for step, (operation, result) in enumerate(program, 1):
        judge.judge(step, operation, Outcome(result))
    return judge


def broken_by(program: Program, claims: Sequence[str] = CLAIMS, **config: bool) -> str | None:
    """Return the law that the last outcome of a program breaks, if it breaks one."""
    *before, last = program
    judge = play(before, claims, **config)
    try:
        judge.judge(len(program), last[0], Outcome(last[1]))
    except InvariantViolation as violation:
        return violation.law
    return None


# -- what is found -------------------------------------------------------------------------------------------


def test_what_was_stored_is_found_from_the_front_on() -> None:
    """I1: by the tokens, of each worker as far as it goes, and of nobody else."""
    program: Program = [
        *TWO,
        (ALL, found(w1=3, w2=2)),
        (FindBlocks((1, 9, 3)), found(w1=1, w2=1)),
        (FindBlocks((2, 3)), found()),
        (FindBlocks(()), found()),
        (Inspect(), Indexed((*shown(101, 102, 103).blocks, *shown(101, 102, worker=2).blocks))),
    ]
    evidence = play(program).evidence
    assert evidence.exercised.keys() >= {"I1", "I2", "I9"}
    assert "several workers have different parts of a sequence" in evidence.reached


@pytest.mark.parametrize(
    ("program", "answer", "law"),
    [
        (STORED, found(w1=2), "I1"),
        (STORED, found(w1=4), "I1"),
        (STORED, found(), "I1"),
        (STORED, found(w1=3, w7=1), "I1"),
        (STORED, found(w1=3, w7=0), "I1"),
        (STORED, Leading(((1, 3), (1, 3))), "I1"),
        (TWO, Leading(((2, 2), (1, 3))), "I1"),
        (STORED, NoRoom(), "I1"),
        (STORED, Done(), "I1"),
        (TWO, found(w1=2, w2=2), "I2"),
        (TWO, found(w1=3, w2=3), "I1"),
        ([*TWO, (RemoveBlocks(2, (102,)), Done())], found(w1=1, w2=1), "I2"),
        ([*TWO, (RemoveBlocks(2, (102,)), Done())], found(w1=3, w2=2), "I5"),
        ([*TWO, (ClearWorker(2), Done())], found(w1=3, w2=1), "I7"),
        ([*TWO, (DropWorker(2), Done())], found(w1=3, w2=1), "I7"),
        ([*TWO, (DropWorker(2), Done())], found(), "I2"),
        ([*STORED, (Reset(), Done())], found(w1=1), "X7"),
        ([*STORED, (Rebuild(), Done())], found(w1=2), "I9"),
        ([*STORED, (StoreBlocks(1, CHAIN[:1]), Done())], found(w1=1), "I4"),
        ([*STORED, (RemoveBlocks(1, (7,)), NotThere())], found(w1=1), "I4"),
        ([*STORED, (StoreBlocks(1, ((7, 7), (7, 7))), Failed("ValueError"))], found(), "X1"),
        ([*STORED, (StoreBlocks(1, ((7, 7),), 7), Failed("ValueError"))], found(w7=1), "X1"),
        ([*STORED, (ALL, found(w1=3))], found(w1=2), "X8"),
        ([(StoreBlocks(1, CHAIN[1:], 101), NotThere())], found(w1=1), "I3"),
        ([(StoreBlocks(1, CHAIN[1:], 101), Done())], found(w1=1), "I3"),
    ],
)
def test_a_wrong_answer_breaks_the_law_of_what_came_before(
    program: Program, answer: Result, law: str
) -> None:
    """The last event of the worker, that of another one, a refusal, or the same search before."""
    assert broken_by([*program, (ALL, answer)]) == law


def test_workers_may_have_hashes_of_their_own() -> None:
    """I1: one sequence, two hashes, and neither event is about the other's."""
    own: Program = [*STORED, (StoreBlocks(2, ((201, 1), (202, 2))), Done())]
    play([*own, (RemoveBlocks(2, (202,)), Done()), (ALL, found(w1=3, w2=1))], own_hashes=True)
    with pytest.raises(ProgramError, match=r"hash 201 is .*, and 101 is, too; a hash names one"):
        play(own)


@pytest.mark.parametrize(
    "store",
    [
        StoreBlocks(1, ((101, 2),)),
        StoreBlocks(1, ((103, 3),), 101),
        StoreBlocks(1, ((104, 2),), 101),
        StoreBlocks(1, ((-1, 2),)),
        StoreBlocks(1, ((1, 2**63),)),
        StoreBlocks(1, (), -1),
        StoreBlocks(-1, ()),
        ClearWorker(-1),
        FindBlocks((-1,)),
        RemoveBlocks(1, (2**63,)),
    ],
)
def test_a_program_that_names_nothing_clearly_gets_no_verdict(store: Operation) -> None:
    """A hash with two places, a place with two hashes, and what is no hash."""
    with pytest.raises(ProgramError):
        play([*STORED, (store, Done())])


def test_no_block_stands_below_itself() -> None:
    """However far below: a program with a circle of parents gets no verdict."""
    lost: Program = [
        (StoreBlocks(1, ((6, 6),), 5), NotThere()),
        (StoreBlocks(1, ((7, 7),), 6), NotThere()),
    ]
    play([*lost, (StoreBlocks(1, ((5, 5),), 4), NotThere())])
    play([*lost, (StoreBlocks(1, ((5, 5),)), Done())])
    with pytest.raises(ProgramError, match="hash 5 would be below itself"):
        play([*lost, (StoreBlocks(1, ((5, 5),), 7), NotThere())])


# -- events --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "law"),
    [
        ([(StoreBlocks(1, CHAIN), NotThere())], "I1"),
        ([*STORED, (StoreBlocks(1, ((104, 4),), 103), NotThere())], "I1"),
        ([*STORED, (RemoveBlocks(1, (102,)), NotThere())], "I5"),
        ([(StoreBlocks(1, CHAIN[1:], 101), Failed("KeyError"))], "I3"),
        ([(StoreBlocks(1, CHAIN[1:], 101), NoRoom())], "I3"),
        ([*STORED, (RemoveBlocks(1, (102, 7)), Failed("KeyError"))], "I4"),
        ([(ClearWorker(1), NotThere())], "I7"),
        ([(DropWorker(1), Failed("KeyError"))], "I7"),
        ([(Rebuild(), Failed("KeyError"))], "I9"),
        ([(Reset(), NoRoom())], "X7"),
        ([(Inspect(), Done())], "I9"),
        ([(StoreBlocks(1, CHAIN, 103), Done())], "X1"),
        ([(StoreBlocks(1, CHAIN, 103), NotThere())], "X1"),
    ],
)
def test_a_wrong_answer_to_an_event_breaks_its_law(program: Program, law: str) -> None:
    """An event is not refused if its blocks are there, and missing blocks are told or ignored."""
    assert broken_by(program) == law


@pytest.mark.parametrize("answer", [Done(), NotThere()])
def test_what_an_index_need_not_know_is_told_or_ignored(answer: Result) -> None:
    """I3 and I4: a parent that is not there, hashes that are not, or are named twice."""
    program: Program = [
        *STORED,
        (StoreBlocks(2, CHAIN[1:], 101), answer),
        (ALL, found(w1=3)),
        (RemoveBlocks(1, (7,)), answer),
        (ALL, found(w1=3)),
        (RemoveBlocks(1, (103, 103)), answer),
        (ALL, found(w1=2)),
        (RemoveBlocks(3, (101,)), answer),
        (ALL, found(w1=2)),
    ]
    evidence = play(program).evidence
    assert evidence.exercised.keys() >= {"I2", "I3", "I4", "I5"}
    assert evidence.reached.keys() >= {
        "blocks are stored below a parent that is not there",
        "a block is removed that is not there",
    }


# -- what is cut off -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "counts", "is_exact"),
    [
        (CUT_OFF, {1}, False),
        (CUT_OFF, {1}, True),
        (CLOSED, {2, 3}, False),
        (CLOSED, {3}, True),
        ([*CUT_OFF, (StoreBlocks(1, CHAIN[1:], 101), Done())], {3}, False),
        ([*CLOSED, (StoreBlocks(1, CHAIN[2:], 102), Done())], {3}, False),
        ([*CLOSED, (ALL, found(w1=3)), (ClearWorker(2), Done())], {3}, False),
        ([*CLOSED, (ALL, found(w1=2)), (ClearWorker(2), Done())], {2}, False),
        ([*CLOSED, (FindBlocks((1, 2, 3), early=True), found(w1=2)), (Rebuild(), Done())], {2, 3}, False),
        ([*CUT_OFF, (RemoveBlocks(1, (103,)), Done()), *CLOSED[2:]], {2}, False),
        ([*CUT_OFF, (RemoveBlocks(1, (103,)), NotThere()), *CLOSED[2:]], {2}, False),
        ([*CUT_OFF, (RemoveBlocks(1, (103,)), Done()), *CLOSED[2:]], {2}, True),
        ([*CUT_OFF, (ClearWorker(1), Done()), (StoreBlocks(1, CHAIN[:2]), Done())], {2}, True),
    ],
)
def test_what_is_cut_off_is_found_again_or_not(program: Program, counts: set[int], is_exact: bool) -> None:
    """I5: between what is certain and what events say; I6: what they say; and no search takes it back."""
    claims = EXACT if is_exact else CLAIMS
    answers = {count: broken_by([*program, (ALL, found(w1=count))], claims) for count in range(1, 5)}
    assert {count for count, law in answers.items() if law is None} == counts


@pytest.mark.parametrize("answer", [Done(), NotThere()])
def test_a_store_below_what_is_cut_off_may_be_taken_or_not(answer: Result) -> None:
    """I3: three to four blocks are told afterwards, of who took it, and I6 leaves no choice."""
    below = StoreBlocks(1, ((104, 4),), 103)
    program: Program = [*CUT_OFF, (below, answer), (StoreBlocks(1, CHAIN[1:], 101), Done())]
    longer = FindBlocks((1, 2, 3, 4))
    reached = play(program).evidence.reached
    assert "blocks are stored below a block that is cut off" in reached
    assert "a gap is closed" in reached
    assert broken_by([*program, (longer, found(w1=3))]) is None
    assert broken_by([*program, (longer, found(w1=4))]) == (None if answer == Done() else "I1")
    assert broken_by([*CUT_OFF, (below, answer)], EXACT) == (None if answer == Done() else "I1")


def test_who_forgets_what_is_cut_off_and_claims_not_to_breaks_i6() -> None:
    """In a search once the gap is closed, and before that where it is shown."""
    assert broken_by([*CLOSED, (ALL, found(w1=2))], EXACT) == "I6"
    assert broken_by([*CUT_OFF, (Inspect(), shown(101))], EXACT) == "I6"
    assert broken_by([*CUT_OFF, (Inspect(), shown(101, 103))], EXACT) is None
    assert broken_by([*CLOSED, (ALL, found(w1=1))], EXACT) == "I6"
    reached = play([*CUT_OFF, (RemoveBlocks(1, (103,)), Done())], EXACT).evidence.reached
    assert reached.keys() >= {"an inner block is removed", "a block is removed that is cut off"}


# -- early answers, and what is shown ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "law"),
    [
        (found(w1=3, w2=2), None),
        (found(w1=3, w2=1), None),
        (found(w1=2, w2=1), None),
        (found(w1=1, w2=1), "I8"),
        (found(w1=2, w2=2), "I8"),
        (found(w1=4, w2=2), "I8"),
        (found(w1=3), "I8"),
        (found(w1=3, w2=0), "I8"),
        (found(w1=3, w2=2, w7=0), "I1"),
        (found(w1=3, w2=2, w3=1), "I8"),
    ],
)
def test_an_early_answer_names_the_best(answer: Leading, law: str | None) -> None:
    """I8: all of them, none with too much, and nobody as good who is not."""
    early = FindBlocks((1, 2, 3), early=True)
    assert broken_by([*TWO, (early, answer)]) == law
    assert "an early answer is short" in play([*TWO, (early, found(w1=2, w2=1))]).evidence.reached
    assert broken_by([(early, found())]) is None


@pytest.mark.parametrize(
    ("program", "blocks", "law"),
    [
        (STORED, shown(101, 102), "I9"),
        (STORED, shown(101, 102, 103, 103), "I9"),
        (STORED, Indexed((*shown(101, 102).blocks, IndexedBlock(1, 103, 3, 101))), "I9"),
        (STORED, Indexed((*shown(101, 102, 103).blocks, IndexedBlock(1, 9, 9))), "I9"),
        (STORED, Indexed((*shown(101, 102, 103).blocks, *shown(101, worker=2).blocks)), "I9"),
        (STORED, shown(103, 102, 101), None),
        (CUT_OFF, shown(101, 103), None),
        (CUT_OFF, shown(101), None),
        (CUT_OFF, shown(101, 102), "I9"),
        ([*CUT_OFF, (RemoveBlocks(1, (103,)), Done())], shown(101, 103), "I5"),
        ([*CUT_OFF, (ClearWorker(1), Done())], shown(103), "I7"),
        ([(StoreBlocks(1, ((7, 7), (7, 7))), Failed("ValueError"))], Indexed((IndexedBlock(1, 7, 7),)), "X1"),
    ],
)
def test_what_is_shown_is_what_is_there(program: Program, blocks: Indexed, law: str | None) -> None:
    """I9, or the law of the event where no search would have told."""
    assert broken_by([*program, (Inspect(), blocks)]) == law


def test_what_an_index_is_asked_to_reach_can_be_reached() -> None:
    """Goals of clears, drops, resets and of an index that is built again."""
    program: Program = [
        *CUT_OFF,
        (Rebuild(), Done()),
        (ClearWorker(1), Done()),
        (ClearWorker(5), Done()),
        *STORED,
        (DropWorker(1), Done()),
        *TWO,
        (Reset(), Done()),
        (Reset(), Done()),
    ]
    reached = play(program).evidence.reached
    assert reached == {
        "an inner block is removed": 1,
        "an index with a gap is built again": 1,
        "a worker with blocks is cleared": 1,
        "a worker with blocks is dropped": 1,
        "blocks are stored that another worker has": 1,
        "a reset takes blocks from workers": 1,
    }


# -- copies, groups, media, namespaces -----------------------------------------------------------------------

COUNTED = (*EXACT, "counts_copies")
FULL = (*COUNTED, "layer_groups", "media", "extra_key", "lora", "event_numbers")
TWICE: Program = [*STORED, *STORED]


def removed(*hashes: int, **more: Any) -> tuple[Operation, Result]:
    """Remove blocks that are there."""
    return RemoveBlocks(1, hashes, **more), Done()


def test_a_removal_takes_one_copy_of_who_counts_and_all_of_others() -> None:
    """I10; the last copy is gone by I5, and a removal of more than there are takes all."""
    once: Program = [*TWICE, removed(103)]
    evidence = play([*once, (ALL, found(w1=3))], COUNTED).evidence
    assert "I10" in evidence.exercised
    assert "a copy of a block is removed, and another is left" in evidence.reached
    assert broken_by([*once, (ALL, found(w1=2))], COUNTED) == "I10"
    assert broken_by([*once, (ALL, found(w1=3))], EXACT) == "I5"
    twice: Program = [*once, removed(103)]
    assert broken_by([*twice, (ALL, found(w1=3))], COUNTED) == "I5"
    play([*twice, (RemoveBlocks(1, (103,)), NotThere()), (ALL, found(w1=2))], COUNTED)
    play([*TWICE, (RemoveBlocks(1, (103, 103)), Done()), (ALL, found(w1=2))], COUNTED)
    play([*TWICE, (RemoveBlocks(1, (103, 103, 103)), NotThere()), (ALL, found(w1=2))], COUNTED)


def test_copies_that_may_be_forgotten_may_be_told_or_not() -> None:
    """I5, I10: of what was cut off one copy is sure after the next store, and two may be there."""
    claims = (*CLAIMS, "counts_copies")
    cut: Program = [*STORED, removed(102), (StoreBlocks(1, CHAIN[1:], 101), Done())]
    play([*cut, (ALL, found(w1=3))], claims)
    once: Program = [*cut, removed(103)]
    for count in (2, 3):
        play([*once, (ALL, found(w1=count)), (ALL, found(w1=count))], claims)
    assert broken_by([*once, (ALL, found(w1=1))], claims) == "I5"
    (block,) = shown(103).blocks
    for copies, law in ((1, None), (2, None), (3, "I10")):
        told = Indexed((*shown(101, 102).blocks, replace(block, copies=copies)))
        assert broken_by([*cut, (Inspect(), told)], claims) == law


@pytest.mark.parametrize(
    ("program", "copies", "law"),
    [
        (TWICE, 2, None),
        (TWICE, 1, "I10"),
        (STORED, 2, "I10"),
        ([*TWICE, (Rebuild(), Done())], 1, "I9"),
        ([*TWICE, (StoreBlocks(1, ((7, 7),), 7), Failed("ValueError"))], 1, "X1"),
    ],
)
def test_copies_are_shown(program: Program, copies: int, law: str | None) -> None:
    """I9, I10: as many as removals that it takes."""
    blocks = tuple(replace(block, copies=copies) for block in shown(101, 102, 103).blocks)
    assert broken_by([*program, (Inspect(), Indexed(blocks))], COUNTED) == law


def test_groups_have_blocks_of_their_own() -> None:
    """I11: in answers, in what is shown, and below parents of another group."""
    both: Program = [*STORED, (StoreBlocks(1, CHAIN[:2], group=1), Done())]
    evidence = play(
        [
            *both,
            (FindBlocks((1, 2, 3), group=1), found(w1=2)),
            (ALL, found(w1=3)),
            (StoreBlocks(1, CHAIN[1:], 101, group=2), NotThere()),
            removed(102, group=1),
            (ALL, found(w1=3)),
            (FindBlocks((1, 2, 3), group=1), found(w1=1)),
        ],
        FULL,
    ).evidence
    assert evidence.exercised["I11"]
    assert "a block is removed that another group has" in evidence.reached
    gone: Program = [*both, removed(102, group=1)]
    assert broken_by([*gone, (ALL, found(w1=1))], FULL) == "I11"
    assert broken_by([*gone, (FindBlocks((1, 2, 3), group=1), found(w1=2))], FULL) == "I5"
    first = replace(shown(101).blocks[0], group=1)
    assert broken_by([*gone, (Inspect(), Indexed((first, *shown(101).blocks)))], FULL) == "I11"
    with pytest.raises(ProgramError, match=r"needs the claim layer_groups, which this index does not make"):
        play(both)


def test_media_have_copies_of_their_own() -> None:
    """I12: what leaves one is found while another has it, and a removal names the medium."""
    both: Program = [*STORED, (StoreBlocks(1, CHAIN[2:], 102, medium="CPU"), Done())]
    evidence = play(
        [
            *both,
            removed(103),
            (ALL, found(w1=3)),
            (RemoveBlocks(1, (103,)), NotThere()),
            (ALL, found(w1=3)),
            removed(103, medium="CPU"),
            (ALL, found(w1=2)),
        ],
        FULL,
    ).evidence
    assert evidence.exercised["I12"]
    assert evidence.reached.keys() >= {
        "a block is removed that lies in another medium",
        "a block is removed from a medium in which it is not",
    }
    assert broken_by([*both, removed(103), (ALL, found(w1=2))], FULL) == "I12"
    everything = (*shown(101, 102, 103).blocks, replace(shown(103).blocks[0], medium="CPU"))
    assert broken_by([*both, (Inspect(), Indexed(everything))], FULL) is None
    assert broken_by([*both, (Inspect(), Indexed(everything[:-1]))], FULL) == "I9"
    assert broken_by([*both, removed(103), (Inspect(), Indexed(everything))], FULL) == "I12"
    stray = replace(everything[1], medium="CPU")
    assert broken_by([*both, (Inspect(), Indexed((*everything, stray)))], FULL) == "I12"
    lost: Program = [*both, (StoreBlocks(1, CHAIN[2:], 102, medium="disk"), Done())]
    assert broken_by([*lost, (Inspect(), Indexed(everything))], FULL) == "I9"


def test_a_block_of_two_media_is_forgotten_in_both_or_neither() -> None:
    """I5: a search that found it does not say which medium has it."""
    claims = (*CLAIMS, "media")
    both: Program = [*STORED, (StoreBlocks(1, CHAIN[2:], 102, medium="CPU"), Done())]
    closed: Program = [*both, removed(102), (StoreBlocks(1, CHAIN[1:2], 101), Done())]
    for count in (2, 3):
        play([*closed, (ALL, found(w1=count)), (Rebuild(), Done()), (ALL, found(w1=count))], claims)
    front: Program = [*both, removed(101), (StoreBlocks(1, CHAIN[:1]), Done())]
    for count in (1, 2, 3):
        play([*front, (ALL, found(w1=count))], claims)
    assert (
        broken_by([*closed, (ALL, found(w1=2)), (ClearWorker(2), Done()), (ALL, found(w1=3))], claims) == "I2"
    )


def test_namespaces_have_sequences_of_their_own() -> None:
    """I13: a salt, an adapter; a sequence has one, and a search goes by it."""
    salted: Program = [*STORED, (StoreBlocks(1, ((501, 1), (502, 2)), extra_key="salt"), Done())]
    lora: Program = [*salted, (StoreBlocks(1, ((601, 1),), extra_key=(None, "one")), Done())]
    program: Program = [
        *lora,
        (StoreBlocks(1, ((503, 3),), 502, extra_key="salt"), Done()),
        (ALL, found(w1=3)),
        (FindBlocks((1, 2, 3), extra_key="salt"), found(w1=3)),
        (FindBlocks((1, 2, 3), extra_key="other"), found()),
        (FindBlocks((1, 2, 3), extra_key=(None, "one")), found(w1=1)),
        (FindBlocks((), extra_key="salt"), found()),
    ]
    evidence = play(program, FULL).evidence
    assert evidence.exercised["I13"]
    assert evidence.reached.keys() >= {
        "tokens are stored that another namespace has",
        "tokens are stored that another adapter's namespace has",
    }
    assert broken_by([*salted, (ALL, found(w1=2))], FULL) == "I13"
    lost = StoreBlocks(1, ((703, 3),), 702, extra_key="salt")
    play([(lost, NotThere()), (StoreBlocks(1, ((704, 4),), 703, extra_key="salt"), NotThere())], FULL)
    assert broken_by([*salted, (FindBlocks((1,), extra_key="salt"), found())], FULL) == "I1"
    with pytest.raises(ProgramError, match="hash 502 is of the namespace 'salt', and what is below"):
        play([*salted, (StoreBlocks(1, ((503, 3),), 502), Done())], FULL)
    with pytest.raises(ProgramError, match="needs the claim lora"):
        play(lora, (*CLAIMS, "extra_key"))


# -- numbers -------------------------------------------------------------------------------------------------

NUMBERED: Program = [
    (StoreBlocks(1, CHAIN, number=4), Done()),
    (RemoveBlocks(1, (103,), number=5), Done()),
    (StoreBlocks(1, CHAIN[2:], 102, number=6), Done()),
]


@pytest.mark.parametrize("answer", [Done(), NotThere()])
@pytest.mark.parametrize(
    "event", [StoreBlocks(1, CHAIN, number=4), RemoveBlocks(1, (103,), number=5), ClearWorker(1, 5)]
)
def test_an_event_counts_once(event: Operation, answer: Result) -> None:
    """I14: whatever is told again changes nothing, and no number of copies either."""
    again: Program = [*NUMBERED, (event, answer)]
    evidence = play([*again, (ALL, found(w1=3))], FULL).evidence
    assert evidence.exercised["I14"]
    assert "an event is told again" in evidence.reached
    assert broken_by([*again, (ALL, found(w1=2))], FULL) == "I14"
    assert broken_by([*NUMBERED, (event, Missed(7))], FULL) == "I14"
    twice = tuple(replace(block, copies=2) for block in shown(101, 102, 103).blocks)
    assert broken_by([*again, (Inspect(), Indexed(twice, ((1, 6),)))], FULL) == "I14"
    rebuilt = play([*NUMBERED, (Rebuild(), Done()), (event, answer)], FULL).evidence
    assert "an event is told again in an index that was built anew" in rebuilt.reached


@pytest.mark.parametrize(
    "event", [StoreBlocks(1, CHAIN, number=8), RemoveBlocks(1, (103,), number=9), ClearWorker(1, 8)]
)
def test_a_gap_is_told_and_nothing_is_done(event: Operation) -> None:
    """I15: with the number that has to come next."""
    evidence = play([*NUMBERED, (event, Missed(7)), (ALL, found(w1=3))], FULL).evidence
    assert evidence.exercised["I15"]
    assert "an event is missing before another" in evidence.reached
    for answer in (Done(), NotThere(), Missed(8)):
        assert broken_by([*NUMBERED, (event, answer)], FULL) == "I15"
    assert broken_by([*NUMBERED, (event, Missed(7)), (ALL, found(w1=2))], FULL) == "I15"
    assert broken_by([(event, Missed(0))], FULL) in ("I1", "I4", "I7")


def test_number_0_begins_anew() -> None:
    """I16: nothing of before is there, whatever the event does; other workers have what they had."""
    other: Program = [(StoreBlocks(2, CHAIN, number=0), Done()), *NUMBERED]
    anew: Program = [*other, (StoreBlocks(1, CHAIN[:1], number=0), Done())]
    evidence = play([*anew, (ALL, found(w1=1, w2=3))], FULL).evidence
    assert evidence.exercised["I16"]
    assert "a worker with blocks begins anew" in evidence.reached
    assert broken_by([*anew, (ALL, found(w1=3, w2=3))], FULL) == "I16"
    assert broken_by([*anew, (ALL, found(w1=1))], FULL) == "I2"
    left = Indexed((*shown(101).blocks, *shown(101, 102, 103, worker=2).blocks), ((1, 0), (2, 0)))
    assert broken_by([*anew, (Inspect(), left)], FULL) is None
    for event in (
        StoreBlocks(1, CHAIN[1:], 101, number=0),
        RemoveBlocks(1, (101,), number=0),
        ClearWorker(1, 0),
    ):
        answer = Done() if isinstance(event, ClearWorker) else NotThere()
        empty: Program = [*other, (event, answer)]
        play([*empty, (ALL, found(w2=3)), (StoreBlocks(1, CHAIN[:1], number=1), Done())], FULL)
        law = broken_by([*empty, (ALL, found(w1=2, w2=3))], FULL)
        assert law == ("I7" if isinstance(event, ClearWorker) else "I16")


def test_numbers_go_with_a_dump_and_end_with_a_worker() -> None:
    """I9: dumps of who numbers show the last number; a worker that was dropped or reset has none."""
    told = replace(shown(101, 102, 103), numbers=((1, 6),))
    assert [play(NUMBERED, FULL).model.next_number(worker) for worker in (1, 2)] == [7, 0]
    play([*NUMBERED, (Rebuild(), Done()), (Inspect(), told), (StoreBlocks(1, (), number=7), Done())], FULL)
    assert broken_by([*NUMBERED, (Inspect(), shown(101, 102, 103))], FULL) == "I9"
    assert broken_by([*NUMBERED, (Inspect(), replace(told, numbers=((1, 3),)))], FULL) == "I9"
    for end in (DropWorker(1), Reset()):
        play([*NUMBERED, (end, Done()), (StoreBlocks(1, CHAIN, number=3), Done()), (ALL, found(w1=3))], FULL)
    play([*NUMBERED, (ClearWorker(1, 7), Done()), (StoreBlocks(1, CHAIN, number=9), Missed(8))], FULL)
    with pytest.raises(ProgramError, match="needs the claim event_numbers"):
        play(NUMBERED)
    with pytest.raises(ProgramError, match="-1 is neither"):
        play([(ClearWorker(1, -1), Done())], FULL)
