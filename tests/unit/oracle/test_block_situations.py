"""When the less obvious situations of blocks count as met."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pymllm.oracle.block_model import BlockModel
from pymllm.oracle.block_situations import (
    note_alloc_slots,
    note_drop,
    note_evict_slots,
    note_register,
    note_release,
    note_victims,
)
from pymllm.oracle.block_slot_model import BlockSlotModel
from pymllm.oracle.evidence import Evidence

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
