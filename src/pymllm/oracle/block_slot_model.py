"""Slots of cached states as the specification has them: which block has which, and whose goes next."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pymllm.oracle.block_model import BlockModel
from pymllm.oracle.remainder import Remainder

__all__ = ["BlockSlotModel"]


class BlockSlotModel:
    """Slots ``0 .. total - 1``; which free one a block gets is told to it.

    Parameters
    ----------
    total : int
        Slots.
    blocks : BlockModel
        Whose slots they are.

    Attributes
    ----------
    slot_of : dict of int to int
        Slot by block.
    named : dict of int to int
        The hash by which the state of a block is found.
    in_hand : set of int
        Slots that a caller took and has.
    """

    def __init__(self, total: int, blocks: BlockModel) -> None:
        self.total = total
        self._blocks = blocks
        self.reset()

    def reset(self) -> None:
        """Free every slot."""
        self.slot_of: dict[int, int] = {}
        self.named: dict[int, int] = {}
        self.in_hand: set[int] = set()

    @property
    def free(self) -> Remainder:
        """Slots that nobody has."""
        return Remainder(range(self.total), {*self.slot_of.values(), *self.in_hand})

    @property
    def usable(self) -> list[int]:
        """Slots that may be written: those of blocks and those in hand, ascending."""
        return sorted({*self.slot_of.values()} | self.in_hand)

    def victims(self, keep: Collection[int] = ()) -> list[int]:
        """Return the blocks that may lose their slots, in the order in which they do."""
        found = [block for block in self.slot_of if not self._blocks.refs[block] and block not in keep]
        stamps = self._blocks.stamps
        return sorted(found, key=lambda block: (stamps[block] if self._blocks.is_lru else 0, block))

    def newcomers(self, blocks: Iterable[int]) -> list[int]:
        """Return those of some blocks that have no slot, each once."""
        return [block for block in dict.fromkeys(blocks) if block not in self.slot_of]

    def give(self, blocks: Iterable[int], slots: Iterable[int]) -> None:
        """Give slots to blocks that have none."""
        self.slot_of.update(zip(blocks, slots, strict=True))

    def drop(self, blocks: Iterable[int]) -> list[int]:
        """Take the slots from those blocks that have one, and return them."""
        slots = []
        for block in blocks:
            if block in self.slot_of:
                slots.append(self.slot_of.pop(block))
            self.named.pop(block, None)
        return slots
