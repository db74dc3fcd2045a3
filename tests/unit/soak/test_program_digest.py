"""Programs that are the same but for names."""

from __future__ import annotations

import msgspec
import pytest

from pymllm.history.files import Header, History, Step
from pymllm.history.operations import (
    OPERATIONS,
    AddRequest,
    Alloc,
    AllocBlocks,
    AllocRows,
    AllocSlots,
    ClearWorker,
    CopyStates,
    DropStates,
    DropWorker,
    FindBlocks,
    FindSlots,
    Free,
    FreeRow,
    FreeTrack,
    Insert,
    Key,
    Lock,
    Match,
    MoveKV,
    MoveSWA,
    NameStates,
    Operation,
    ReadHalves,
    RegisterBlocks,
    Release,
    ReleaseBlocks,
    RemoveBlocks,
    ResetStates,
    RestoreLive,
    RetainBlocks,
    RunStep,
    SaveLive,
    Span,
    StampBlocks,
    StoreBlocks,
    StoreState,
    WriteEntries,
    WriteKV,
    WriteLive,
    WriteRow,
    WriteState,
)
from pymllm.soak.program_digest import NAMES, digest_program


def program(*operations: Operation, first: int = 1, config: dict[str, int] | None = None) -> History:
    steps = [Step(number, operation) for number, operation in enumerate(operations, first)]
    return History(Header("radix", "prefix", dict(config or {"slots": 8})), steps)


def example(one: int, other: int, space: str | None, first: int = 1) -> History:
    """Allocate, insert, match and lock."""
    key = Key((one, other, one), space)
    return program(Alloc(3), Insert(key, ()), Match(key), Lock(first + 2), first=first)


def literal(*numbers: int) -> tuple[Span, ...]:
    return tuple(Span(0, number, number + 1) for number in numbers)


def dropped(number: int) -> DropStates:
    return DropStates((), "deregistered", (number,))


def stored(one: int, other: int, *blocks: tuple[int, int]) -> tuple[Operation, ...]:
    """A worker has two blocks, and another one a block below the second."""
    return StoreBlocks(one, blocks[:2]), StoreBlocks(other, blocks[2:], blocks[1][0])


def test_programs_that_differ_in_names_are_one() -> None:
    """Tokens, namespaces and steps; what they are told apart by counts, and a configuration does not."""
    digest = digest_program(example(1, 2, "a"))
    assert digest == "48a71ccaacc2f0c0"  # findings of older versions are known by it
    assert digest_program(example(7, 5, "b")) == digest
    assert digest_program(example(1, 2, "a", first=40)) == digest
    larger = program(*(step.operation for step in example(1, 2, "a").steps), config={"slots": 9})
    assert digest_program(larger) == digest
    others = [
        example(1, 1, "a"),
        example(1, 2, None),
        program(*(step.operation for step in example(1, 2, "a").steps[:3])),
        program(Alloc(4), *(step.operation for step in example(1, 2, "a").steps[1:])),
    ]
    assert len({digest, *map(digest_program, others)}) == 1 + len(others)


BIGRAMS = Key(((1, 2), (2, 3)))
SAME: dict[str, tuple[tuple[Operation, ...], tuple[Operation, ...]]] = {
    "bigrams": ((Match(BIGRAMS),), (Match(Key(((7, 1), (1, 9)))),)),
    "slots": ((Alloc(4), Free(literal(5, 6))), (Alloc(4), Free((Span(0, 2, 4),)))),
    "halves": (
        (MoveSWA(literal(1, 2), literal(3, 1)), ReadHalves(literal(2))),
        (MoveSWA(literal(4, 3), literal(9, 4)), ReadHalves(literal(3))),
    ),
    "slots of a key": ((Insert(BIGRAMS, literal(4, 4)),), (Insert(BIGRAMS, literal(1, 1)),)),
    "slots of rows": (
        (WriteKV(0, (0, 3, 2), (), ()), MoveKV(0, 2, 4, 2)),
        (WriteKV(0, (0, 6, 5), (), ()), MoveKV(0, 5, 7, 2)),
    ),
    "rows": (
        (AllocRows(2), WriteRow(literal(1)[0], 0, 1, (9,)), FreeRow(literal(1)[0])),
        (AllocRows(2), WriteRow(literal(2)[0], 0, 1, (9,)), FreeRow(literal(2)[0])),
    ),
    "rows of entries": (
        (WriteEntries(literal(2, 0, 1), (0, 0, 1), (1, 2, 3)),),
        (WriteEntries(literal(1, 0, 4), (0, 0, 1), (1, 2, 3)),),
    ),
    "states": (
        (CopyStates(literal(1, 2), literal(2, 1)), ResetStates(literal(1)), FreeTrack(*literal(2))),
        (CopyStates(literal(5, 4), literal(4, 5)), ResetStates(literal(5)), FreeTrack(*literal(4))),
    ),
    "a state": ((WriteState(0, *literal(3), 1, 2),), (WriteState(0, *literal(1), 1, 2),)),
    "blocks": (
        (AllocBlocks(3), RetainBlocks(literal(0, 1)), StampBlocks(literal(1)), ReleaseBlocks(literal(0))),
        (AllocBlocks(3), RetainBlocks(literal(2, 0)), StampBlocks(literal(0)), ReleaseBlocks(literal(2))),
    ),
    "hashes": (
        (RegisterBlocks(literal(0, 1), (7, 8), (0, 7)), NameStates(literal(1), (8,)), dropped(7)),
        (RegisterBlocks(literal(4, 2), (1, 2), (0, 1)), NameStates(literal(2), (2,)), dropped(1)),
    ),
    "states of blocks": (
        (AllocSlots(literal(1)), FindSlots(literal(1)), StoreState(literal(1)[0], 0, 1, 2)),
        (AllocSlots(literal(6)), FindSlots(literal(6)), StoreState(literal(6)[0], 0, 1, 2)),
    ),
    "requests of blocks": (
        (WriteLive(0, 0, 1, 2), SaveLive(literal(3), (0,)), RestoreLive(1, literal(2)[0])),
        (WriteLive(5, 0, 1, 2), SaveLive(literal(1), (5,)), RestoreLive(0, literal(4)[0])),
    ),
    "tokens of requests": (
        (AddRequest((4, 5)), RunStep((5,)), Release(1)),
        (AddRequest((2, 1)), RunStep(), Release(1)),
    ),
    "an index": (
        (*stored(1, 2, (3, 5), (4, 6), (9, 5)), RemoveBlocks(1, (4,)), FindBlocks((5,))),
        (*stored(0, 7, (1, 2), (0, 9), (8, 2)), RemoveBlocks(0, (0,)), FindBlocks((2,))),
    ),
    "workers": ((ClearWorker(1), DropWorker(1)), (ClearWorker(3), DropWorker(3))),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_numbers_that_are_names_are_named_by_who_comes_first(name: str) -> None:
    """Whatever number of the same kind they are."""
    one, other = SAME[name]
    assert one != other
    assert digest_program(program(*one)) == digest_program(program(*other))


DIFFERENT: dict[str, tuple[tuple[Operation, ...], tuple[Operation, ...]]] = {
    "the same slot twice": ((Free(literal(5, 6)),), (Free(literal(5, 5)),)),
    "padding": ((Free(literal(5, 1)),), (Free(literal(5, 0)),)),
    "no slot": ((ReadHalves(literal(5)),), (ReadHalves(literal(-1)),)),
    "what a step gave": ((Alloc(2), Free(literal(1))), (Alloc(2), Free((Span(1, 0, 1),)))),
    "the place in what a step gave": ((Alloc(2), Free((Span(1, 0, 1),))), (Alloc(2), Free((Span(1, 1, 2),)))),
    "rows that meet": ((MoveKV(0, 2, 4, 2),), (MoveKV(0, 2, 3, 2),)),
    "a layer": ((MoveKV(0, 2, 4, 2),), (MoveKV(1, 2, 4, 2),)),
    "another row": (
        (WriteRow(literal(1)[0], 0, 1, (9,)), FreeRow(literal(1)[0])),
        (WriteRow(literal(1)[0], 0, 1, (9,)), FreeRow(literal(2)[0])),
    ),
    "what is written": ((WriteRow(literal(1)[0], 0, 1, (9,)),), (WriteRow(literal(1)[0], 0, 1, (8,)),)),
    "a request that comes again": (
        (WriteLive(0, 0, 1, 2), WriteLive(0, 0, 1, 2)),
        (WriteLive(0, 0, 1, 2), WriteLive(1, 0, 1, 2)),
    ),
    "a first block": ((RegisterBlocks(literal(0), (7,), (0,)),), (RegisterBlocks(literal(0), (7,), (7,)),)),
    "a hash that nobody has": (
        (RegisterBlocks(literal(0), (7,)), dropped(7)),
        (RegisterBlocks(literal(0), (7,)), dropped(8)),
    ),
    "another worker": ((ClearWorker(1), DropWorker(1)), (ClearWorker(1), DropWorker(2))),
    "what another worker has": (
        (StoreBlocks(1, ((3, 5),)), FindBlocks((5,))),
        (StoreBlocks(1, ((3, 5),)), FindBlocks((3,))),
    ),
    "more slots": ((Free(literal(5)),), (Free(literal(5, 6)),)),
    "an operation": ((Free(literal(5)),), (ReadHalves(literal(5)),)),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_programs_that_differ_in_more_are_two(name: str) -> None:
    """Which names are the same, and all that is no name."""
    one, other = DIFFERENT[name]
    assert digest_program(program(*one)) != digest_program(program(*other))


def test_a_program_of_somebody_else_is_not_spelled_out_without_end() -> None:
    """A span may be of more numbers than fit into memory."""
    long = MoveKV(0, 1, 5, 10**30), ReadHalves((Span(0, 0, 10**30),))
    assert digest_program(program(*long)) != digest_program(program(long[0]))


KEPT = {
    *(
        "tokens",
        "secondary",
        "count",
        "limit",
        "reserve",
        "start",
        "stop",
        "at",
        "positions",
        "prev_prefix_len",
        "next_token",
    ),
    # amounts, positions, and what has an order
    *("swa_evicted_seqlen", "priority", "nth", "clock", "layer", "number"),
    *("values", "keys", "recurrent", "conv", "ramp", "prior", "digest", "data"),  # contents
    *(
        "form",
        "shape",
        "how",
        "call",
        "wrong",
        "early",
        "key",
        "medium",
        "group",
    ),  # words, and groups of layers; a key has names of its own
    *("of", "lock", "token", "request", "transfer"),  # steps
}


def test_every_field_is_a_name_or_known_to_be_none() -> None:
    """A new operation is looked at."""
    fields = {(kind, it.name) for kind in (Key, *OPERATIONS) for it in msgspec.structs.fields(kind)}
    names = {(kind, name) for kind, of in NAMES.items() for name in of}
    assert names <= fields
    assert {name for _, name in fields - names} == KEPT
