"""What the judges of rows, buffers, states and hashes do alike, seen on the one of rows."""

from __future__ import annotations

import pytest

from pymllm.errors import InvariantViolation, ProgramError
from pymllm.history.files import Header
from pymllm.history.operations import Alloc, AllocRows, FreeRow, Malformed, Span
from pymllm.history.outcomes import Done, Failed, Outcome, Slots, Unsupported
from pymllm.oracle.pool_judge import MALFORMED_ERRORS
from pymllm.oracle.row_judge import RowJudge

CONFIG = {"max_reqs": 2, "max_context_len": 1}
MALFORMED = Malformed("free_row", "a float row")


def make_judge(*capabilities: str) -> RowJudge:
    return RowJudge(Header("x", "rows", dict(CONFIG), capabilities))


@pytest.mark.parametrize(
    "wrong", [{"max_reqs": None}, {"max_reqs": "2"}, {"max_reqs": 0}, {"max_reqs": True}]
)
def test_a_header_without_sizes_is_no_header(wrong: dict[str, int | str | None]) -> None:
    """The judge is built from the header alone, and says which key it misses."""
    with pytest.raises(ProgramError, match="max_reqs"):
        RowJudge(Header("x", "rows", CONFIG | wrong))


def test_an_operation_of_another_kind_has_no_meaning() -> None:
    """A program for slot allocators says nothing of rows."""
    with pytest.raises(ProgramError, match="alloc is no operation of kind rows"):
        make_judge().judge(1, Alloc(1), Outcome(Done()))


def test_what_an_adapter_cannot_do_changes_no_size() -> None:
    """Unsupported means that nothing was done, and nothing else is judged."""
    judge = make_judge()
    judge.judge(1, AllocRows(1), Outcome(Unsupported("rows"), (), {"available_size": 2}))
    assert (judge.free, judge.evidence.exercised) == ({1, 2}, {})
    with pytest.raises(InvariantViolation, match="P1: sizes"):
        judge.judge(2, AllocRows(1), Outcome(Unsupported("rows"), (), {"available_size": 1}))


def test_sizes_that_are_not_told_are_not_judged() -> None:
    """An adapter leaves out what it cannot tell, and may tell more than the model knows."""
    judge = make_judge()
    judge.judge(1, AllocRows(1), Outcome(Slots((1,)), (), {"size": 2, "mem_bytes": 9}))
    with pytest.raises(InvariantViolation, match=r"\{'size': 2\}, observed \{'size': 3\}"):
        judge.judge(2, AllocRows(1), Outcome(Slots((2,)), (), {"size": 3}))


def test_a_size_that_is_not_told_tests_no_law() -> None:
    """P1: only one that changed shows something, and only where it is told."""
    freed: dict[tuple[str, ...], int] = {}
    for told in ({}, {"mem_bytes": 9}, {"size": 2}, {"available_size": 2}):
        judge = make_judge()
        judge.judge(1, AllocRows(1), Outcome(Slots((1,))))
        before = judge.evidence.exercised.total()
        judge.judge(2, FreeRow(Span(1, 0, 1)), Outcome(Done(), (), told))
        freed[(*told,)] = judge.evidence.exercised.total() - before
    assert freed == {(): 0, ("mem_bytes",): 0, ("size",): 0, ("available_size",): 1}


@pytest.mark.parametrize("error", MALFORMED_ERRORS)
def test_a_malformed_call_may_be_refused_with_any_documented_error(error: str) -> None:
    """X1: which of them is the implementation's choice."""
    judge = make_judge("refusals")
    judge.judge(1, MALFORMED, Outcome(Failed(error)))
    assert judge.evidence.exercised == {"X1": 1}


@pytest.mark.parametrize("result", [Done(), Failed("RuntimeError"), Failed("AttributeError")])
def test_a_malformed_call_must_be_refused(result: Done | Failed) -> None:
    """X1: neither carried out nor broken off somewhere inside."""
    with pytest.raises(InvariantViolation, match="X1: free_row with a float row"):
        make_judge("refusals").judge(1, MALFORMED, Outcome(result))


def test_misuse_of_an_adapter_that_claims_no_refusals_has_no_meaning() -> None:
    """A law that is not claimed is never tested."""
    judge = make_judge("pool")
    for operation in (MALFORMED, FreeRow(Span(0, 1, 2))):
        with pytest.raises(ProgramError, match="does not claim"):
            judge.judge(1, operation, Outcome(Failed("OwnershipError")))
    assert judge.evidence.exercised == {}


@pytest.mark.parametrize("span", [Span(0, 1, 1), Span(0, 1, 3), Span(4, 0, 1)])
def test_one_row_is_named_by_one_number(span: Span) -> None:
    """A span of none, of two, or of a step that gave nothing names no row."""
    with pytest.raises(ProgramError, match=r"it must name one|step 4 gave"):
        make_judge("refusals").judge(1, FreeRow(span), Outcome(Done()))


def test_nothing_is_left_to_judge_at_the_end() -> None:
    """What these hold was compared wherever it was read."""
    judge = make_judge()
    judge.check_end()
    assert judge.evidence.exercised == {}


def test_sizes_that_were_wrong_from_the_start_are_no_fault_of_a_refusal() -> None:
    """P1: what a first operation did not change was wrong before it; later it is X1's business."""
    judge = make_judge("refusals")
    with pytest.raises(InvariantViolation, match="P1: sizes"):
        judge.judge(1, MALFORMED, Outcome(Failed("TypeError"), (), {"available_size": 3}))
    judge = make_judge("refusals")
    judge.judge(1, MALFORMED, Outcome(Failed("TypeError"), (), {"available_size": 2}))
    with pytest.raises(InvariantViolation, match="X1: sizes"):
        judge.judge(2, MALFORMED, Outcome(Failed("TypeError"), (), {"available_size": 3}))
