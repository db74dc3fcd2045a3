"""Careful callers: an allocator that checks nothing is asked for nothing that its callers owe not to ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from pymllm.adapters.own_blocks import Blocks
from pymllm.errors import InvariantViolation
from pymllm.history import operations as ops
from pymllm.history.operations import Operation, Span
from pymllm.history.outcomes import Done, Slots
from pymllm.machines.acting import drive, make_machine
from pymllm.machines.blocks import BlockMachine
from pymllm.machines.careful_blocks import made_careful
from pymllm.oracle.models.block_model import BlockModel


class Trusting(Blocks):
    """A cache that counts on its callers; a call that owes something fails in an unexpected way."""

    CLAIMED: ClassVar[frozenset[str]] = frozenset({"careful_callers"})

    def claim(self) -> frozenset[str]:
        told = {"pool", "callbacks", "inspect", "exact_lru", "capacity_errors"}
        return self.CLAIMED | told | ({"mamba"} if self.config["slots"] else set())

    def apply(self, step: int, operation: Operation) -> Any:
        outcome = super().apply(step, operation)
        refs, parents = self.pool.block_ref_counts.tolist(), self.pool.block_parents.tolist()
        for block, parent in enumerate(parents):
            assert parent < 0 or not refs[block] or refs[parent], f"{block} is held without {parent}"
        return outcome

    def _observe(self, blocks: list[int], hashes: set[int]) -> None:
        """Tell of blocks that were registered, and of no others: nobody keeps anything by these."""
        if hashes:
            super()._observe(blocks, hashes)
        else:
            assert self.slots is None or not any(map(self.slots.has_state, blocks))

    def do_register_blocks(self, step: int, operation: ops.RegisterBlocks) -> Done:
        known = self.pool.kv_hash_to_block_id
        assert not known.keys() & {*operation.hashes}
        assert operation.parents is not None
        assert {*operation.parents} <= {0, *known, *operation.hashes}
        return super().do_register_blocks(step, operation)

    def do_set_clock(self, step: int, operation: ops.SetClock) -> Done:
        assert operation.clock >= self.context.prefix_cache_lru_clock
        return super().do_set_clock(step, operation)

    def do_alloc_slots(self, step: int, operation: ops.AllocSlots) -> Slots:
        for block in self.numbers(operation.blocks):
            assert self.pool.block_ref_counts[block] > 0
            assert self.pool.block_hashes[block] > 0
        return super().do_alloc_slots(step, operation)

    def do_drop_states(self, step: int, operation: ops.DropStates) -> Done:
        raise AssertionError("states go with their blocks")

    def do_evict_slots(self, step: int, operation: ops.EvictSlots) -> Slots:
        raise AssertionError("slots go to other blocks")


class Careless(Trusting):
    """A trusting cache that does not claim to count on its callers."""

    CLAIMED = frozenset()


def machine_of(adapter_class: type[Trusting], config: Any) -> Any:
    machine = make_machine(BlockMachine, adapter_class.__name__, config, audit=False)
    machine.make_adapter = classmethod(lambda cls: adapter_class("x", config))  # type: ignore[method-assign]
    return machine


@pytest.mark.parametrize("place", range(len(Blocks.CONFIGURATIONS)))
def test_who_counts_on_careful_callers_is_not_accused(place: int) -> None:
    """Whatever is searched, on every configuration; and there is still much to search."""
    machine, reached, asked = machine_of(Trusting, Blocks.CONFIGURATIONS[place]), set(), set()
    for seed in range(4):
        examiner = drive(machine, seed, 60).examiner
        reached |= examiner.judge.evidence.reached.keys()
        asked |= {type(step.operation) for step in examiner.history.steps}
    assert {ops.AllocBlocks, ops.RetainBlocks, ops.ReleaseBlocks} <= asked
    assert not asked & {ops.EvictSlots, ops.DropStates}
    assert len(reached) > 3


def test_who_does_not_say_so_is_asked_for_everything() -> None:
    """X3: then it is what it fails with that is judged."""
    machine = machine_of(Careless, Blocks.CONFIGURATIONS[0])
    with pytest.raises((AssertionError, InvariantViolation)):
        _ = [drive(machine, seed, 60) for seed in range(9)]


# -- operation by operation ----------------------------------------------------------------------------------


def names(blocks: Sequence[int]) -> tuple[Span, ...]:
    return tuple(Span(0, block, block + 1) for block in blocks)


@pytest.fixture
def blocks() -> BlockModel:
    """0 and 1 below it are held, 2 below 1 is cached, 3 is held and not registered, 4 is free."""
    model = BlockModel(5, "lru", is_caching=True)
    model.clock = 7
    model.take([0, 1, 2, 3])
    model.register(model.plan_registration([0, 1, 2], [11, 12, 13], None))
    model.release([2])
    return model


Owed = list[Operation]


@pytest.mark.parametrize(
    ("named", "operation", "owed"),
    [
        ([2], ops.RetainBlocks(()), [ops.RetainBlocks(names([2, 1, 0])), ops.StampBlocks(names([2, 1, 0]))]),
        ([3], ops.RetainBlocks(()), [ops.RetainBlocks(names([3])), ops.StampBlocks(names([3]))]),
        ([0], ops.ReleaseBlocks(()), [ops.ReleaseBlocks(names([0, 1]))]),
        ([1, 3], ops.ReleaseBlocks(()), [ops.ReleaseBlocks(names([1, 3]))]),
        ([3], ops.RegisterBlocks((), (14,), (12,)), [ops.RegisterBlocks(names([3]), (14,), (12,))]),
        ([3], ops.RegisterBlocks((), (14,)), [ops.RegisterBlocks(names([3]), (14,), (0,))]),
        ([3], ops.RegisterBlocks((), (12,), (11,)), []),  # a hash that another block has
        ([3], ops.RegisterBlocks((), (14,), (13,)), []),  # below a block that nobody holds
        ([3], ops.RegisterBlocks((), (14,), (99,)), []),  # below one that is not known
        ([1, 3], ops.RegisterBlocks((), (12, 14), (11, 12)), [ops.RegisterBlocks(names([3]), (14,), (12,))]),
        ([0, 2, 3], ops.AllocSlots(()), [ops.AllocSlots(names([0]))]),
        ([2, 3], ops.AllocSlots(()), []),
        ([], ops.SetClock(6), []),
        ([], ops.SetClock(7), [ops.SetClock(7)]),
        ([], ops.EvictSlots(1), []),
        ([0], ops.DropStates(()), []),
        ([], ops.AllocBlocks(2), [ops.AllocBlocks(2)]),
    ],
)
def test_what_a_careful_caller_asks_for_instead(
    blocks: BlockModel, named: list[int], operation: Operation, owed: Owed
) -> None:
    """Chains are held whole, hashes registered once, and slots asked for what is registered and held."""
    assert list(made_careful(operation, blocks, named, names)) == owed


def test_nothing_is_registered_without_caching() -> None:
    """There is no table of hashes then."""
    off = BlockModel(2, "lru", is_caching=False)
    off.take([0])
    assert made_careful(ops.RegisterBlocks((), (11,), (0,)), off, [0], names) == ()
