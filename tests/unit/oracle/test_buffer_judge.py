"""The judge of KV buffers: a good program, and what each wrong outcome of it breaks."""

from __future__ import annotations

import dataclasses

import pytest

from pymllm.errors import ProgramError
from pymllm.history.files import Header, Step
from pymllm.history.operations import Malformed, MoveKV, Operation, ReadKV, WriteKV
from pymllm.history.outcomes import Buffers, Done, Failed, Outcome, Result, Unsupported
from pymllm.oracle.judge import judge_steps
from pymllm.oracle.situations import expected_situations

HEADER = Header(
    "x",
    "buffers",
    {"size": 2, "page_size": 1, "layers": 2, "k_heads": 1, "k_dim": 2, "v_heads": 1, "v_dim": 1},
    ("refusals",),
)
ZERO, Z = (0, 0), (0,)
BLANK = Buffers((ZERO, ZERO, ZERO), (Z, Z, Z))

GOOD: list[tuple[Operation, Result]] = [
    (WriteKV(0, (1,), ((3, 4),), ((5,),)), Done()),
    (ReadKV(0), Buffers((ZERO, (3, 4), ZERO), (Z, (5,), Z))),
    (ReadKV(1), BLANK),
    (WriteKV(1, (0, 2, 0), ((1, 1), (6, 7), (2, 2)), ((1,), (8,), (2,))), Done()),
    (ReadKV(1), Buffers(((1, 1), ZERO, (6, 7)), ((2,), Z, (8,)))),
    (MoveKV(1, 1, 2, 1), Done()),
    (ReadKV(1), Buffers(((1, 1), ZERO, ZERO), ((2,), Z, Z))),
    (Malformed("write_kv", "keys of another dtype"), Failed("TypeError")),
    (ReadKV(0), Buffers((ZERO, (3, 4), ZERO), (Z, (5,), Z))),
    (ReadKV(2), Failed("IndexError")),
]


def steps_of(program: list[tuple[Operation, Result]]) -> list[Step]:
    return [Step(number, operation, Outcome(result)) for number, (operation, result) in enumerate(program, 1)]


def judge(program: list[tuple[Operation, Result]], header: Header = HEADER) -> str | None:
    """Return the law that the last step breaks, if one is broken."""
    steps = steps_of(program)
    _, found = judge_steps(header, steps)
    if found is None:
        return None
    assert found[0] is steps[-1], found
    return found[1].law


def test_a_good_program_breaks_nothing() -> None:
    """P3, X1, E5: and each is tested by it."""
    evidence, found = judge_steps(HEADER, steps_of(GOOD))
    assert found is None
    assert set(evidence.exercised) == {"P3", "X1", "E5"}


@pytest.mark.parametrize(
    ("number", "result", "law"),
    [
        (1, Failed("RuntimeError"), "P3"),
        (2, BLANK, "P3"),
        (2, Buffers((ZERO, (3, 4), ZERO), (Z, Z, Z)), "P3"),
        (2, Buffers((ZERO, (3, 4), (3, 4)), (Z, (5,), Z)), "P3"),
        (2, Buffers((ZERO, (3, 4)), (Z, (5,))), "P3"),
        (2, Buffers(((0,), (3,), (0,)), (Z, (5,), Z)), "P3"),
        (2, Done(), "P3"),
        (3, Buffers((ZERO, (3, 4), ZERO), (Z, (5,), Z)), "P3"),
        (5, Buffers(((3, 3), ZERO, (6, 7)), ((2,), Z, (8,))), "E5"),
        (5, Buffers(((1, 1), ZERO, (6, 7)), (Z, Z, (8,))), "E5"),
        (5, Buffers(((1, 1), (2, 2), (6, 7)), ((2,), Z, (8,))), "E5"),
        (5, Buffers(((1, 1), (6, 7), ZERO), ((2,), Z, (8,))), "P3"),
        (6, Failed("IndexError"), "P3"),
        (7, Buffers(((1, 1), ZERO, (6, 7)), ((2,), Z, (8,))), "P3"),
        (7, Buffers(((2, 2), ZERO, ZERO), ((2,), Z, Z)), "P3"),
        (8, Done(), "P3"),
        (9, BLANK, "X1"),
        (10, BLANK, "P3"),
    ],
)
def test_a_wrong_result_breaks_its_law(number: int, result: Result, law: str) -> None:
    """Each check of the judge can fail, by the law that it is about."""
    assert judge([*GOOD[: number - 1], (GOOD[number - 1][0], result)]) == law


ROW, VALUE = ((3, 4),), ((5,),)


@pytest.mark.parametrize(
    "operation",
    [
        WriteKV(-1, (1,), ROW, VALUE),
        WriteKV(2, (1,), ROW, VALUE),
        WriteKV(0, (3,), ROW, VALUE),
        WriteKV(0, (-1,), ROW, VALUE),
        WriteKV(0, (1, 2), ROW, VALUE * 2),
        WriteKV(0, (1,), ROW, ()),
        WriteKV(0, (1,), ((3,),), VALUE),
        WriteKV(0, (1,), ROW, ((5, 5),)),
        ReadKV(-1),
    ],
)
def test_a_write_that_does_not_fit_is_refused_whole(operation: Operation) -> None:
    """P3, X1: never a broadcast, and nothing is written, neither keys nor values, in no layer."""
    assert judge([(operation, Failed("IndexError"))]) is None
    for wrong in (Done(), Failed("RuntimeError")):
        assert judge([(operation, wrong)]) == "P3"
    for layer in (0, 1):
        read = (ReadKV(layer), Buffers((ZERO, ZERO, ZERO), (Z, (5,), Z)))
        assert judge([(operation, Failed("ValueError")), read]) == "X1"


@pytest.mark.parametrize(
    ("operation", "says"),
    [
        (WriteKV(0, (1, 1), ROW * 2, VALUE * 2), "name one twice"),
        (WriteKV(0, (1,), ((3, 128),), VALUE), "every dtype"),
        (WriteKV(0, (1,), ROW, ((-129,),)), "every dtype"),
        (WriteKV(0, (1, 2), ((3, 4), (3,)), VALUE * 2), "several widths"),
        (MoveKV(0, 2, 1, 2), "leaves the buffers"),
        (MoveKV(2, 1, 2, 1), "leaves the buffers"),
        (WriteKV(0, (1,), ((1, 1),), ((1,),), "round"), "shape 'round'; it must be one of flat, heads"),
        (MoveKV(0, 1, -1, 1), "leaves the buffers"),
        (MoveKV(0, 1, 2, -1), "leaves the buffers"),
        (MoveKV(0, 1, 2, 10**12), "leaves the buffers"),
    ],
)
def test_what_the_contract_leaves_open_has_no_meaning(operation: Operation, says: str) -> None:
    """P3: repeats of another slot are the caller's error, and the rest cannot be handed over."""
    with pytest.raises(ProgramError, match=says):
        judge([(operation, Done())])


def test_rows_that_move_are_read_before_one_is_written() -> None:
    """P3: also what may be one thing or another moves as it is."""
    write = WriteKV(0, (0, 1, 0), ((1, 1), (6, 7), (2, 2)), ((1,), (8,), (2,)))
    moved = [(write, Done()), (MoveKV(0, 0, 1, 2), Done())]
    good = Buffers(((1, 1), (2, 2), (6, 7)), ((1,), (1,), (8,)))
    smeared = Buffers(((1, 1), (1, 1), (1, 1)), ((1,), (1,), (1,)))
    assert judge([*moved, (ReadKV(0), good)]) is None
    assert judge([*moved, (ReadKV(0), smeared)]) == "P3"


def test_a_move_that_cannot_be_made_is_passed_over() -> None:
    """Who hands out no views of its buffers is not judged by them."""
    assert judge([(MoveKV(0, 1, 2, 1), Unsupported("move_kv")), (ReadKV(0), BLANK)]) is None


def test_situations_are_those_of_the_capabilities() -> None:
    """What must be refused is expected only of whom claims it, and all that the good program met is known."""
    without = dataclasses.replace(HEADER, capabilities=())
    assert expected_situations(without) < expected_situations(HEADER)
    evidence, _ = judge_steps(HEADER, steps_of(GOOD))
    assert "padded tokens share slot 0" in set(evidence.reached) <= expected_situations(HEADER)
