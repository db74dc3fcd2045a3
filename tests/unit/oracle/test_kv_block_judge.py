"""The judge of blocks: good programs, and what each wrong outcome of them breaks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from pymllm.adapters.own_blocks import Blocks
from pymllm.conformance.program import run_program
from pymllm.errors import ProgramError
from pymllm.history.files import Header
from pymllm.history.operations import (
    AllocBlocks,
    Fault,
    Inspect,
    Operation,
    RegisterBlocks,
    ReleaseBlocks,
    Reset,
    RetainBlocks,
    SetClock,
    Span,
    StampBlocks,
)
from pymllm.history.outcomes import Done, Effect, Failed, NoRoom, Outcome, Slots
from pymllm.oracle.judge import judge_steps, make_judge

CONFIG = {**Blocks.CONFIGURATIONS[0], "slots": None}

Spoiler = Callable[[Outcome], Outcome]


def first(*places: int) -> tuple[Span, ...]:
    """Blocks of step 1, by their places."""
    return tuple(Span(1, place, place + 1) for place in places)


def number(value: int) -> Span:
    return Span(0, value, value + 1)


def answers(result: Any) -> Spoiler:
    return lambda outcome: dataclasses.replace(outcome, result=result)


def tells(*effects: Effect) -> Spoiler:
    return lambda outcome: dataclasses.replace(outcome, effects=effects)


def calls(**fields: Any) -> Spoiler:
    """Spoil the only call of the observer."""

    def spoil(outcome: Outcome) -> Outcome:
        (effect,) = outcome.effects
        return dataclasses.replace(outcome, effects=(dataclasses.replace(effect, **fields),))

    return spoil


def size(name: str) -> Spoiler:
    return lambda outcome: dataclasses.replace(
        outcome, sizes={**outcome.sizes, name: outcome.sizes[name] + 1}
    )


CHAIN: list[Operation] = [AllocBlocks(3), RegisterBlocks((Span(1, 0, 3),), (11, 22, 33))]
CACHED: list[Operation] = [*CHAIN, ReleaseBlocks((Span(1, 0, 3),))]
FULL: list[Operation] = [*CACHED, AllocBlocks(5)]
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

WRONG: list[tuple[list[Operation], Spoiler, str]] = [
    # What is handed out.
    ([AllocBlocks(2)], answers(Slots((0, 0))), "C1"),
    ([AllocBlocks(2)], answers(Slots((0,))), "C1"),
    ([AllocBlocks(2)], answers(Slots((0, 8))), "C1"),
    ([AllocBlocks(2)], answers(NoRoom()), "C1"),
    ([AllocBlocks(2)], size("pool_avail"), "C1"),
    ([AllocBlocks(2)], size("evictable_blocks"), "C1"),
    ([AllocBlocks(2), AllocBlocks(1)], answers(Slots((0,))), "C1"),
    ([AllocBlocks(9)], answers(Slots((0, 1))), "X4"),
    ([AllocBlocks(9)], size("pool_avail"), "X4"),
    ([*CHAIN, AllocBlocks(6)], tells(Effect("callback", (2,), (33,))), "X4"),
    # Evictions.
    ([*FULL, AllocBlocks(1)], calls(slots=(1,), target=(22,)), "C1"),
    ([*FULL, AllocBlocks(1)], calls(slots=(0, 1), target=(11, 22)), "C1"),
    ([*FULL, AllocBlocks(1)], calls(target=(22,)), "C1"),
    ([*FULL, AllocBlocks(1)], calls(sizes={"pool_avail": 0}), "X6"),
    ([*FULL, AllocBlocks(1)], tells(), "C1"),
    ([*OLD, AllocBlocks(1)], calls(slots=(3,), target=(44,)), "C1"),
    # References.
    ([AllocBlocks(1), RetainBlocks(first(0))], answers(Failed("OwnershipError")), "C1"),
    ([AllocBlocks(1), RetainBlocks(first(0))], tells(Effect("callback", (0,))), "C1"),
    ([RetainBlocks((number(0),))], answers(Done()), "C1"),
    ([RetainBlocks((number(0),))], answers(Failed("ValueError")), "C1"),
    ([RetainBlocks((number(8),))], answers(Done()), "C1"),
    ([RetainBlocks((number(9),))], answers(Done()), "C1"),
    ([RetainBlocks((number(-1),))], size("pool_avail"), "X1"),
    ([RetainBlocks((number(0),))], tells(Effect("callback", (0,))), "X1"),
    ([AllocBlocks(1), ReleaseBlocks(first(0))], answers(Failed("OwnershipError")), "C1"),
    ([AllocBlocks(1), ReleaseBlocks(first(0))], tells(), "C1"),
    ([AllocBlocks(1), ReleaseBlocks(first(0))], calls(slots=(0, 0)), "C1"),
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
    ([RegisterBlocks((number(0),), (5,))], answers(Done()), "C3"),
    ([AllocBlocks(1), StampBlocks(first(0))], answers(Failed("IndexError")), "C1"),
    ([StampBlocks((number(9),))], answers(Done()), "X1"),
    ([SetClock(3)], answers(Failed("ValueError")), "C1"),
    # The observer.
    ([Fault("callback")], answers(Failed("ValueError")), "C1"),
    ([AllocBlocks(1), Fault("callback"), ReleaseBlocks(first(0))], answers(Done()), "X2"),
    ([AllocBlocks(1), Fault("callback"), ReleaseBlocks(first(0))], size("pool_avail"), "X2"),
    ([*FULL, Fault("callback"), AllocBlocks(1)], size("pool_avail"), "X2"),
    ([AllocBlocks(1), Fault("reenter"), ReleaseBlocks(first(0))], calls(note="none"), "X6"),
]


@pytest.mark.parametrize(("program", "spoil", "law"), WRONG)
def test_a_wrong_outcome_breaks_its_law(
    law_broken_by: Callable[..., str | None], program: list[Operation], spoil: Spoiler, law: str
) -> None:
    """Each check of the judge can fail, by the law that it is about."""
    assert law_broken_by(program, spoil, slots=None) == law


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
        *FULL,
        AllocBlocks(9),
        RetainBlocks((number(99),)),
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
    history = run_program("blocks", CONFIG, operations)
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
        ([StampBlocks((number(1),))], "nobody's"),
        ([StampBlocks(first(0))], "gave 0 numbers"),
    ],
)
def test_what_the_contract_leaves_open_is_no_program(operations: list[Operation], says: str) -> None:
    """X1: a caller's breach is not judged."""
    with pytest.raises(ProgramError, match=says):
        run_program("blocks", CONFIG, operations)


@pytest.mark.parametrize(
    ("changes", "claims", "says"),
    [
        ({"policy": "fifo"}, ("callbacks",), "policy is 'fifo'"),
        ({}, ("pool",), "does not claim callbacks"),
        ({"blocks": 0}, ("callbacks",), "blocks is 0"),
    ],
)
def test_a_header_must_say_what_to_judge(changes: dict[str, Any], claims: tuple[str, ...], says: str) -> None:
    """X1: the configuration is read before the first step."""
    with pytest.raises(ProgramError, match=says):
        make_judge(Header("mine", "blocks", {**CONFIG, **changes}, claims))


def test_refusals_are_no_programs_where_none_are_claimed() -> None:
    """X1: what an allocator does with misuse is its own affair then."""
    judge = make_judge(Header("mine", "blocks", CONFIG, ("callbacks",)))
    with pytest.raises(ProgramError, match="does not claim to refuse"):
        judge.judge(1, RetainBlocks((number(0),)), Outcome(Done()))
