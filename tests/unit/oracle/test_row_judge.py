"""Request rows, and what is judged alike of all kinds."""

from __future__ import annotations

import dataclasses

import pytest

from pymllm.errors import InvariantViolation, ProgramError
from pymllm.history.files import Header, Step
from pymllm.history.operations import (
    Alloc,
    AllocRows,
    Clear,
    FreeRow,
    Malformed,
    Operation,
    ReadRows,
    Span,
    WriteEntries,
    WriteRow,
)
from pymllm.history.outcomes import Done, Failed, NoRoom, Outcome, Result, Slots, Table, Unsupported
from pymllm.oracle.coverage import expected_goals
from pymllm.oracle.judge import Judge, judge_steps, make_judge
from pymllm.oracle.models.kind_model import MALFORMED_ERRORS
from pymllm.oracle.models.rows import RowModel

# -- The judge of request rows: a good program, and what each wrong outcome of it breaks ---------------------


HEADER = Header("x", "rows", {"max_reqs": 2, "max_context_len": 3}, ("pool", "refusals", "zeroed_rows"))
FIRST, SECOND, PADDING = Span(1, 0, 1), Span(1, 1, 2), Span(0, 0, 1)
ZERO = (0, 0, 0)
OWNERSHIP = Failed("OwnershipError")

# Operation, result, and how many rows are available then.
GOOD: list[tuple[Operation, Result, int]] = [
    (AllocRows(2), Slots((1, 2)), 0),
    (WriteRow(FIRST, 0, 2, (5, 6)), Done(), 0),
    (ReadRows(), Table((ZERO, (5, 6, 0), ZERO)), 0),
    (AllocRows(1), NoRoom(), 0),
    (WriteEntries((SECOND, PADDING, PADDING), (2, 0, 0), (7, 8, 9)), Done(), 0),
    (ReadRows(), Table(((8, 0, 0), (5, 6, 0), (0, 0, 7))), 0),
    (FreeRow(FIRST), Done(), 1),
    (ReadRows(), Table(((8, 0, 0), ZERO, (0, 0, 7))), 1),
    (FreeRow(FIRST), OWNERSHIP, 1),
    (ReadRows(), Table(((8, 0, 0), ZERO, (0, 0, 7))), 1),
    (AllocRows(1), Slots((1,)), 0),
    (Clear(), Done(), 2),
    (ReadRows(), Table((ZERO, ZERO, ZERO)), 2),
]


def steps_of(program: list[tuple[Operation, Result, int]]) -> list[Step]:
    return [
        Step(number, operation, Outcome(result, (), {"size": 2, "available_size": size}))
        for number, (operation, result, size) in enumerate(program, 1)
    ]


def judge(steps: list[Step], header: Header = HEADER) -> str | None:
    """Return the law that the last step breaks, if one is broken."""
    _, found = judge_steps(header, steps)
    if found is None:
        return None
    assert found[0] is steps[-1], found
    return found[1].law


def test_a_good_program_breaks_nothing() -> None:
    """P1, P2, P3, X1, X4, X7, E5: and each is tested by it."""
    evidence, found = judge_steps(HEADER, steps_of(GOOD))
    assert found is None
    assert set(evidence.exercised) == {"P1", "P2", "P3", "X1", "X4", "X7", "X8", "E5"}
    assert "a row is freed twice" in set(evidence.reached) <= expected_goals(HEADER)


@pytest.mark.parametrize(
    ("number", "result", "law"),
    [
        (1, Slots((1, 1)), "P1"),
        (1, Slots((0, 1)), "P1"),
        (1, Slots((1,)), "P1"),
        (1, Slots((2, 3)), "P1"),
        (1, NoRoom(), "P1"),
        (2, Failed("IndexError"), "P3"),
        (3, Table((ZERO, (5, 0, 0), ZERO)), "P3"),
        (3, Table((ZERO, (5, 6, 0), (5, 0, 0))), "P3"),
        (3, Table((ZERO, (5, 6, 0))), "P1"),
        (3, Table((ZERO, (5, 6), ZERO)), "P1"),
        (3, Done(), "P1"),
        (4, Slots((2,)), "X4"),
        (4, OWNERSHIP, "X4"),
        (5, Failed("RuntimeError"), "P3"),
        (6, Table((ZERO, (5, 6, 0), (0, 0, 7))), "E5"),
        (6, Table(((8, 0, 0), (5, 6, 8), (0, 0, 7))), "E5"),
        (6, Table(((8, 0, 0), (5, 6, 0), ZERO)), "P3"),
        (7, OWNERSHIP, "P2"),
        (8, Table(((8, 0, 0), (5, 6, 0), (0, 0, 7))), "P2"),
        (9, Done(), "P2"),
        (9, Failed("KeyError"), "P2"),
        (10, Table(((8, 0, 0), ZERO, ZERO)), "X1"),
        (11, Slots((2,)), "P1"),
        (12, Failed("RuntimeError"), "X7"),
        (13, Table(((8, 0, 0), ZERO, ZERO)), "X7"),
    ],
)
def test_a_wrong_result_breaks_its_law(number: int, result: Result, law: str) -> None:
    """Each check of the judge can fail, by the law that it is about."""
    steps = steps_of(GOOD[:number])
    outcome = dataclasses.replace(outcome_of(steps), result=result)
    assert judge([*steps[:-1], dataclasses.replace(steps[-1], outcome=outcome)]) == law


def outcome_of(steps: list[Step]) -> Outcome:
    outcome = steps[-1].outcome
    assert outcome is not None
    return outcome


@pytest.mark.parametrize(
    ("number", "law"), [(1, "P1"), (2, "P3"), (3, "P1"), (4, "X4"), (7, "P2"), (9, "X1"), (12, "X7")]
)
def test_a_wrong_size_breaks_the_law_of_its_step(number: int, law: str) -> None:
    """P1, P2, X1, X4, X7: what is available is what is not handed out, and a refusal moves nothing."""
    program = GOOD[:number]
    operation, result, size = program[-1]
    assert judge(steps_of([*program[:-1], (operation, result, size + 1)])) == law


def test_a_row_that_is_dirty_when_handed_out_breaks_p2() -> None:
    """P2: whoever gets a row finds zeros, whoever had it before."""
    table = Table((ZERO, ZERO, (1, 0, 0)))
    assert judge(steps_of([(AllocRows(1), Slots((1,)), 1), (ReadRows(), table, 1)])) == "P2"
    assert judge(steps_of([(ReadRows(), table, 2)])) == "P2"


@pytest.mark.parametrize(("capabilities", "law"), [(("pool",), "P1"), (("pool", "zeroed_rows"), "P2")])
def test_an_alloc_that_writes_in_a_held_row_breaks_the_law_of_rows(
    capabilities: tuple[str, ...], law: str
) -> None:
    """P1, P2: a row is its holder's, whoever gets another one."""
    program: list[tuple[Operation, Result, int]] = [
        (AllocRows(1), Slots((1,)), 1),
        (WriteRow(FIRST, 0, 2, (5, 6)), Done(), 1),
        (ReadRows(), Table((ZERO, (5, 6, 0), ZERO)), 1),
        (AllocRows(1), Slots((2,)), 0),
        (ReadRows(), Table((ZERO, (5, 7, 0), ZERO)), 0),
    ]
    assert judge(steps_of(program), dataclasses.replace(HEADER, capabilities=capabilities)) == law


def test_a_failed_alloc_that_writes_breaks_x4() -> None:
    """X4: it changes nothing, the table included."""
    program = [*GOOD[:4], (ReadRows(), Table((ZERO, ZERO, ZERO)), 0)]
    assert judge(steps_of(program)) == "X4"


MISUSE: list[tuple[Operation, tuple[str, ...], str]] = [
    (AllocRows(-1), ("ValueError", "TypeError"), "X1"),
    (FreeRow(PADDING), ("OwnershipError",), "P1"),
    (FreeRow(Span(0, 2, 3)), ("OwnershipError",), "P2"),
    (FreeRow(Span(0, 3, 4)), ("OwnershipError",), "X1"),
    (FreeRow(Span(0, -1, 0)), ("OwnershipError",), "X1"),
    (WriteRow(PADDING, 0, 1, (1,)), ("OwnershipError",), "P1"),
    (WriteRow(Span(0, 2, 3), 0, 1, (1,)), ("OwnershipError",), "X1"),
    (WriteRow(Span(0, 3, 4), 0, 1, (1,)), ("OwnershipError", "IndexError"), "X1"),
    (WriteRow(FIRST, -1, 1, (1, 1)), ("IndexError", "ValueError"), "P2"),
    (WriteRow(FIRST, 2, 4, (1, 1)), ("IndexError", "ValueError"), "P2"),
    (WriteRow(FIRST, 2, 1, ()), ("IndexError", "ValueError"), "P2"),
    (WriteRow(FIRST, 0, 2, (1,)), ("ValueError",), "P2"),
    (WriteRow(FIRST, 0, 1, (-1,)), ("IndexError", "ValueError", "TypeError"), "X1"),
    (WriteRow(FIRST, 0, 1, (2**31,)), ("IndexError", "ValueError", "TypeError"), "X1"),
    (WriteRow(Span(0, 2, 3), 0, 4, (1,) * 4), ("OwnershipError", "IndexError", "ValueError"), "X1"),
    (WriteEntries((FIRST,), (0, 1), (1,)), ("ValueError",), "P2"),
    (WriteEntries((FIRST,), (0,), (1, 1)), ("ValueError",), "P2"),
    (WriteEntries((FIRST, Span(0, 2, 3)), (0, 0), (1, 1)), ("OwnershipError",), "X1"),
    (WriteEntries((FIRST, Span(0, -1, 0)), (0, 0), (1, 1)), ("OwnershipError", "IndexError"), "X1"),
    (WriteEntries((FIRST,), (3,), (1,)), ("IndexError", "ValueError"), "P2"),
    (WriteEntries((FIRST,), (-1,), (1,)), ("IndexError", "ValueError"), "P2"),
    (WriteEntries((FIRST,), (0,), (-1,)), ("IndexError", "ValueError", "TypeError"), "X1"),
]


@pytest.mark.parametrize(("operation", "errors", "law"), MISUSE)
def test_misuse_is_refused_and_leaves_no_trace(
    operation: Operation, errors: tuple[str, ...], law: str
) -> None:
    """P1, P2, X1: with one of its errors and no other, and nothing in the table."""
    program: list[tuple[Operation, Result, int]] = [(AllocRows(1), Slots((1,)), 1)]
    for error in errors:
        assert judge(steps_of([*program, (operation, Failed(error), 1)])) is None
    for wrong in (Done(), Failed("RuntimeError")):
        assert judge(steps_of([*program, (operation, wrong, 1)])) == law
    changed = (ReadRows(), Table((ZERO, (1, 0, 0), ZERO)), 1)
    assert judge(steps_of([*program, (operation, Failed(errors[0]), 1), changed])) == "X1"


def test_an_entry_that_is_named_twice_has_no_meaning() -> None:
    """E5: only row 0 may repeat."""
    twice = WriteEntries((FIRST, FIRST), (0, 0), (1, 2))
    with pytest.raises(ProgramError, match=r"step 2: .* name one twice"):
        judge(steps_of([(AllocRows(1), Slots((1,)), 1), (twice, Done(), 1)]))


def test_a_row_is_used_again_only_if_something_was_written() -> None:
    """P2: a row that was given back blank shows nothing."""
    program: list[tuple[Operation, Result, int]] = [
        (AllocRows(1), Slots((1,)), 1),
        (FreeRow(FIRST), Done(), 2),
        (AllocRows(1), Slots((1,)), 1),
    ]
    evidence, found = judge_steps(HEADER, steps_of(program))
    assert (found, evidence.reached["a used row is handed out again"]) == (None, 0)
    evidence, _ = judge_steps(HEADER, steps_of(GOOD))
    assert evidence.reached["a used row is handed out again"] == 1


def test_without_a_pool_an_alloc_that_finds_no_room_is_p1s() -> None:
    """X4 needs a capability, and a law that is not claimed is never tested."""
    header = dataclasses.replace(HEADER, capabilities=())
    program: list[tuple[Operation, Result, int]] = [(AllocRows(3), NoRoom(), 2)]
    evidence, found = judge_steps(header, steps_of(program))
    assert (found, set(evidence.exercised)) == (None, {"P1"})


def test_rows_that_are_not_zeroed_may_hold_anything_once_they_are_free() -> None:
    """P2 needs its capability, and without it a freed or cleared row may hold anything."""
    header = dataclasses.replace(HEADER, capabilities=("pool",))
    program: list[tuple[Operation, Result, int]] = [
        *GOOD[:3],
        (FreeRow(FIRST), Done(), 1),
        (ReadRows(), Table((ZERO, (5, 9, 0), ZERO)), 1),
        (AllocRows(1), Slots((1,)), 0),
        (WriteRow(Span(6, 0, 1), 0, 1, (4,)), Done(), 0),
        (ReadRows(), Table((ZERO, (4, 9, 0), ZERO)), 0),
        (Clear(), Done(), 2),
        (ReadRows(), Table(((1, 2, 3), (4, 9, 0), (7, 0, 0))), 2),
    ]
    evidence, found = judge_steps(header, steps_of(program))
    assert found is None
    assert "P2" not in evidence.exercised
    written = [*program[:7], (ReadRows(), Table((ZERO, (3, 9, 0), ZERO)), 0)]
    assert judge(steps_of(written), header) == "P3"
    assert judge(steps_of([*GOOD[:3], (FreeRow(FIRST), Failed("KeyError"), 1)]), header) == "P1"


def rows_read(
    program: list[Operation], table: tuple[tuple[int, ...], ...], header: Header = HEADER
) -> str | None:
    """Judge a program and a reading of the table after it; what must be refused is."""
    results: dict[type, Result] = {AllocRows: Slots((1,)), WriteRow: Done(), FreeRow: Done(), Clear: Done()}
    steps = []
    for number, operation in enumerate([*program, ReadRows()], 1):
        is_bad = operation in (AllocRows(-1), FOREIGN)
        result = Failed("ValueError") if is_bad else results.get(type(operation), Table(table))
        held = not any(isinstance(one, Clear | FreeRow) for one in program[:number]) and any(
            one == AllocRows(1) for one in program[:number]
        )
        sizes = {"size": 2, "available_size": 2 - held}
        steps.append(Step(number, operation, Outcome(result, (), sizes)))
    return judge(steps, header)


FOREIGN = WriteRow(FIRST, 0, 1, (-1,))
UNUSED = (-1, -1, -1)


@pytest.mark.parametrize(
    ("program", "table", "law"),
    [
        ([], (UNUSED, UNUSED, UNUSED), "P2"),
        ([AllocRows(-1)], (UNUSED, UNUSED, UNUSED), "P2"),
        ([AllocRows(1)], (ZERO, UNUSED, ZERO), "P2"),
        ([AllocRows(1), AllocRows(-1)], (ZERO, UNUSED, ZERO), "P2"),
        ([AllocRows(1), WriteRow(FIRST, 0, 1, (5,)), AllocRows(-1)], (ZERO, (5, -1, -1), ZERO), "P2"),
        ([AllocRows(1), FreeRow(FIRST), AllocRows(-1)], (ZERO, UNUSED, ZERO), "P2"),
        ([AllocRows(1), FOREIGN], (ZERO, (-1, 0, 0), ZERO), "X1"),
        ([AllocRows(1), AllocRows(-1)], (ZERO, (5, 0, 0), ZERO), "X1"),
    ],
)
def test_unused_entries_that_are_no_slots_are_no_fault_of_a_refusal(
    program: list[Operation], table: tuple[tuple[int, ...], ...], law: str
) -> None:
    """P2, and not X1: a row that is not written is zero; X1 where a refused write was carried out."""
    assert rows_read(program, table) == law


@pytest.mark.parametrize("program", [[], [AllocRows(-1)], [AllocRows(1)]])
def test_who_zeroes_no_rows_may_leave_anything_in_those_that_nobody_wrote(program: list[Operation]) -> None:
    """P2, X1: from the start, and it is no entry that is overwritten later."""
    header = dataclasses.replace(HEADER, capabilities=("pool", "refusals"))
    assert rows_read(program, (UNUSED, UNUSED, UNUSED), header) is None
    steps = [
        Step(1, AllocRows(1), Outcome(Slots((1,)), (), {"size": 2, "available_size": 1})),
        Step(2, WriteRow(FIRST, 0, 1, (5,)), Outcome(Done(), (), {"size": 2, "available_size": 1})),
    ]
    evidence, found = judge_steps(header, steps)
    assert found is None
    assert not evidence.reached["a stretch overwrites entries"]


# -- What is judged alike of all kinds, seen on rows ---------------------------------------------------------


CONFIG = {"max_reqs": 2, "max_context_len": 1}
MALFORMED = Malformed("free_row", "a float row")


def judge_of(*capabilities: str) -> Judge:
    return make_judge(Header("x", "rows", dict(CONFIG), capabilities))


@pytest.mark.parametrize(
    "wrong", [{"max_reqs": None}, {"max_reqs": "2"}, {"max_reqs": 0}, {"max_reqs": True}]
)
def test_a_header_without_sizes_is_no_header(wrong: dict[str, int | str | None]) -> None:
    """The judge is built from the header alone, and says which key it misses."""
    with pytest.raises(ProgramError, match="max_reqs"):
        make_judge(Header("x", "rows", CONFIG | wrong))


def test_an_operation_of_another_kind_has_no_meaning() -> None:
    """A program for slot allocators says nothing of rows."""
    with pytest.raises(ProgramError, match="alloc is no operation of kind rows"):
        judge_of().judge(1, Alloc(1), Outcome(Done()))


def test_what_an_adapter_cannot_do_changes_no_size() -> None:
    """Unsupported means that nothing was done, and nothing else is judged."""
    judge = judge_of()
    judge.judge(1, AllocRows(1), Outcome(Unsupported("rows"), (), {"available_size": 2}))
    assert isinstance(judge.model, RowModel)
    assert (judge.model.free, judge.evidence.exercised) == ({1, 2}, {})
    with pytest.raises(InvariantViolation, match="P1: available_size"):
        judge.judge(2, AllocRows(1), Outcome(Unsupported("rows"), (), {"available_size": 1}))


def test_sizes_that_are_not_told_are_not_judged() -> None:
    """An adapter leaves out what it cannot tell, and may tell more than the model knows."""
    judge = judge_of()
    judge.judge(1, AllocRows(1), Outcome(Slots((1,)), (), {"size": 2, "mem_bytes": 9}))
    with pytest.raises(InvariantViolation, match="size: expected 2, observed 3"):
        judge.judge(2, AllocRows(1), Outcome(Slots((2,)), (), {"size": 3}))


def test_a_size_that_is_not_told_tests_no_law() -> None:
    """P1: only one that changed shows something, and only where it is told."""
    freed: dict[tuple[str, ...], int] = {}
    for told in ({}, {"mem_bytes": 9}, {"size": 2}, {"available_size": 2}):
        judge = judge_of()
        judge.judge(1, AllocRows(1), Outcome(Slots((1,))))
        before = judge.evidence.exercised.total()
        judge.judge(2, FreeRow(Span(1, 0, 1)), Outcome(Done(), (), told))
        freed[(*told,)] = judge.evidence.exercised.total() - before
    assert freed == {(): 0, ("mem_bytes",): 0, ("size",): 0, ("available_size",): 1}


@pytest.mark.parametrize("error", MALFORMED_ERRORS)
def test_a_malformed_call_may_be_refused_with_any_documented_error(error: str) -> None:
    """X1: which of them is the implementation's choice."""
    judge = judge_of("refusals")
    judge.judge(1, MALFORMED, Outcome(Failed(error)))
    assert judge.evidence.exercised == {"X1": 1}


@pytest.mark.parametrize("result", [Done(), Failed("RuntimeError"), Failed("AttributeError")])
def test_a_malformed_call_must_be_refused(result: Done | Failed) -> None:
    """X1: neither carried out nor broken off somewhere inside."""
    with pytest.raises(InvariantViolation, match="X1: free_row with a float row"):
        judge_of("refusals").judge(1, MALFORMED, Outcome(result))


def test_misuse_of_an_adapter_that_claims_no_refusals_has_no_meaning() -> None:
    """A law that is not claimed is never tested."""
    judge = judge_of("pool")
    for operation in (MALFORMED, FreeRow(Span(0, 1, 2))):
        with pytest.raises(ProgramError, match="does not claim"):
            judge.judge(1, operation, Outcome(Failed("OwnershipError")))
    assert judge.evidence.exercised == {}


@pytest.mark.parametrize("span", [Span(0, 1, 1), Span(0, 1, 3), Span(4, 0, 1)])
def test_one_row_is_named_by_one_number(span: Span) -> None:
    """A span of none, of two, or of a step that gave nothing names no row."""
    with pytest.raises(ProgramError, match=r"it must name one|step 4 gave"):
        judge_of("refusals").judge(1, FreeRow(span), Outcome(Done()))


def test_sizes_that_were_wrong_from_the_start_are_no_fault_of_a_refusal() -> None:
    """P1: what a first operation did not change was wrong before it; later it is X1's business."""
    judge = judge_of("refusals")
    with pytest.raises(InvariantViolation, match="P1: available_size"):
        judge.judge(1, MALFORMED, Outcome(Failed("TypeError"), (), {"available_size": 3}))
    judge = judge_of("refusals")
    judge.judge(1, MALFORMED, Outcome(Failed("TypeError"), (), {"available_size": 2}))
    with pytest.raises(InvariantViolation, match="X1: available_size"):
        judge.judge(2, MALFORMED, Outcome(Failed("TypeError"), (), {"available_size": 3}))
