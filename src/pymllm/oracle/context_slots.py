"""Which blocks of a context have a cached state: a model of C2, C5, C6 and C7."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["ContextSlots", "Kept", "Leaving", "priority"]


@dataclass(frozen=True, slots=True, order=True)
class Leaving:
    """A state that a request's chunk leaves, ordered as C7 keeps them.

    Parameters
    ----------
    is_inside : bool
        Extracted inside a chunk; a state at the end of a prompt goes before.
    negative_depth : int
        Tokens before it, negated: the deepest goes first.
    row : int
        Row of the request.
    block : int
        The block that ends there.
    """

    is_inside: bool
    negative_depth: int
    row: int
    block: int


@dataclass(frozen=True, slots=True)
class Kept:
    """What a commit comes to: blocks that get a state, blocks that lose theirs, blocks that get none."""

    new: tuple[int, ...]
    victims: tuple[int, ...]
    left_out: tuple[int, ...]


def priority(leaving: Sequence[Leaving]) -> list[int]:
    """Return the blocks of states in the order in which a commit keeps them, each once (C7)."""
    return list(dict.fromkeys(each.block for each in sorted(leaving)))


class ContextSlots:
    """Follow the slots.

    Parameters
    ----------
    count : int
        Slots.

    Attributes
    ----------
    of_block : dict of int to int
        The slot of each block that has a cached state.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.of_block: dict[int, int] = {}

    @property
    def free(self) -> int:
        """Count the free slots."""
        return self.count - len(self.of_block)

    def commit(self, wanted: Sequence[int], released: Mapping[int, int]) -> Kept:
        """Work out which of some blocks get a slot, the first ones first, and who loses one for that.

        Parameters
        ----------
        wanted : sequence of int
            Distinct blocks, referenced.
        released : mapping of int to int
            When each block without references was let go of.
        """
        evictable = sorted((released[block], block) for block in self.of_block if block in released)
        missing = [block for block in wanted if block not in self.of_block]
        new = missing[: self.free + len(evictable)]
        victims = [block for _, block in evictable[: max(0, len(new) - self.free)]]
        return Kept(tuple(new), tuple(victims), tuple(missing[len(new) :]))

    def drop(self, blocks: Collection[int]) -> None:
        """Free the slots of those blocks that have one."""
        for block in blocks:
            self.of_block.pop(block, None)
