"""Buffers, hashes and memories of cells: what each may hold, and who is blamed."""

from __future__ import annotations

import hashlib
import struct

import pytest

from pymllm.errors import ProgramError
from pymllm.history.files import Header, Step
from pymllm.history.operations import (
    HashBytes,
    HashInt64,
    HashPage,
    Key,
    Malformed,
    MoveKV,
    Operation,
    PickToken,
    ReadKV,
    SliceKey,
    WriteKV,
)
from pymllm.history.outcomes import (
    Buffers,
    Done,
    Failed,
    Hashes,
    Number,
    Outcome,
    Result,
    Tokens,
    Unsupported,
)
from pymllm.oracle.coverage import expected_goals
from pymllm.oracle.judge import judge_steps
from pymllm.oracle.models.cold_runs import hash_page
from pymllm.oracle.models.expected_cells import BlankCells, ExpectedCells

# -- The judge of KV buffers: a good program, and what each wrong outcome of it breaks -----------------------


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
    """P3, X1, X8, E5: and each is tested by it."""
    evidence, found = judge_steps(HEADER, steps_of(GOOD))
    assert found is None
    assert set(evidence.exercised) == {"P3", "X1", "X8", "E5"}
    assert "padded tokens share slot 0" in set(evidence.reached) <= expected_goals(HEADER)


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
    """An adapter without views of its buffers is not judged by moves that it cannot make."""
    assert judge([(MoveKV(0, 1, 2, 1), Unsupported("move_kv")), (ReadKV(0), BLANK)]) is None


# -- The judge of keys and hashes: right answers computed here by other means, and wrong ones ----------------


HASHES = Header("x", "hashes", {}, ("bigrams", "extra_key", "hashes", "lora", "refusals"))
KEY = Key((7, 8, 9), "a", "int64")
PAIRS = Key(((1, 2), (3, 4)), 5)
UNSPELLED = Key((7, 8), "a\ud800")


def sha(*numbers: int, prior: str = "") -> str:
    """Hash a page by hand, the way the specification words it."""
    packed = struct.pack(f"<{len(numbers)}I", *numbers)
    return hashlib.sha256(bytes.fromhex(prior) + packed).hexdigest()


DIGEST = sha(1)


def judge_hashes(operation: Operation, result: Result, header: Header = HASHES) -> str | None:
    """Return the law that an outcome breaks, if it breaks one."""
    _, found = judge_steps(header, [Step(1, operation, Outcome(result))])
    return found[1].law if found else None


GOOD_HASHES: list[tuple[Operation, Result, str]] = [
    (SliceKey(KEY, 1, None), Tokens((8, 9), "a"), "K1"),
    (SliceKey(KEY, None, -1), Tokens((7, 8), "a"), "K1"),
    (SliceKey(KEY, 2, 1), Tokens((), "a"), "K1"),
    (SliceKey(KEY, 0, 9), Tokens((7, 8, 9), "a"), "K1"),
    (SliceKey(PAIRS, 0, 1), Tokens(((1, 2),), 5), "K1"),
    (SliceKey(Key(()), None, None), Tokens(()), "K1"),
    (PickToken(KEY, 1), Tokens((8,), "a"), "K1"),
    (PickToken(KEY, -1), Tokens((9,), "a"), "K1"),
    (PickToken(PAIRS, 1), Tokens(((3, 4),), 5), "K1"),
    (HashPage(Key((1, 2**32 - 1))), Hashes((sha(1, 2**32 - 1),)), "H1"),
    (HashPage(PAIRS), Hashes((sha(1, 2, 3, 4),)), "H1"),
    (HashPage(KEY, DIGEST), Hashes((sha(7, 8, 9, prior=DIGEST),)), "H1"),
    (HashPage(KEY, DIGEST.upper()), Hashes((sha(7, 8, 9, prior=DIGEST),)), "H1"),
    (HashInt64("8" + "0" * 15), Number(-(2**63)), "H1"),
    (HashInt64("7" + "F" * 15 + "zz"), Number(2**63 - 1), "H1"),
    (HashBytes(b"image".hex()), Number(struct.unpack(">Q", hashlib.sha256(b"image").digest()[:8])[0]), "H1"),
]
WRONG: tuple[Result, ...] = (Tokens((7,), "b"), Hashes((DIGEST,)), Number(1), Done(), Failed("ValueError"))


@pytest.mark.parametrize(("operation", "result", "law"), GOOD_HASHES)
def test_the_right_answer_and_no_other_holds(operation: Operation, result: Result, law: str) -> None:
    """K1, H1: predicted to the last digit."""
    evidence, found = judge_steps(HASHES, [Step(1, operation, Outcome(result))])
    assert (found, set(evidence.exercised)) == (None, {law})
    assert set(evidence.reached) <= expected_goals(HASHES)
    assert {judge_hashes(operation, wrong) for wrong in WRONG} == {law}


def test_a_part_of_other_values_breaks_k2() -> None:
    """K2: slicing keeps every value, and K1 has the tokens."""
    key = Key((7, 8), ("a", None, 3))
    for operation, tokens in ((SliceKey(key, 0, 1), (7,)), (PickToken(key, -1), (8,))):
        assert judge_hashes(operation, Tokens(tokens, ("a", None, 3))) is None
        assert judge_hashes(operation, Tokens(tokens, "a")) == "K2"
        assert judge_hashes(operation, Tokens((9,), ("a", None, 3))) == "K1"
    evidence, _ = judge_steps(HASHES, [Step(1, operation, Outcome(Tokens((8,), ("a", None, 3))))])
    assert evidence.reached["a part keeps its several values"] == 1


def test_a_part_in_another_namespace_breaks_k1() -> None:
    """K1: slicing keeps the namespace, and a number is not its decimal digits."""
    assert judge_hashes(SliceKey(KEY, 1, None), Tokens((8, 9), None)) == "K1"
    assert judge_hashes(SliceKey(PAIRS, 0, 1), Tokens(((1, 2),), "5")) == "K1"


@pytest.mark.parametrize(
    ("operation", "error", "law"),
    [
        (PickToken(KEY, 3), "IndexError", "X1"),
        (PickToken(KEY, -4), "IndexError", "X1"),
        (HashPage(Key((1, -1))), "ValueError", "H1"),
        (HashPage(Key((2**32,))), "ValueError", "H1"),
        (HashPage(Key(((1, 2), (3, -4)))), "ValueError", "H1"),
        (HashPage(Key(((1, 2), (3,)))), "ValueError", "X1"),
        (HashPage(Key((1, (2,)))), "TypeError", "X1"),
        (HashPage(Key(((1,), (2,)))), "ValueError", "K1"),
        (HashPage(KEY, "no digest"), "ValueError", "X1"),
        (HashPage(KEY, "abc"), "ValueError", "X1"),
        (HashInt64("0" * 15), "ValueError", "X1"),
        (HashInt64("0" * 15 + "-"), "ValueError", "X1"),
    ],
)
def test_what_has_no_hash_is_refused(operation: Operation, error: str, law: str) -> None:
    """H1, X1: a token that has no 4 bytes is never wrapped, and nothing else is guessed at."""
    assert judge_hashes(operation, Failed(error)) is None
    for wrong in (Hashes((DIGEST,)), Number(0), Tokens((7,), "a"), Failed("OverflowError")):
        assert judge_hashes(operation, wrong) == law


@pytest.mark.parametrize(
    ("operation", "says"),
    [
        (SliceKey(Key((1, (2,))), 0, 1), "several widths"),
        (PickToken(Key(((1,), (1, 2))), 0), "several widths"),
        (SliceKey(UNSPELLED, 0, 1), "half of a surrogate pair"),
        (PickToken(UNSPELLED, 0), "half of a surrogate pair"),
        (HashPage(UNSPELLED), "half of a surrogate pair"),
        (SliceKey(Key(((1,), (2,))), 0, 1), "tuples of one number"),
        (SliceKey(Key((1,), form="listx"), 0, 1), "form 'listx'; it must be one of list, tuple"),
        (HashPage(Key((1,), form="listx")), "form 'listx'; it must be one of list, tuple"),
        (HashPage(KEY, "abcd"), "4 digits"),
        (HashBytes("abc"), "bytes in hex"),
    ],
)
def test_what_the_contract_leaves_open_of_hashes_has_no_meaning(operation: Operation, says: str) -> None:
    """A program with it is nobody's fault."""
    with pytest.raises(ProgramError, match=says):
        judge_hashes(operation, Done())


def test_a_page_hash_is_the_documented_one() -> None:
    """H1: a vector that was computed elsewhere (sha256sum of the bytes 01 00 00 00)."""
    assert hash_page((1,)) == "67abdd721024f0ff4e0b3f4c2fc13bc5bad42d0b7851d456d88d203d15aaa450"


# -- A memory of cells: what each may hold, and who is blamed for what stands there instead ------------------


BLANK_CELLS = {("a", row): (0, 0) for row in range(3)}


@pytest.fixture
def cells() -> ExpectedCells[tuple[str, int]]:
    return ExpectedCells("buffer {}, row {}", "P2", BLANK_CELLS)


def read(**changes: tuple[int, int]) -> dict[tuple[str, int], tuple[int, ...]]:
    """Return the content of blank cells, with other numbers for ``row1=...``."""
    return {cell: changes.get(f"row{cell[1]}", (0, 0)) for cell in BLANK_CELLS}


def look(cells: ExpectedCells[tuple[str, int]], **changes: tuple[int, int]) -> tuple[str, ...]:
    """Read cells in which nothing is wrong, and return the laws that this tests."""
    found, tested = read(**changes), cells.tested
    assert cells.find_wrong(found) is None
    cells.settle(found)
    return tested


def blamed(cells: ExpectedCells[tuple[str, int]], **changes: tuple[int, int]) -> str:
    wrong = cells.find_wrong(read(**changes))
    assert wrong is not None
    return wrong[3]


def test_a_content_that_strayed_blames_its_write(cells: ExpectedCells[tuple[str, int]]) -> None:
    """E5: padding that lands in a cell of somebody's is padding's fault, not the next write's."""
    cells.put("E5", ("a", 0), (7, 7))
    cells.put("P3", ("a", 1), (4, 5))
    assert blamed(cells, row0=(7, 7), row1=(4, 5), row2=(7, 7)) == "E5"


def test_a_foreign_content_was_there_before(cells: ExpectedCells[tuple[str, int]]) -> None:
    """P2: until somebody has read the cell, or again once what the law is about has happened."""
    cells = ExpectedCells("buffer {}, row {}", "P2", BLANK_CELLS, lambda content: content[0] < 0)
    cells.suspect("X1")
    assert blamed(cells, row1=(1, 0)) == "X1"
    assert blamed(cells, row1=(-1, 0)) == "P2"
    look(cells)
    cells.suspect("X1")
    assert blamed(cells, row1=(-1, 0)) == "X1"
    cells.suspect("P2")
    cells.suspect("X1")
    assert blamed(cells, row1=(-1, 0)) == "P2"


def test_a_refused_content_that_stands_somewhere_blames_its_refusal() -> None:
    """X1: it was written all the same, be it foreign or not."""
    cells = ExpectedCells("buffer {}, row {}", "P2", BLANK_CELLS, lambda content: content[0] < 0)
    cells.suspect("X1")
    cells.bring("X1", [(-1, 0), (5, 5)])
    cells.put("P3", ("a", 1), (4, 5))
    assert blamed(cells, row1=(4, 5), row2=(-1, 0)) == "X1"
    assert blamed(cells, row1=(4, 5), row2=(5, 5)) == "X1"
    assert blamed(cells, row1=(4, 5), row2=(4, 5)) == "P3"


def test_a_reading_settles_what_was_open(cells: ExpectedCells[tuple[str, int]]) -> None:
    """E5: any of the padded rows may have come last, but it stays the one that was seen."""
    cells.put("E5", ("a", 0), (1, 1), (2, 2))
    assert cells.holds(("a", 0)) == ((1, 1), (2, 2))
    assert look(cells, row0=(2, 2)) == ("E5",)
    assert cells.holds(("a", 0)) == ((2, 2),)
    assert blamed(cells, row0=(1, 1)) == "P2"


def test_writes_that_race_may_race_for_each_element(cells: ExpectedCells[tuple[str, int]]) -> None:
    """E5: a mixture of padded rows is nobody's loss, a number that no one wrote there is."""
    cells.put("E5", ("a", 0), (1, 3), (2, 4))
    assert look(cells, row0=(1, 4)) == ("E5",)
    cells.put("E5", ("a", 0), (1, 3), (2, 4))
    assert blamed(cells, row0=(3, 1)) == "E5"


def test_what_is_wrong_is_told_with_the_cell_and_both_contents(cells: ExpectedCells[tuple[str, int]]) -> None:
    """The words need no other context; a single number stands without brackets."""
    cells.put("E5", ("a", 0), (1, 1), (2, 2))
    told = ("buffer a, row 0", "(1, 1) or (2, 2)", "(3, 3)", "E5")
    assert cells.find_wrong(read(row0=(3, 3))) == told
    narrow = ExpectedCells("row {}", "P2", {(0,): (5,)})
    wrong = narrow.find_wrong({(0,): (6,)})
    assert wrong is not None
    assert wrong[:3] == ("row 0", "5", "6")


def test_blank_cells_are_not_kept() -> None:
    """Of any number; they are a mapping all the same."""
    blank = BlankCells({"a": (0,), "b": (1, 1)}, 10**12)
    assert (blank["b", 10**12 - 1], len(blank)) == ((1, 1), 2 * 10**12)
    assert next(iter(blank)) == ("a", 0)
    for cell in (("a", 10**12), ("a", -1), ("c", 0)):
        assert cell not in blank
    assert {("a", 0), ("b", 0)} == BlankCells({"a": (0,), "b": (0,)}, 1).keys()


def test_a_memory_that_nobody_owns_holds_anything_until_it_is_wiped(
    cells: ExpectedCells[tuple[str, int]],
) -> None:
    """X7: whatever was there."""
    cells.put("P3", ("a", 1), (4, 5))
    cells.release_all()
    assert cells.holds(("a", 0)) == cells.holds(("a", 1)) == ()
    cells.wipe("X7")
    assert cells.holds(("a", 0)) == ((0, 0),)
