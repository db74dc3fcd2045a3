"""The judge of keys and hashes: right answers computed here by other means, and wrong ones."""

from __future__ import annotations

import dataclasses
import hashlib
import struct

import pytest

from pymllm.errors import ProgramError
from pymllm.history.files import Header, Step
from pymllm.history.operations import HashBytes, HashInt64, HashPage, Key, Operation, PickToken, SliceKey
from pymllm.history.outcomes import Done, Failed, Hashes, Number, Outcome, Result, Tokens
from pymllm.oracle.hash_judge import hash_page
from pymllm.oracle.judge import judge_steps
from pymllm.oracle.situations import expected_situations

HEADER = Header("x", "hashes", {}, ("bigrams", "extra_key", "hashes", "refusals"))
KEY = Key((7, 8, 9), "a", "int64")
PAIRS = Key(((1, 2), (3, 4)), 5)
UNSPELLED = Key((7, 8), "a\ud800")


def sha(*numbers: int, prior: str = "") -> str:
    """Hash a page by hand, the way the specification words it."""
    packed = struct.pack(f"<{len(numbers)}I", *numbers)
    return hashlib.sha256(bytes.fromhex(prior) + packed).hexdigest()


DIGEST = sha(1)


def judge(operation: Operation, result: Result, header: Header = HEADER) -> str | None:
    """Return the law that an outcome breaks, if it breaks one."""
    _, found = judge_steps(header, [Step(1, operation, Outcome(result))])
    return found[1].law if found else None


GOOD: list[tuple[Operation, Result, str]] = [
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


@pytest.mark.parametrize(("operation", "result", "law"), GOOD)
def test_the_right_answer_and_no_other_holds(operation: Operation, result: Result, law: str) -> None:
    """K1, H1: predicted to the last digit."""
    evidence, found = judge_steps(HEADER, [Step(1, operation, Outcome(result))])
    assert (found, set(evidence.exercised)) == (None, {law})
    assert set(evidence.reached) <= expected_situations(HEADER)
    assert {judge(operation, wrong) for wrong in WRONG} == {law}


def test_a_part_in_another_namespace_breaks_k1() -> None:
    """K1: slicing keeps the namespace, and a number is not its decimal digits."""
    assert judge(SliceKey(KEY, 1, None), Tokens((8, 9), None)) == "K1"
    assert judge(SliceKey(PAIRS, 0, 1), Tokens(((1, 2),), "5")) == "K1"


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
    assert judge(operation, Failed(error)) is None
    for wrong in (Hashes((DIGEST,)), Number(0), Tokens((7,), "a"), Failed("OverflowError")):
        assert judge(operation, wrong) == law


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
def test_what_the_contract_leaves_open_has_no_meaning(operation: Operation, says: str) -> None:
    """A program with it is nobody's fault."""
    with pytest.raises(ProgramError, match=says):
        judge(operation, Done())


def test_a_page_hash_is_the_documented_one() -> None:
    """H1: a vector that was computed elsewhere (sha256sum of the bytes 01 00 00 00)."""
    assert hash_page([1]) == "67abdd721024f0ff4e0b3f4c2fc13bc5bad42d0b7851d456d88d203d15aaa450"


def test_situations_are_those_of_the_capabilities() -> None:
    """Tuples and refusals are expected only of whom claims them."""
    sizes = [
        len(expected_situations(dataclasses.replace(HEADER, capabilities=capabilities)))
        for capabilities in ((), ("bigrams",), ("refusals",), ("bigrams", "refusals"))
    ]
    assert sizes == sorted(set(sizes))
