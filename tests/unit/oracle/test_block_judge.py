"""Blocks and the slots beside them: spoiled outcomes, views and situations."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from pymllm.adapters.own_blocks import Blocks
from pymllm.conformance.program import run_program
from pymllm.errors import ProgramError
from pymllm.history.operations import (
    AllocBlocks,
    AllocSlots,
    EvictSlots,
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
    Span,
    StoreState,
    WriteLive,
)
from pymllm.history.outcomes import BlockBooks, Done, Effect, Failed, Number, Outcome, States
from pymllm.oracle.block_states import find_wrong_view
from pymllm.oracle.coverage.noticed import (
    note_alloc_slots,
    note_drop,
    note_evict_slots,
    note_register,
    note_release,
    note_victims,
)
from pymllm.oracle.evidence import Evidence
from pymllm.oracle.judge import judge_steps
from pymllm.oracle.models.block_model import BlockModel, BlockSlotModel

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
    # What tells the observer of nothing.
    ([*STORED, ReadStates(0)], tells(Effect("callback", (0,))), "C6"),
    ([*STORED, ReadLive(0)], tells(Effect("callback", (0,))), "C6"),
    (STORED[:2], tells(Effect("callback", (0,))), "C6"),
    (BOOKS, tells(Effect("callback", (0,))), "C6"),
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


# -- The views of blocks and slots beside what they must say -------------------------------------------------


# Blocks 0 (held, under 11, with slot 1) and 1 (free), and the dummy.
VIEWED = BlockBooks(
    refs=(1, 0, 9),
    hashes=(11, -1, 9),
    stamps=(4, 9, 9),
    block_of_hash=((11, 0),),
    slot_of_block=(1, -1, -1),
    block_of_slot=(-1, 0, -1),
    free_slots=(2, 0),
    block_of_state=((11, 0),),
)


@pytest.fixture
def blocks() -> BlockModel:
    made = BlockModel(2, is_lru=True, is_caching=True)
    made.clock = 4
    made.take([0])
    made.register([0], [11], None)
    return made


@pytest.fixture
def slots(blocks: BlockModel) -> BlockSlotModel:
    made = BlockSlotModel(3, blocks)
    made.give([0], [1])
    made.named[0] = 11
    return made


def test_what_is_told_of_the_dummy_and_of_free_blocks_is_open(
    blocks: BlockModel, slots: BlockSlotModel
) -> None:
    """C1, C2: stamps of what nobody has, and the order of free slots."""
    assert find_wrong_view(blocks, slots, VIEWED) is None


@pytest.mark.parametrize(
    ("wrong", "law", "name"),
    [
        ({"refs": (1, 0)}, "C1", "sizes of the views"),
        ({"refs": (1, 1, 0)}, "C1", "block_ref_counts"),
        ({"hashes": (11, 12, 0)}, "C3", "block_hashes"),
        ({"block_of_hash": ()}, "C3", "kv_hash_to_block_id"),
        ({"stamps": (5, 0, 0)}, "C1", "block_timestamps"),
        ({"slot_of_block": (1, -1)}, "C2", "block_to_slot"),
        ({"block_of_slot": (0, 0, -1)}, "C2", "slot_to_block"),
        ({"free_slots": (0, 0)}, "C2", "free_slots"),
        ({"block_of_state": ()}, "C4", "hash_to_block_id"),
    ],
)
def test_a_wrong_view_is_named_with_its_law(
    blocks: BlockModel, slots: BlockSlotModel, wrong: dict[str, Any], law: str, name: str
) -> None:
    """C1 to C4: the first that differs."""
    found = find_wrong_view(blocks, slots, dataclasses.replace(VIEWED, **wrong))
    assert found is not None
    assert found[:2] == (law, name)


def test_slots_are_not_looked_at_where_there_are_none(blocks: BlockModel) -> None:
    """C2: an attention model has blocks alone."""
    assert find_wrong_view(blocks, None, VIEWED) is None


# -- When the less obvious situations of blocks count as met -------------------------------------------------


BESIDE_FREE = "an allocation takes free blocks and cached ones"


def met(note: Callable[[Evidence], None]) -> set[str]:
    evidence = Evidence()
    note(evidence)
    return set(evidence.reached)


@pytest.fixture
def model() -> BlockModel:
    """A chain 0 - 1 - 2 under 11, 22, 33, held once; 0 older than the rest."""
    made = BlockModel(6, is_lru=True, is_caching=True)
    made.take([0])
    made.clock = 1
    made.take([1, 2])
    made.register([0, 1, 2], [11, 22, 33], None)
    return made


def test_victims_say_why_they_go(model: BlockModel) -> None:
    """C1: the chain goes from its end, though its beginning is older."""
    model.release([0, 1, 2])
    expected = {"a cached block is evicted", "an older parent waits for its child", BESIDE_FREE}
    assert met(lambda evidence: note_victims(evidence, model, [2])) == expected
    chain = met(lambda evidence: note_victims(evidence, model, [2, 1]))
    assert chain == expected | {"a chain goes from its end"}
    whole = met(lambda evidence: note_victims(evidence, model, [2, 1, 0]))
    assert whole == chain | {"a chain of three goes from its end"}
    model.take([3, 4, 5])
    assert met(lambda evidence: note_victims(evidence, model, [2])) == expected - {BESIDE_FREE}


def test_a_victim_that_is_none_is_only_noted_as_evicted(model: BlockModel) -> None:
    """C1: the judge refuses it; nothing else is known of it."""
    model.release([0, 1, 2])
    assert met(lambda evidence: note_victims(evidence, model, [0])) == {
        "a cached block is evicted",
        BESIDE_FREE,
    }


def test_equally_old_leaves_and_held_children_are_noted(model: BlockModel) -> None:
    """C1: which of two goes is open; a cached block above a held one stays."""
    model.take([3, 4])
    model.register([3, 4], [44, 55], [0, 0])
    model.release([0, 1, 3, 4])
    assert met(lambda evidence: note_victims(evidence, model, [3])) == {
        "a cached block is evicted",
        BESIDE_FREE,
        "equally old blocks wait for eviction",
        "a cached block is spared for its held child",
    }


def test_a_release_says_what_becomes_of_its_blocks(model: BlockModel) -> None:
    """C1: shared ones stay, unregistered ones are free, and under REF_ZERO descendants go along."""
    model.take([3])
    model.retain([1, 1])
    assert met(lambda evidence: note_release(evidence, model, [1, 1, 3])) == {
        "a block is released twice in one call",
        "a shared block stays with its other holder",
        "a block without a hash becomes free",
    }
    model.is_lru = False
    assert met(lambda evidence: note_release(evidence, model, [0])) == {
        "a block goes with its descendants",
        "three generations go at once",
        "a held descendant is deregistered",
    }


def test_a_registration_says_what_became_of_its_entries(model: BlockModel) -> None:
    """C3: each reason once."""
    model.take([3, 4, 5])
    made = model.register([2, 3, 4, 5], [33, 11, 44, 55], [22, 0, 99, 33])
    assert met(lambda evidence: note_register(evidence, model, made)) == {
        "a registered block is registered again",
        "a hash is taken",
        "a parent is not registered",
        "a chain is registered",
    }
    below = model.register([4], [44], [33])
    assert met(lambda evidence: note_register(evidence, model, below)) == {
        "a block is registered below one of another call"
    }


def test_slots_say_whose_they_were(model: BlockModel) -> None:
    """C5, C6: what is spared, and who goes instead."""
    model.release([0, 1])
    slots = BlockSlotModel(3, model)
    slots.give([0, 1, 2], [0, 1, 2])
    slots.named[1] = 22
    batch = met(lambda evidence: note_alloc_slots(evidence, slots, model, [0, 3, 3], 1))
    assert batch == {
        "a batch names a block twice",
        "a block keeps its slot",
        "a slot is evicted for want of room",
        "an older slot is spared for its block is in the batch",
    }
    hand = met(lambda evidence: note_evict_slots(evidence, slots, model, slots.victims(), 1))
    assert hand == {"slots are taken by a caller", "the older of several slots goes"}
    assert met(lambda evidence: note_evict_slots(evidence, slots, model, slots.victims(), 0)) == set()
    model.stamps.clear()
    model.stamps.update({0: 1, 1: 1})
    again = met(lambda evidence: note_evict_slots(evidence, slots, model, slots.victims(), 1))
    assert again == {
        "slots are taken by a caller",
        "an older slot is spared for its block is held",
        "the lower of equally old blocks loses its slot",
    }
    assert met(lambda evidence: note_drop(evidence, slots, [1, 1], [])) == {
        "a drop names a block twice",
        "a state is dropped with its hash",
    }
    assert met(lambda evidence: note_drop(evidence, slots, [3], [22])) == {
        "a block without a slot is dropped",
        "a hash of another block is dropped with a block",
    }
