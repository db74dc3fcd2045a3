"""Blocks and the slots beside them: spoiled outcomes, views and coverage goals."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from pymllm.adapters.own_blocks import Blocks
from pymllm.errors import ProgramError
from pymllm.history.operations import (
    AllocBlocks,
    AllocSlots,
    BeginTransfer,
    DropStates,
    EndTransfer,
    EvictSlots,
    Fault,
    FindSlots,
    Inspect,
    Malformed,
    NameStates,
    Operation,
    ReadLive,
    ReadStates,
    RegisterBlocks,
    ReleaseBlocks,
    Reset,
    RestoreLive,
    RetainBlocks,
    SaveLive,
    SetClock,
    Span,
    StampBlocks,
    StoreState,
    WriteLive,
)
from pymllm.history.outcomes import BlockBooks, Done, Effect, Failed, Number, Outcome, Slots, States
from pymllm.oracle.judge import judge_steps
from pymllm.search.program import run_program

# -- The judge of blocks, slots and states: views, copies and resets, and what each wrong outcome breaks -----


Spoiler = Callable[[Outcome], Outcome]

ONE = Span(1, 0, 1)
OUTSIDE = (Span(0, 99, 100),)


def answers(result: Any) -> Spoiler:
    return lambda outcome: dataclasses.replace(outcome, result=result)


def view(name: str, place: int, value: Any) -> Spoiler:
    """Tell one entry of a view, or of what was read, wrong; past its end, tell one more."""

    def spoil(outcome: Outcome) -> Outcome:
        told = outcome.result
        assert isinstance(told, BlockBooks | States)
        entries = list(getattr(told, name))
        entries[place : place + 1] = [value]
        return dataclasses.replace(outcome, result=dataclasses.replace(told, **{name: tuple(entries)}))

    return spoil


def form(**fields: Any) -> Spoiler:
    def spoil(outcome: Outcome) -> Outcome:
        assert isinstance(outcome.result, States)
        return dataclasses.replace(outcome, result=dataclasses.replace(outcome.result, **fields))

    return spoil


def tells(*effects: Effect) -> Spoiler:
    return lambda outcome: dataclasses.replace(outcome, effects=effects)


def told_of(**fields: Any) -> Spoiler:
    """Tell the observer something else."""

    def spoil(outcome: Outcome) -> Outcome:
        (effect,) = outcome.effects
        return dataclasses.replace(outcome, effects=(dataclasses.replace(effect, **fields),))

    return spoil


BOOKS: list[Operation] = [
    AllocBlocks(2),
    RegisterBlocks((ONE,), (11,)),
    AllocSlots((Span(1, 0, 2),)),
    NameStates((ONE,), (11,)),
    Inspect(),
]
CROWDED: list[Operation] = [
    *BOOKS[:2],
    ReleaseBlocks((Span(1, 0, 2),)),
    AllocBlocks(8),
]
USED: list[Operation] = [Inspect(), AllocBlocks(2), AllocSlots((Span(2, 0, 1),)), Reset(), Inspect()]
NOT_SEEN: list[Operation] = [*BOOKS[:-1], Reset(), Inspect()]
STORED: list[Operation] = [AllocBlocks(2), AllocSlots((ONE,)), StoreState(ONE, 1, 5, -1, 2)]
SAVED: list[Operation] = [
    *STORED[:2],
    WriteLive(1, 0, 5, 6),
    SaveLive((Span(2, 0, 1),), (1,)),
]
TORN: list[Operation] = [*STORED, RestoreLive(2, ONE)]

WRONG: list[tuple[list[Operation], Spoiler, str]] = [
    # Views.
    (BOOKS, view("refs", 0, 2), "C1"),
    (BOOKS, view("refs", 9, 0), "C1"),
    (BOOKS, view("stamps", 1, 3), "C1"),
    (BOOKS, view("hashes", 1, 22), "C3"),
    (BOOKS, view("block_of_hash", 1, (22, 1)), "C3"),
    (BOOKS, view("slot_of_block", 1, -1), "C2"),
    (BOOKS, view("block_of_slot", 2, 4), "C2"),
    (BOOKS, view("free_slots", 0, 2), "C2"),
    (BOOKS, view("free_slots", 1, 0), "C2"),
    (BOOKS, view("block_of_state", 1, (22, 1)), "C4"),
    (BOOKS, answers(Done()), "C1"),
    ([RetainBlocks(OUTSIDE), Inspect()], view("refs", 0, 1), "X1"),
    ([AllocBlocks(9), Inspect()], view("refs", 0, 1), "X4"),
    ([AllocBlocks(1), EvictSlots(1), Inspect()], view("free_slots", 0, 1), "C6"),
    # An eviction of which the slots must hear.
    (CROWDED, told_of(target=()), "C6"),
    (CROWDED, told_of(target=(11, 22)), "C6"),
    ([*CROWDED[:-1], Fault("callback"), CROWDED[-1]], told_of(target=()), "C6"),
    # Resets.
    (USED, view("free_slots", 0, 2), "C9"),
    (USED, view("stamps", 8, 7), "C9"),
    (USED, view("hashes", 8, 7), "C9"),
    ([AllocBlocks(1), Reset()], answers(Failed("RuntimeError")), "X7"),
    (
        [AllocBlocks(1), Reset()],
        lambda outcome: dataclasses.replace(outcome, effects=(Effect("callback", (0,)),)),
        "X7",
    ),
    (
        [AllocBlocks(1), Reset()],
        lambda outcome: dataclasses.replace(outcome, sizes={**outcome.sizes, "pool_avail": 7}),
        "C9",
    ),
    ([*STORED, Reset(), ReadStates(1)], view("conv", 0, (1, 0, 0, 0)), "C9"),
    # States.
    (STORED, answers(Failed("ValueError")), "C7"),
    ([*STORED, ReadStates(1)], view("recurrent", 0, (5, 7, 8)), "C7"),
    ([*STORED, ReadStates(0)], view("conv", 0, (5, 7, 9, 11)), "C7"),
    ([*STORED, ReadStates(0)], view("conv", 3, (0, 0, 0, 0)), "C7"),
    ([*STORED, ReadStates(0)], form(conv_shape=(3, 4)), "C7"),
    ([*STORED, ReadStates(0)], form(recurrent_dtype="float16"), "C7"),
    ([*STORED, ReadStates(0)], form(recurrent_shape=(5, 1, 3)), "C7"),
    ([*STORED[:2], ReadStates(0)], view("recurrent", 0, (5, 7)), "C7"),
    ([*STORED, ReadStates(0)], view("conv", 9, (0, 0, 0, 0)), "C7"),
    # What tells the observer of nothing.
    ([*STORED, ReadStates(0)], tells(Effect("callback", (0,))), "X8"),
    ([*STORED, ReadLive(0)], tells(Effect("callback", (0,))), "X8"),
    (STORED[:2], tells(Effect("callback", (0,))), "C6"),
    (BOOKS, tells(Effect("callback", (0,))), "X8"),
    ([*STORED, ReadLive(0)], view("recurrent", 3, (5, 7, 9)), "C7"),
    ([*STORED, ReadLive(0)], answers(Done()), "C7"),
    ([*STORED, ReadStates(0)], answers(Done()), "C7"),
    (SAVED[:3], answers(Failed("ValueError")), "C7"),
    (SAVED, answers(Failed("ValueError")), "C7"),
    ([*SAVED, ReadStates(0)], view("conv", 2, (0, 0, 0, 0)), "C7"),
    ([*SAVED, ReadStates(1)], view("conv", 0, (6, 6, 6, 6)), "C7"),
    (TORN, answers(Number(0)), "C7"),
    ([*TORN, ReadLive(1)], view("conv", 2, (-1, -1, -1, -1)), "C7"),
    ([*TORN, ReadLive(1)], view("conv", 1, (-1, 1, 3, 5)), "C7"),
    ([AllocBlocks(1), RestoreLive(0, ONE)], answers(Number(1)), "C7"),
    ([AllocBlocks(1), RestoreLive(0, ONE), ReadLive(0)], view("conv", 0, (1, 0, 0, 0)), "C7"),
    (
        [AllocBlocks(1), RestoreLive(0, ONE)],
        lambda outcome: dataclasses.replace(outcome, effects=(Effect("callback", (0,)),)),
        "C7",
    ),
    # Misuse of states.
    ([AllocBlocks(1), StoreState(ONE, 0, 1, 1)], answers(Done()), "C7"),
    ([*STORED[:2], StoreState(ONE, 2, 1, 1)], answers(Done()), "X1"),
    ([StoreState(OUTSIDE[0], 0, 1, 1)], answers(Done()), "X1"),
    ([*STORED[:2], SaveLive((Span(2, 0, 1),), (3,))], answers(Done()), "X1"),
    ([*STORED[:2], SaveLive((Span(2, 0, 1),), ())], answers(Done()), "X1"),
    ([*STORED, RestoreLive(3, ONE)], answers(Number(1)), "X1"),
    ([*STORED, RestoreLive(0, OUTSIDE[0])], answers(Number(0)), "X1"),
    ([*STORED, RestoreLive(3, ONE), ReadLive(1)], view("conv", 3, (-1, 1, 3, 5)), "X1"),
    ([Malformed("evict_slots", "a negative count")], answers(Done()), "X1"),
]


@pytest.mark.parametrize(("program", "spoil", "law"), WRONG)
def test_a_wrong_outcome_breaks_its_law(
    law_broken_by: Callable[..., str | None], program: list[Operation], spoil: Spoiler, law: str
) -> None:
    """Each check of the judge can fail, by the law that it is about."""
    assert law_broken_by(program, spoil) == law


def test_a_reset_is_compared_with_what_was_new_only_where_that_was_seen(
    law_broken_by: Callable[..., str | None],
) -> None:
    """C9: else with the model, which leaves the order of free slots open."""

    def turned(outcome: Outcome) -> Outcome:
        return view("free_slots", 0, 2)(view("free_slots", 2, 0)(outcome))

    assert law_broken_by(NOT_SEEN, turned) is None
    assert law_broken_by(USED, turned) == "C9"
    assert law_broken_by(NOT_SEEN, view("refs", 0, 1)) == "C9"


@pytest.mark.parametrize(("evicted", "met"), [(0, 0), (1, 1), (2, 0)])
def test_a_reset_is_noticed_where_slots_are_in_use_and_in_hand(evicted: int, met: int) -> None:
    """C9: with some of two slots evicted into a caller's hands."""
    program = [AllocBlocks(2), AllocSlots((Span(1, 0, 2),)), EvictSlots(evicted), Reset()]
    program.insert(2, ReleaseBlocks((Span(1, 0, 2),)))
    program.insert(2, RegisterBlocks((Span(1, 0, 2),), (5, 6)))
    history = run_program("blocks", dict(Blocks.CONFIGURATIONS[0]), program)
    evidence, found = judge_steps(history.header, history.steps)
    assert found is None
    assert evidence.reached["a reset with slots in use and in hand"] == met


def test_a_reset_takes_something_away_only_where_something_is_held() -> None:
    """X7: what nobody had cannot be missed, so that such a reset tests nothing."""
    counts = []
    for before in ([], [AllocBlocks(1)]):
        history = run_program("blocks", dict(Blocks.CONFIGURATIONS[0]), [*before, Reset()])
        evidence, found = judge_steps(history.header, history.steps)
        assert found is None
        counts.append(evidence.exercised.get("X7", 0))
    assert counts == [0, 1]


def test_a_view_is_tested_for_all_that_came_before_it() -> None:
    """C1, C3, C2: each operation since the last look is looked for, a look itself for nothing."""
    history = run_program("blocks", dict(Blocks.CONFIGURATIONS[0]), [*BOOKS, Inspect(), FindSlots((ONE,))])
    counts = [judge_steps(history.header, history.steps[:until])[0].exercised for until in (4, 5, 6)]
    found = [{law: count for law, count in one.items() if law in ("C3", "C4")} for one in counts]
    assert found == [{}, {"C3": 1, "C4": 1}, {"C3": 1, "C4": 1}]


@pytest.mark.parametrize(
    ("operations", "says"),
    [
        ([WriteLive(3, 0, 1, 1)], "leaves the live states"),
        ([WriteLive(0, 2, 1, 1)], "leaves the live states"),
        ([WriteLive(0, 0, 127, 1, 1)], "every dtype"),
        ([SaveLive((Span(0, 0, 1),), (0,))], "in use or in hand"),
        ([*SAVED[:2], SaveLive((Span(2, 0, 1), Span(2, 0, 1)), (0, 0))], "named once"),
        ([AllocBlocks(1), RestoreLive(3, ONE)], "nothing to restore"),
        ([AllocBlocks(2), RestoreLive(0, Span(1, 0, 2))], "must name one"),
    ],
)
def test_what_the_contract_leaves_open_is_no_program(operations: list[Operation], says: str) -> None:
    """X1: a caller's breach is not judged."""
    with pytest.raises(ProgramError, match=says):
        run_program("blocks", dict(Blocks.CONFIGURATIONS[0]), operations)


@pytest.mark.parametrize("operation", [ReadStates(2), ReadLive(-1)])
def test_a_layer_that_is_not_there_is_no_program(
    law_broken_by: Callable[..., str | None], operation: Operation
) -> None:
    """X1: the states are read by whoever has them, not by the allocator."""
    with pytest.raises(ProgramError, match="is not one of 2"):
        law_broken_by([operation], answers(Done()))


def test_states_are_not_asked_for_where_there_are_none(law_broken_by: Callable[..., str | None]) -> None:
    """C7: an adapter that claims none and answers all the same is no better than its program."""
    with pytest.raises(ProgramError, match="cached states are not claimed"):
        law_broken_by([ReadLive(0)], answers(Done()), slots=None)


def test_a_release_is_followed_to_the_end() -> None:
    """C6: what was released is free, and its slot with it."""
    program = [*BOOKS[:-1], ReleaseBlocks((Span(1, 0, 2),)), Inspect(), FindSlots((Span(1, 0, 2),))]
    history = run_program("blocks", dict(Blocks.CONFIGURATIONS[0]), program)
    assert judge_steps(history.header, history.steps)[1] is None


@pytest.mark.parametrize(
    "spoil", [view("stamps", 5, 99), view("stamps", 8, 4), view("refs", 8, 7), view("hashes", 8, 7)]
)
def test_what_is_told_of_the_dummy_and_of_free_blocks_is_open(
    law_broken_by: Callable[..., str | None], spoil: Spoiler
) -> None:
    """C1, C3: stamps of what nobody has, and all that is told of the dummy."""
    assert law_broken_by(BOOKS, spoil) is None


def test_slots_are_not_looked_at_where_there_are_none(law_broken_by: Callable[..., str | None]) -> None:
    """C2: an attention model has blocks alone."""
    assert law_broken_by([*BOOKS[:2], Inspect()], view("slot_of_block", 0, 3), slots=None) is None


def test_a_dtype_that_is_not_told_is_not_judged(law_broken_by: Callable[..., str | None]) -> None:
    """C7: not every language has a name for it."""
    assert law_broken_by([*STORED, ReadStates(0)], form(recurrent_dtype="", conv_dtype="")) is None


# -- When the less obvious coverage goals of blocks count as met ---------------------------------------------


def met_by(*program: Operation, **config: Any) -> set[str]:
    """Play a program on ours, and return what its last operation meets."""
    history = run_program("blocks", {**Blocks.CONFIGURATIONS[0], **config}, program)
    found = []
    for steps in (history.steps[:-1], history.steps):
        evidence, broken = judge_steps(history.header, steps)
        assert broken is None
        found.append(evidence.reached)
    return set(found[1] - found[0])


def blocks_of(step: int, *places: int) -> tuple[Span, ...]:
    return tuple(Span(step, place, place + 1) for place in places)


# Blocks 0 - 1 - 2 under 11, 22, 33, of which the first is older than the rest.
def test_a_registered_block_that_goes_without_a_hash_was_never_registered(
    law_broken_by: Callable[..., str | None],
) -> None:
    """C3; C1 where it goes with its hash, and C6 of a block that goes rightly."""
    program: list[Operation] = [*BOOKS[:2], ReleaseBlocks((Span(1, 0, 2),))]
    laws = [
        law_broken_by(program, tells(Effect("callback", (0, 1), hashes)), slots=None)
        for hashes in ((), (11,))
    ]
    assert laws == ["C3", "C1"]
    assert law_broken_by(program, tells(Effect("callback", (1,), (11,)))) == "C6"


AGED: list[Operation] = [
    AllocBlocks(3),
    RegisterBlocks(blocks_of(1, 0, 1, 2), (11, 22, 33)),
    SetClock(1),
    StampBlocks(blocks_of(1, 1, 2)),
]
IDLE: list[Operation] = [*AGED, ReleaseBlocks(blocks_of(1, 0, 1, 2))]
LEAF = {
    "a cached block is evicted",
    "an older parent waits for its child",
    "an allocation takes free blocks and cached ones",
    "the pool is exhausted",
}
PAIR = LEAF | {"a chain goes from its end"}


@pytest.mark.parametrize(
    ("count", "met"), [(6, LEAF), (7, PAIR), (8, PAIR | {"a chain of three goes from its end"})]
)
def test_victims_say_why_they_go(count: int, met: set[str]) -> None:
    """C1: the chain goes from its end, though its beginning is older."""
    assert met_by(*IDLE, AllocBlocks(count)) == met


def test_equally_old_leaves_and_held_children_are_noted() -> None:
    """C1: which of two goes is open; a cached block above a held one stays."""
    program = [
        *AGED,
        AllocBlocks(2),
        RegisterBlocks(blocks_of(5, 0, 1), (44, 55), (0, 0)),
        ReleaseBlocks((*blocks_of(1, 0, 1), *blocks_of(5, 0, 1))),
        AllocBlocks(3),
    ]
    for count in (1, 2):
        assert met_by(*program, AllocBlocks(count)) == {
            "a cached block is evicted",
            "equally old blocks wait for eviction",
            "a cached block is spared for its held child",
            "the pool is exhausted",
        }


def test_a_release_says_what_becomes_of_its_blocks() -> None:
    """C1: shared ones stay, unregistered ones are free, and with ref_zero descendants go along."""
    program = [*AGED, AllocBlocks(1), RetainBlocks(blocks_of(1, 1, 1))]
    assert met_by(*program, ReleaseBlocks((*blocks_of(1, 1, 1), *blocks_of(5, 0)))) == {
        "a block is released twice in one call",
        "a shared block stays with its other holder",
        "a block without a hash becomes free",
    }
    assert met_by(*AGED, ReleaseBlocks(blocks_of(1, 0)), policy="ref_zero") == {
        "a block goes with its descendants",
        "three generations go at once",
        "a held descendant is deregistered",
    }


@pytest.mark.parametrize(
    ("spans", "hashes", "parents", "met"),
    [
        (
            (*blocks_of(1, 2), *blocks_of(5, 0, 1, 2)),
            (33, 11, 44, 55),
            (22, 0, 99, 33),
            {
                "a registered block is registered again",
                "a hash is taken",
                "a parent is not registered",
                "a chain is registered",
            },
        ),
        (blocks_of(5, 1), (44,), (33,), {"a block is registered below one of another call"}),
        (
            blocks_of(5, 0, 1),
            (11, 44),
            None,
            {"a hash is taken", "a parent is not registered although its hash is another's"},
        ),
    ],
)
def test_a_registration_says_what_became_of_its_entries(
    spans: tuple[Span, ...], hashes: tuple[int, ...], parents: tuple[int, ...] | None, met: set[str]
) -> None:
    """C3: each reason once, and none where nothing is cached."""
    program = [*AGED, AllocBlocks(3), RegisterBlocks(spans, hashes, parents)]
    assert met_by(*program) == met
    assert met_by(*program, caching=False) == set()


# All three slots are those of 0, which is older, 1, and 2, which is held.
SLOTTED: list[Operation] = [
    *AGED,
    AllocSlots(blocks_of(1, 0, 1, 2)),
    NameStates(blocks_of(1, 1), (22,)),
    ReleaseBlocks(blocks_of(1, 0, 1)),
]


def test_slots_say_whose_they_were() -> None:
    """C5, C6: what is spared, and who goes instead."""
    batch = [*SLOTTED, AllocBlocks(1), AllocSlots((*blocks_of(1, 0), *blocks_of(8, 0, 0)))]
    assert met_by(*batch) == {
        "a batch names a block twice",
        "a block keeps its slot",
        "a slot is evicted for want of room",
        "an older slot is spared for its block is in the batch",
    }
    hand = {"slots are taken by a caller"}
    assert met_by(*SLOTTED, EvictSlots(0)) == set()
    assert met_by(*SLOTTED, EvictSlots(1)) == hand | {"the older of several slots goes"}
    younger = [*SLOTTED, SetClock(2), StampBlocks(blocks_of(1, 0, 1))]
    assert met_by(*younger, EvictSlots(1)) == hand | {
        "an older slot is spared for its block is held",
        "the lower of equally old blocks loses its slot",
    }


@pytest.mark.parametrize(("clock", "met"), [(0, {"the clock goes back"}), (1, set()), (2, set())])
def test_a_clock_that_goes_back_is_noticed(clock: int, met: set[str]) -> None:
    """C1, C6: recency means nothing then."""
    assert met_by(*AGED, SetClock(clock)) == met


def test_drops_say_what_had_a_state() -> None:
    """C4: with a name, without a slot, and with the name of another block."""
    assert met_by(*SLOTTED, DropStates(blocks_of(1, 1, 1))) == {
        "a drop names a block twice",
        "a state is dropped with its hash",
    }
    drop = DropStates(blocks_of(8, 0), "deregistered", (22,))
    assert met_by(*SLOTTED, AllocBlocks(1), drop) == {
        "a block without a slot is dropped",
        "a hash of another block is dropped with a block",
    }


@pytest.mark.parametrize(
    ("told", "law", "of_careful"),
    [((0, 1), None, None), ((0,), "C6", None), ((1,), "C6", "C6"), ((), "C6", "C6"), ((0, 2), "C6", "C6")],
)
def test_careful_callers_need_not_be_told_of_blocks_without_a_hash(
    told: tuple[int, ...], law: str | None, of_careful: str | None
) -> None:
    """C6: they keep nothing by those; of one with a hash they must hear, of one that stays they must not."""
    program = [AllocBlocks(3), RegisterBlocks((ONE,), (11,)), ReleaseBlocks((Span(1, 0, 2),))]
    history = run_program("blocks", {**Blocks.CONFIGURATIONS[0], "policy": "ref_zero"}, program)
    *before, last = history.steps
    given = before[0].outcome.result.slots  # type: ignore[union-attr]
    effect = Effect("callback", tuple(given[at] for at in told), (11,) if 0 in told else ())
    spoiled = dataclasses.replace(last.outcome, effects=(effect,) if told else ())  # type: ignore[type-var]
    steps = [*before, msgspec.structs.replace(last, outcome=spoiled)]
    header = history.header
    careful = msgspec.structs.replace(header, capabilities=(*header.capabilities, "careful_callers"))
    for claimed, wanted in ((header, law), (careful, of_careful)):
        _, found = judge_steps(claimed, steps)
        assert (None if found is None else found[1].law) == wanted


@pytest.mark.parametrize("operation", [AllocSlots((Span(6, 0, 1),)), EvictSlots(1)])
@pytest.mark.parametrize(("slot", "law"), [(0, None), (1, None), (2, "C6")])
def test_of_equally_old_blocks_any_may_lose_its_slot(
    operation: Operation, slot: int, law: str | None
) -> None:
    """C6: a younger one may not."""
    program = [
        AllocBlocks(2),
        SetClock(1),
        AllocBlocks(1),
        RegisterBlocks((Span(1, 0, 2), Span(3, 0, 1)), (11, 12, 13), (0, 0, 0)),
        AllocSlots((Span(1, 0, 2), Span(3, 0, 1))),
        AllocBlocks(1),
        ReleaseBlocks((Span(1, 0, 2), Span(3, 0, 1))),
        operation,
    ]
    history = run_program("blocks", dict(Blocks.CONFIGURATIONS[0]), program)
    *before, last = history.steps
    slots = before[4].outcome.result.slots  # type: ignore[union-attr]
    spoiled = answers(Slots((slots[slot],)))(last.outcome)  # type: ignore[arg-type]
    _, found = judge_steps(history.header, [*before, msgspec.structs.replace(last, outcome=spoiled)])
    assert (None if found is None else found[1].law) == law


def test_transfers_reach_their_coverage_goals() -> None:
    """C1: who has the blocks when a transfer begins, is under way and ends."""
    begun: list[Operation] = [AllocBlocks(8), BeginTransfer((Span(1, 0, 8),))]
    every = "every block is under transfer"
    assert every in met_by(*begun)
    assert "a block is in two transfers" in met_by(*begun, BeginTransfer((ONE,)))
    assert "a transfer ends before its blocks are released" in met_by(*begun, EndTransfer(2))
    given_up = [*begun, ReleaseBlocks((Span(1, 0, 8),))]
    assert "blocks are released under transfer" in met_by(*given_up)
    assert "an allocation fails for blocks under transfer" in met_by(*given_up, AllocBlocks(1))
    assert "a transfer ends whose blocks nobody has" in met_by(*given_up, EndTransfer(2))
    assert "a reset ends a transfer" in met_by(*given_up, Reset())
    stolen = ReleaseBlocks((Span(1, 0, 1), Span(1, 0, 1)))
    assert "a release takes no reference of a transfer" in met_by(*begun, stolen)
    over = "the end of a transfer that is over is refused"
    assert over in met_by(*begun, EndTransfer(2), EndTransfer(2))
    assert over in met_by(*begun, Reset(), EndTransfer(2))


def test_a_chain_under_transfer_is_spared() -> None:
    """C1: a cached block under transfer, and what is cached above it, are not evicted."""
    program: list[Operation] = [
        AllocBlocks(8),
        RegisterBlocks((Span(1, 0, 3),), (11, 22, 33), (0, 11, 0)),
        ReleaseBlocks((Span(1, 0, 3),)),
        BeginTransfer((Span(1, 1, 2),)),
    ]
    assert "a cached block is transferred" in met_by(*program)
    assert "a chain of cached blocks is spared for a transfer" in met_by(*program, AllocBlocks(1))


@pytest.mark.parametrize("operation", [BeginTransfer((ONE,)), EndTransfer(1)])
def test_a_transfer_without_meaning_is_the_programs_fault(operation: Operation) -> None:
    """X9: nobody claims it, or nothing was begun."""
    history = run_program("blocks", dict(Blocks.CONFIGURATIONS[0]), [AllocBlocks(1), SetClock(1)])
    first, last = history.steps
    claims = () if isinstance(operation, BeginTransfer) else ("transfers",)
    kept = tuple(claim for claim in history.header.capabilities if claim != "transfers")
    header = dataclasses.replace(history.header, capabilities=(*kept, *claims))
    with pytest.raises(ProgramError, match=r"transfers are not claimed|step 1 began no transfer"):
        judge_steps(header, [first, dataclasses.replace(last, operation=operation)])
