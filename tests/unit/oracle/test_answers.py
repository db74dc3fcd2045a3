"""Tests of answers that are owed by claim (X9), and of the report of steps that were not done."""

from __future__ import annotations

import pytest

from pymllm.errors import InvariantViolation
from pymllm.history.claims import SPECIFICATION
from pymllm.history.files import GO_ON, Deviation, Header, Step
from pymllm.history.operations import (
    Alloc,
    Clear,
    Evict,
    Fault,
    Free,
    Hash,
    Insert,
    Key,
    Lock,
    Malformed,
    Match,
    Operation,
    Span,
    Unlock,
)
from pymllm.history.outcomes import (
    Done,
    Effect,
    Inserted,
    Locked,
    Matched,
    Outcome,
    Result,
    Slots,
    Unsupported,
)
from pymllm.oracle.answers import LEFT, NO_NODE, OWED, limits_of
from pymllm.oracle.evidence import Evidence
from pymllm.oracle.judge import judge_steps, operations_testing
from pymllm.oracle.laws import find_law

NOT = Unsupported("not now")
SLOTS = Header("x", "slots", {"page_size": 1, "pages": 4}, ("pool",), specification=SPECIFICATION)
TREE = Header("x", "prefix", {"page_size": 1, "window": None}, (), specification=SPECIFICATION)
ONE = (Span(1, 0, 1),)
ROOT = Matched((), 0, 0)


def judge(
    header: Header, *program: tuple[Operation, Result]
) -> tuple[Evidence, tuple[Step, InvariantViolation] | None]:
    steps = [
        Step(number, operation, Outcome(result)) for number, (operation, result) in enumerate(program, 1)
    ]
    return judge_steps(header, steps)


def limited(header: Header, **limits: str) -> Header:
    return Header(
        header.adapter,
        header.kind,
        header.config,
        header.capabilities,
        specification=header.specification,
        limits=limits,
    )


def test_what_is_claimed_and_not_done_breaks_x9() -> None:
    """The operation is named, and what the adapter said."""
    evidence, broken = judge(SLOTS, (Alloc(1), Slots((1,))), (Free(ONE), NOT))
    assert broken is not None
    step, violation = broken
    assert (step.number, violation.law, violation.expected) == (2, "X9", "done")
    assert violation.message == "free, which is claimed without a limit"
    assert violation.observed == "unsupported (not now)"
    assert evidence.exercised["X9"] == 1  # the alloc
    assert evidence.not_done == {}  # a broken law says it


@pytest.mark.parametrize(
    "operation",
    [
        Alloc(1),  # no pool is claimed
        Hash(1),
        Fault("tea"),
        Match(Key((1,), "tenant")),
        Match(Key(((1, 2),))),
        Match(Key((2**40,), form="int32")),
        Malformed("evict", "a float amount"),
        Lock(9),  # of a step that there is not
        Unlock(9),
    ],
)
def test_what_is_not_claimed_or_cannot_be_given_is_not_owed(operation: Operation) -> None:
    """X9: nothing is held against an answer of unsupported, and nothing is told of it."""
    evidence, broken = judge(TREE, (Match(Key(())), ROOT), (operation, NOT))
    assert (broken, evidence.not_done) == (None, {})


def test_a_declared_limit_is_counted_with_its_reason_and_place() -> None:
    """X9: beside the steps of the operation that were done."""
    header = limited(TREE, unlock="as it was taken", lock="never")
    program = [(Match(Key(())), ROOT), (Lock(1), Locked()), (Unlock(2, at=1), NOT), (Unlock(2), Done())]
    evidence, broken = judge(header, *program)
    assert broken is None
    assert evidence.not_done == {"unlock: as it was taken": 1}
    assert evidence.first_not_done == {"unlock: as it was taken": 3}
    assert evidence.done == {"unlock": 1, "lock": 1}
    (limit,) = limits_of(evidence.not_done, evidence.done)
    assert limit[1:] == ("unlock", "as it was taken", 1, 1)


def test_what_follows_from_a_step_that_was_not_done_has_its_reason() -> None:
    """X9: a hold that was not taken is not released; what was not owed makes nothing owed."""
    header = limited(TREE, lock="it is hard")
    evidence, broken = judge(header, (Match(Key(())), ROOT), (Lock(1), NOT), (Unlock(2), NOT))
    assert broken is None
    assert evidence.not_done == {"lock: it is hard": 1, "unlock: it is hard": 1}
    evidence, broken = judge(TREE, (Match(Key((1,), "a")), NOT), (Lock(1), NOT))
    assert (broken, evidence.not_done) == (None, {})


def test_an_insert_that_gave_no_node_is_told_of_where_it_is_to_be_held() -> None:
    """X9: there is nothing to hold, and nobody takes that for a hold that was tested."""
    given = Inserted(0, ((0, 1),), None)
    evidence, broken = judge(
        TREE, (Insert(Key((1,))), given), (Insert(Key((1,))), Inserted(1, ())), (Lock(1), NOT)
    )
    assert broken is None
    assert evidence.not_done == {f"lock: {NO_NODE}": 1}


def test_who_has_never_cleared_has_no_clear() -> None:
    """X7, X9: it is not claimed then, and there is nothing to tell; who has one goes on having it."""
    evidence, broken = judge(SLOTS, (Clear(), NOT), (Alloc(1), Slots((1,))))
    assert broken is None
    assert evidence.not_done == {f"clear: {LEFT}": 1}
    assert limits_of(evidence.not_done, evidence.done) == ()
    assert "X7" in evidence.left_out
    evidence, broken = judge(SLOTS, (Clear(), NOT), (Clear(), Done()))
    assert [it.operation for it in limits_of(evidence.not_done, evidence.done)] == ["clear"]
    _, broken = judge(SLOTS, (Clear(), Done()), (Clear(), NOT))
    assert broken is not None
    assert broken[1].law == "X9"


def test_an_older_file_is_told_of_and_not_accused() -> None:
    """X9: its adapter could declare no limits."""
    for version in ("", "2.1"):
        header = Header("x", "slots", SLOTS.config, ("pool",), specification=version)
        evidence, broken = judge(header, (Alloc(1), Slots((1,))), (Free(ONE), NOT))
        assert broken is None
        assert evidence.not_done == {f"free: {OWED}": 1}
        assert evidence.exercised["X9"] == 0
        (limit,) = limits_of(evidence.not_done, evidence.done)
        assert (limit.reason, limit.steps) == (OWED, 1)


def test_what_was_not_done_has_no_effects() -> None:
    """X9: also where it was not owed."""
    gone = Outcome(NOT, (Effect("free", (1,)),))
    _, broken = judge_steps(TREE, [Step(1, Evict(1), gone)])
    assert broken is not None
    assert (broken[1].law, broken[1].message) == ("X9", "effects of what was not done")


def test_a_size_that_was_told_is_told_after_each_step() -> None:
    """X9: it is not to be missing where it would be wrong; unsupported may come without any."""
    told = [
        Step(1, Alloc(1), Outcome(Slots((1,)), (), {"available_size": 3})),
        Step(2, Malformed("free", "a list"), Outcome(NOT)),
        Step(3, Free(ONE), Outcome(Done())),
    ]
    _, broken = judge_steps(SLOTS, told)
    assert broken is not None
    step, violation = broken
    assert (step.number, violation.law) == (3, "X9")
    assert violation.message == "available_size, which was told before"
    older = Header("x", "slots", SLOTS.config, ("pool",), specification="2.1")
    assert judge_steps(older, told)[1] is None


def test_a_known_refusal_counts_as_right_where_that_is_asked_for() -> None:
    """X9: nothing was done, so that everything can go on."""
    known = Deviation("shy", "X9", "it is", operation="free", then=GO_ON)
    header = Header("x", "slots", SLOTS.config, ("pool",), specification=SPECIFICATION, deviations=(known,))
    evidence, broken = judge(header, (Alloc(1), Slots((1,))), (Free(ONE), NOT), (Alloc(1), Slots((2,))))
    assert broken is None
    assert evidence.known == {"shy": 1}


def test_it_is_known_which_operations_test_a_law() -> None:
    """The operations that test a law are known; no operation by itself tests X9."""
    assert "evict" in operations_testing(find_law("R6"), "prefix")
    assert "write_row" in operations_testing(find_law("P3"), "rows")
    assert "write_row" not in operations_testing(find_law("P1"), "rows")
    assert operations_testing(find_law("X9"), "prefix") == frozenset()
