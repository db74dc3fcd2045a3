"""Cached states of blocks: their slots, what is in them, and hand-made histories of blocks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from pymllm.adapters.own_blocks import Blocks
from pymllm.errors import ProgramError
from pymllm.history.files import Header
from pymllm.history.operations import (
    AllocBlocks,
    AllocSlots,
    DropStates,
    EvictSlots,
    Fault,
    FindSlots,
    Inspect,
    NameStates,
    Operation,
    RegisterBlocks,
    ReleaseBlocks,
    Reset,
    RetainBlocks,
    SetClock,
    Span,
    StampBlocks,
)
from pymllm.history.outcomes import Done, Effect, Failed, FoundSlots, NoRoom, Outcome, Slots
from pymllm.oracle.judge import judge_steps, make_judge
from pymllm.search.program import run_program

# -- The judge of slots: good programs, and what each wrong outcome of them breaks ---------------------------


Spoiler = Callable[[Outcome], Outcome]


def first(*places: int) -> tuple[Span, ...]:
    """Blocks of step 1, by their places."""
    return tuple(Span(1, place, place + 1) for place in places)


def number(value: int) -> tuple[Span, ...]:
    return (Span(0, value, value + 1),)


def answers(result: Any) -> Spoiler:
    return lambda outcome: dataclasses.replace(outcome, result=result)


def size(name: str) -> Spoiler:
    return lambda outcome: dataclasses.replace(
        outcome, sizes={**outcome.sizes, name: outcome.sizes[name] + 1}
    )


FIVE: list[Operation] = [AllocBlocks(5), RegisterBlocks((Span(1, 0, 5),), (11, 22, 33, 44, 55), (0,) * 5)]
FULL: list[Operation] = [
    *FIVE,
    AllocSlots(first(0, 1, 2)),
    SetClock(2),
    StampBlocks(first(0)),
    ReleaseBlocks(first(0, 1)),
]
"""Slots 0, 1, 2 for blocks 0, 1, 2, of which 1 is older than 0, and 2 is held."""

REFUSED = answers(Failed("MambaSlotCapacityError"))

WRONG: list[tuple[list[Operation], Spoiler, str]] = [
    # A batch.
    ([*FIVE, AllocSlots(first(0, 1))], answers(Slots((0,))), "C5"),
    ([*FIVE, AllocSlots(first(0, 0))], answers(Slots((0, 1))), "C5"),
    ([*FIVE, AllocSlots(first(0))], REFUSED, "C5"),
    ([*FIVE, AllocSlots(first(0, 1))], answers(Slots((0, 0))), "C2"),
    ([*FIVE, AllocSlots(first(0, 1))], answers(Slots((0, 3))), "C2"),
    ([*FIVE, AllocSlots(first(0))], size("free_count"), "C2"),
    ([*FIVE, AllocSlots(first(0))], size("pool_avail"), "C1"),
    ([*FULL, AllocSlots(first(2))], answers(Slots((0,))), "C5"),
    ([*FULL, AllocSlots(first(0, 3))], answers(Slots((0, 0))), "C5"),
    ([*FULL, AllocSlots(first(3))], answers(Slots((0,))), "C6"),
    ([*FULL, AllocSlots(first(3))], answers(Slots((2,))), "C6"),
    ([*FULL, AllocSlots(first(3))], answers(Slots((7,))), "C2"),
    ([*FULL, EvictSlots(1), AllocSlots(first(3))], answers(Slots((1,))), "C2"),
    ([*FULL, AllocSlots(first(3, 4, 1))], answers(Slots((0, 2, 1))), "C5"),
    ([*FULL, AllocSlots(first(3, 4, 1))], size("free_count"), "C5"),
    ([*FIVE, AllocSlots(number(7))], answers(Slots((0,))), "C6"),
    ([*FIVE, AllocSlots(number(7))], size("free_count"), "X1"),
    ([*FIVE, AllocSlots(number(8))], answers(Slots((0,))), "C6"),
    # Slots for a caller.
    ([*FULL, EvictSlots(1)], answers(Slots((0,))), "C6"),
    ([*FULL, EvictSlots(1)], answers(Slots((2,))), "C6"),
    ([*FULL, EvictSlots(1)], answers(Slots((1, 0))), "C6"),
    ([*FULL, EvictSlots(1)], REFUSED, "C6"),
    ([*FULL, EvictSlots(1)], size("free_count"), "C2"),
    ([*FULL, EvictSlots(3)], answers(Slots((1, 0, 2))), "C6"),
    ([*FULL, EvictSlots(3)], answers(Failed("RuntimeError")), "C6"),
    # What is found.
    ([*FULL, FindSlots(first(0, 3))], answers(FoundSlots((0, 3), (True, False))), "C2"),
    ([*FULL, FindSlots(first(0))], answers(FoundSlots((0,), (False,))), "C2"),
    ([*FULL, FindSlots(first(0))], size("free_count"), "C2"),
    ([*FULL, FindSlots(first(0))], size("pool_avail"), "C1"),
    ([*FULL, EvictSlots(3), FindSlots(first(0))], answers(FoundSlots((-1,), (False,))), "C6"),
    ([*FULL, FindSlots(number(-1))], answers(FoundSlots((0,), (True,))), "X1"),
    # What is known, and the end.
    ([*FULL, NameStates(first(2), (33,))], answers(Failed("UsageError")), "C4"),
    ([*FULL, NameStates(first(2), (34,))], answers(Done()), "C4"),
    ([*FULL, NameStates(first(3), (44,))], answers(Done()), "C4"),
    ([*FULL, NameStates(first(2), ())], answers(Done()), "C4"),
    ([*FULL, NameStates(number(9), (0,))], answers(Done()), "C4"),
    ([*FULL, DropStates(first(2))], answers(Failed("UsageError")), "C4"),
    ([*FULL, DropStates(first(2))], size("free_count"), "C4"),
    ([*FULL, DropStates(first(2), "one by one")], size("evictable_blocks"), "C1"),
    ([*FULL, DropStates(number(9), "deregistered")], answers(Done()), "X1"),
    ([*FULL, DropStates(number(-1), "one by one")], answers(Done()), "X1"),
    # A block that goes takes its slot with it.
    ([AllocBlocks(1), AllocSlots(first(0)), ReleaseBlocks(first(0))], size("free_count"), "C6"),
    (
        [AllocBlocks(1), AllocSlots(first(0)), ReleaseBlocks(first(0))],
        lambda outcome: dataclasses.replace(outcome, effects=()),
        "C6",
    ),
    (
        [*FULL, EvictSlots(9)],
        lambda outcome: dataclasses.replace(outcome, effects=(Effect("callback", (0,)),)),
        "C6",
    ),
]


@pytest.mark.parametrize(("program", "spoil", "law"), WRONG)
def test_a_wrong_outcome_breaks_its_law(
    law_broken_by: Callable[..., str | None], program: list[Operation], spoil: Spoiler, law: str
) -> None:
    """Each check of the judge can fail, by the law that it is about."""
    assert law_broken_by(program, spoil) == law


@pytest.mark.parametrize(
    ("operation", "law"),
    [
        (AllocSlots(first(3)), "C6"),
        (EvictSlots(1), "C2"),
        (NameStates(first(2), (33,)), "C4"),
        (DropStates(first(2)), "C4"),
    ],
)
def test_an_inspection_tests_the_law_of_what_went_before(operation: Operation, law: str) -> None:
    """C2, C4, C6: once, for a second look finds nothing new."""
    history = run_program("blocks", Blocks.CONFIGURATIONS[0], [*FULL, operation, Inspect(), Inspect()])
    ends = range(len(history.steps) - 2, len(history.steps) + 1)
    counts = [judge_steps(history.header, history.steps[:end])[0].exercised for end in ends]
    assert counts[1][law] == counts[0].get(law, 0) + 1
    assert counts[2].get(law) == counts[1][law]


@pytest.mark.parametrize(
    ("operations", "says"),
    [
        ([EvictSlots(-1)], "use Malformed"),
        ([*FIVE, DropStates(first(0), "at once")], "must be one of one by one, batch"),
        ([*FIVE, DropStates((*first(0), *number(9)), "one by one")], "dropped first"),
    ],
)
def test_what_the_contract_leaves_open_is_no_program(operations: list[Operation], says: str) -> None:
    """X1: a caller's breach is not judged."""
    with pytest.raises(ProgramError, match=says):
        run_program("blocks", dict(Blocks.CONFIGURATIONS[0]), operations)


@pytest.mark.parametrize("operation", [AllocSlots(()), DropStates(()), EvictSlots(0)])
def test_slots_are_not_asked_for_where_there_are_none(
    law_broken_by: Callable[..., str | None], operation: Operation
) -> None:
    """C2: an adapter that claims none and answers all the same is no better than its program."""
    with pytest.raises(ProgramError, match="cached states are not claimed"):
        law_broken_by([operation], answers(Done()), slots=None)


# -- The judge of blocks: good programs, and what each wrong outcome of them breaks --------------------------


CONFIG_OF_BLOCKS = {**Blocks.CONFIGURATIONS[0], "slots": None}


def block_number(value: int) -> Span:
    return Span(0, value, value + 1)


def tells(*effects: Effect) -> Spoiler:
    return lambda outcome: dataclasses.replace(outcome, effects=effects)


def calls(**fields: Any) -> Spoiler:
    """Spoil the only call of the observer."""

    def spoil(outcome: Outcome) -> Outcome:
        (effect,) = outcome.effects
        return dataclasses.replace(outcome, effects=(dataclasses.replace(effect, **fields),))

    return spoil


def told_wrong_to_the_end(outcome: Outcome) -> Outcome:
    """Tell the same wrong size inside the observer and at the end."""
    (effect,), wrong = outcome.effects, {**outcome.sizes, "pool_avail": 5}
    return dataclasses.replace(outcome, effects=(dataclasses.replace(effect, sizes=wrong),), sizes=wrong)


def in_two_calls(outcome: Outcome) -> Outcome:
    """Tell the observer of each block by itself, before the trackers are updated for the other one."""
    (effect,) = outcome.effects
    parts = (((block,), (value,)) for block, value in zip(effect.slots, effect.target[::-1], strict=True))
    one, two = [dataclasses.replace(effect, slots=blocks, target=hashes) for blocks, hashes in parts]
    return dataclasses.replace(outcome, effects=(dataclasses.replace(one, sizes={"pool_avail": 0}), two))


CHAIN: list[Operation] = [AllocBlocks(3), RegisterBlocks((Span(1, 0, 3),), (11, 22, 33))]
CACHED: list[Operation] = [*CHAIN, ReleaseBlocks((Span(1, 0, 3),))]
FULL_POOL: list[Operation] = [*CACHED, AllocBlocks(5)]
OLD: list[Operation] = [
    *CHAIN,
    AllocBlocks(1),
    RegisterBlocks((Span(3, 0, 1),), (44,)),
    SetClock(3),
    StampBlocks((Span(3, 0, 1),)),
    ReleaseBlocks((Span(1, 0, 3), Span(3, 0, 1))),
    AllocBlocks(4),
]
ALL = AllocBlocks(8)

WRONG_BLOCKS: list[tuple[list[Operation], Spoiler, str]] = [
    # What is handed out.
    ([AllocBlocks(2)], answers(Slots((0, 0))), "C1"),
    ([AllocBlocks(2)], answers(Slots((0,))), "C1"),
    ([AllocBlocks(2)], answers(Slots((0, 8))), "C1"),
    ([AllocBlocks(2)], answers(NoRoom()), "C1"),
    ([AllocBlocks(2)], size("pool_avail"), "C1"),
    ([AllocBlocks(2)], size("evictable_blocks"), "C1"),
    ([AllocBlocks(2), AllocBlocks(1)], answers(Slots((0,))), "C1"),
    ([AllocBlocks(9)], answers(Slots((0, 1))), "X4"),
    ([AllocBlocks(1), AllocBlocks(9)], size("pool_avail"), "X4"),
    ([*CHAIN, AllocBlocks(6)], tells(Effect("callback", (2,), (33,))), "X4"),
    # Evictions.
    ([*FULL_POOL, AllocBlocks(1)], calls(slots=(1,), target=(22,)), "C1"),
    ([*FULL_POOL, AllocBlocks(1)], calls(slots=(0, 1), target=(11, 22)), "C1"),
    ([*FULL_POOL, AllocBlocks(1)], calls(target=(22,)), "C1"),
    ([*FULL_POOL, AllocBlocks(2)], calls(target=(33, 22)), "C1"),
    ([*FULL_POOL, AllocBlocks(1)], calls(sizes={"pool_avail": 0}), "X6"),
    ([*FULL_POOL, AllocBlocks(1)], calls(note="RuntimeError"), "X6"),
    ([*FULL_POOL, AllocBlocks(1)], tells(), "C1"),
    ([*OLD, AllocBlocks(1)], calls(slots=(3,), target=(44,)), "C1"),
    # References.
    ([AllocBlocks(1), RetainBlocks(first(0))], answers(Failed("OwnershipError")), "C1"),
    ([AllocBlocks(1), RetainBlocks(first(0))], tells(Effect("callback", (0,))), "C1"),
    ([RetainBlocks((block_number(0),))], answers(Done()), "C1"),
    ([RetainBlocks((block_number(0),))], answers(Failed("ValueError")), "C1"),
    ([RetainBlocks((block_number(8),))], answers(Done()), "C1"),
    ([RetainBlocks((block_number(9),))], answers(Done()), "C1"),
    ([AllocBlocks(1), RetainBlocks((block_number(-1),))], size("pool_avail"), "X1"),
    ([RetainBlocks((block_number(0),))], tells(Effect("callback", (0,))), "X1"),
    ([AllocBlocks(1), ReleaseBlocks(first(0))], answers(Failed("OwnershipError")), "C1"),
    ([ReleaseBlocks((block_number(0),))], answers(Done()), "C1"),
    ([AllocBlocks(1), ReleaseBlocks(first(0))], tells(), "C1"),
    ([AllocBlocks(1), ReleaseBlocks(first(0))], calls(slots=(0, 0)), "C1"),
    ([AllocBlocks(1), ReleaseBlocks(first(0))], tells(Effect("callback", (0,)), Effect("free", (0,))), "C1"),
    ([AllocBlocks(1), ReleaseBlocks(first(0))], tells(Effect("callback", (0,)), Effect("callback")), "C1"),
    ([AllocBlocks(1), ReleaseBlocks(first(0))], calls(target=(-1,)), "C1"),
    ([AllocBlocks(1), ReleaseBlocks(first(0))], size("pool_avail"), "C1"),
    ([AllocBlocks(1), ReleaseBlocks(first(0, 0))], answers(Done()), "C1"),
    ([*CACHED, ReleaseBlocks(first(0))], answers(Done()), "C1"),
    # Hashes and stamps.
    ([*CHAIN], answers(Failed("UsageError")), "C3"),
    ([*CHAIN], tells(Effect("callback", (0,))), "C3"),
    ([*CHAIN, RegisterBlocks(first(0), (12,))], answers(Done()), "C3"),
    ([AllocBlocks(1), RegisterBlocks(first(0), ())], answers(Done()), "C3"),
    ([AllocBlocks(1), RegisterBlocks(first(0), (0,))], answers(Done()), "C3"),
    ([AllocBlocks(1), RegisterBlocks(first(0), (5,), (-1,))], answers(Done()), "C3"),
    ([AllocBlocks(1), RegisterBlocks(first(0, 0), (5, 6), (0, 0))], answers(Done()), "C3"),
    ([RegisterBlocks((block_number(0),), (5,))], answers(Done()), "C3"),
    ([AllocBlocks(1), StampBlocks(first(0))], answers(Failed("IndexError")), "C1"),
    ([StampBlocks((block_number(9),))], answers(Done()), "X1"),
    ([SetClock(3)], answers(Failed("ValueError")), "C1"),
    # The observer.
    ([Fault("callback")], answers(Failed("ValueError")), "C1"),
    ([Fault("callback")], tells(Effect("callback", (0,))), "C1"),
    ([Inspect()], tells(Effect("callback", (0,))), "X8"),
    ([AllocBlocks(1), Fault("callback"), ReleaseBlocks(first(0))], answers(Done()), "X2"),
    ([AllocBlocks(1), Fault("callback"), ReleaseBlocks(first(0))], size("pool_avail"), "X2"),
    ([*FULL_POOL, Fault("callback"), AllocBlocks(1)], size("pool_avail"), "X2"),
    ([AllocBlocks(1), Fault("reenter"), ReleaseBlocks(first(0))], calls(note="none"), "X6"),
    ([*FULL_POOL, Fault("callback"), AllocBlocks(1)], answers(Slots((2,))), "X2"),
    ([*FULL_POOL, Fault("callback"), AllocBlocks(1)], answers(Failed("KeyError")), "X2"),
    ([*FULL_POOL, Fault("callback"), AllocBlocks(1)], told_wrong_to_the_end, "X6"),
    ([AllocBlocks(2), ReleaseBlocks(first(0))], calls(sizes={"pool_avail": 6}), "X6"),
    ([AllocBlocks(2), ReleaseBlocks(first(0))], told_wrong_to_the_end, "C1"),
    ([AllocBlocks(1), AllocBlocks(1)], tells(Effect("free", (1,))), "C1"),
]


@pytest.mark.parametrize(("program", "spoil", "law"), WRONG_BLOCKS)
def test_a_wrong_outcome_of_blocks_breaks_its_law(
    law_broken_by: Callable[..., str | None], program: list[Operation], spoil: Spoiler, law: str
) -> None:
    """Each check of the judge can fail, by the law that it is about."""
    assert law_broken_by(program, spoil, slots=None) == law


def test_several_calls_tell_as_much_as_one(law_broken_by: Callable[..., str | None]) -> None:
    """C1, X6: all blocks and hashes, in order; only the last must see everything gone."""
    program = [*FULL_POOL, AllocBlocks(2)]
    assert law_broken_by(program, in_two_calls, slots=None) is None

    def told_of_the_other(outcome: Outcome) -> Outcome:
        one, two = in_two_calls(outcome).effects
        effects = (dataclasses.replace(one, target=two.target), dataclasses.replace(two, target=one.target))
        return dataclasses.replace(outcome, effects=effects)

    assert law_broken_by(program, told_of_the_other, slots=None) == "C1"


def test_room_is_of_blocks_where_no_pool_is_claimed(law_broken_by: Callable[..., str | None]) -> None:
    """C1, X4: what cannot be met is a law of its own only for who claims a pool."""
    claims = ["callbacks", "refusals"]
    for spoil in (answers(Slots((0, 1))), size("pool_avail"), tells(Effect("callback", (0,)))):
        assert law_broken_by([AllocBlocks(9)], spoil, claims, slots=None) == "C1"
    assert law_broken_by([AllocBlocks(9)], lambda outcome: outcome, claims, slots=None) is None


REF_ZERO = [*CHAIN, RetainBlocks(first(2)), ReleaseBlocks(first(0, 2))]


@pytest.mark.parametrize(
    ("spoil", "law"),
    [(calls(slots=(0,), target=(11,)), "C1"), (size("pool_avail"), "C1"), (calls(target=(11, 22)), "C1")],
)
def test_a_block_goes_with_its_descendants_under_ref_zero(
    law_broken_by: Callable[..., str | None], spoil: Spoiler, law: str
) -> None:
    """C1: the held ones are deregistered, too, and stay held."""
    assert law_broken_by(REF_ZERO, spoil, slots=None, policy="ref_zero") == law


def test_recency_is_judged_only_where_it_is_claimed(law_broken_by: Callable[..., str | None]) -> None:
    """C1: any leaf may go where the order is the allocator's own."""

    def takes_another(outcome: Outcome) -> Outcome:
        return answers(Slots((3,)))(calls(slots=(3,), target=(44,))(outcome))

    program, claims = [*OLD, AllocBlocks(1)], ["callbacks", "pool", "refusals"]
    assert law_broken_by(program, takes_another, claims, slots=None) is None
    assert law_broken_by(program, takes_another, [*claims, "exact_lru"], slots=None) == "C1"


def test_a_good_program_is_evidence() -> None:
    """C1, C3, X1, X2, X4, X6: and a fault that nothing reaches is forgotten."""
    operations: list[Operation] = [
        *FULL_POOL,
        AllocBlocks(9),
        RetainBlocks((block_number(99),)),
        Inspect(),
        Fault("callback"),
        RetainBlocks(first(0)),
        ReleaseBlocks(first(0)),
        Fault("callback"),
        AllocBlocks(2),
        Fault("callback", 2),
        AllocBlocks(2),
        AllocBlocks(1),
        Reset(),
    ]
    history = run_program("blocks", CONFIG_OF_BLOCKS, operations)
    evidence, found = judge_steps(history.header, history.steps)
    assert found is None
    assert {law for law, count in evidence.exercised.items() if count} >= {"C1", "X1", "X2", "X4", "X6"}
    assert evidence.reached["the observer of an eviction raises"] == 1
    assert evidence.reached["a chain goes from its end"] == 1


@pytest.mark.parametrize(
    ("operations", "says"),
    [
        ([AllocBlocks(-1)], "use Malformed"),
        ([Fault("free")], "only a callback"),
        ([Fault("callback", 0)], "from the first on"),
        ([AllocBlocks(2), RegisterBlocks(first(0, 1), (5, 6), (6, 0))], "stands before its parent"),
        ([StampBlocks((block_number(1),))], "have no holder"),
        ([StampBlocks(first(0))], "gave 0 numbers"),
    ],
)
def test_what_the_contract_leaves_open_of_blocks_is_no_program(
    operations: list[Operation], says: str
) -> None:
    """X1: a caller's breach is not judged."""
    with pytest.raises(ProgramError, match=says):
        run_program("blocks", CONFIG_OF_BLOCKS, operations)


@pytest.mark.parametrize(
    ("changes", "claims", "says"),
    [
        ({"policy": "fifo"}, ("callbacks",), "policy is 'fifo'"),
        ({}, ("pool",), "does not claim callbacks"),
        ({"blocks": 0}, ("callbacks",), "blocks is 0"),
        *(
            ({"slots": 3, key: None}, ("callbacks", "mamba"), f"{key} is None")
            for key in ("layers", "slots", "requests", "conv_dim")
        ),
    ],
)
def test_a_header_must_say_what_to_judge(changes: dict[str, Any], claims: tuple[str, ...], says: str) -> None:
    """X1: the configuration is read before the first step."""
    with pytest.raises(ProgramError, match=says):
        make_judge(Header("mine", "blocks", {**CONFIG_OF_BLOCKS, **changes}, claims))


def test_refusals_are_no_programs_where_none_are_claimed() -> None:
    """X1: what an allocator does with misuse is its own affair then."""
    judge = make_judge(Header("mine", "blocks", CONFIG_OF_BLOCKS, ("callbacks",)))
    with pytest.raises(ProgramError, match="does not claim refuses_double_free"):
        judge.judge(1, RetainBlocks((block_number(0),)), Outcome(Done()))
