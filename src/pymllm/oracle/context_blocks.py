"""Which blocks of a context are referenced and which are known under a hash: a model of C1 and C3."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pymllm.oracle.cold_runs import Prefix

__all__ = ["ContextBlocks", "KnownBlock"]


@dataclass(frozen=True, slots=True)
class KnownBlock:
    """What a registered block holds, and the block before it; ``None`` for a first one."""

    prefix: Prefix
    parent: int | None


class ContextBlocks:
    """Follow the blocks of requests: a block is free, referenced, or cached.

    Whoever has a block has every block before it, so no block without references has a referenced one below.

    Parameters
    ----------
    usable : int
        Blocks but for the dummy, which is number ``usable``.
    keeps_unreferenced : bool
        Policy LRU; the other is REF_ZERO.

    Attributes
    ----------
    references : dict of int to int
        How many requests have a block; those that have any.
    known : dict of int to KnownBlock
        Registered blocks.
    released : dict of int to int
        When the last request let go of each cached block; later ones have larger numbers.
    """

    def __init__(self, usable: int, keeps_unreferenced: bool) -> None:
        self.usable = usable
        self.keeps_unreferenced = keeps_unreferenced
        self._clock = 0
        self.clear()

    def clear(self) -> None:
        """Make every block free."""
        self.references: dict[int, int] = {}
        self.known: dict[int, KnownBlock] = {}
        self.by_hash: dict[int, int] = {}
        self.released: dict[int, int] = {}

    @property
    def free(self) -> int:
        """Count the free blocks."""
        return self.usable - len(self.references) - len(self.released)

    def room(self, keep: Collection[int] = ()) -> int:
        """Count the blocks that are free or may be evicted while some are kept."""
        return self.usable - len(self.references.keys() | set(keep))

    def is_free(self, block: int) -> bool:
        """Tell whether a block may be handed out."""
        taken = block in self.references or block in self.released
        return 0 <= block < self.usable and not taken

    def find(self, prefixes: Sequence[Prefix]) -> list[int]:
        """Return the blocks of the longest known chain that holds exactly these prefixes (C3)."""
        found: list[int] = []
        for prefix in prefixes:
            block = self.by_hash.get(prefix.hash)
            if block is None or self.known[block] != KnownBlock(prefix, found[-1] if found else None):
                break
            found.append(block)
        return found

    def victims(self, count: int) -> list[int]:
        """Return the blocks that go next: released first, children before their parents (C1)."""
        going: list[int] = []
        left = dict(self.known)
        for _ in range(count):
            parents = {entry.parent for entry in left.values()}
            leaves = [block for block in self.released if block in left and block not in parents]
            block = min(leaves, key=lambda leaf: (self.released[leaf], leaf))
            going.append(block)
            del left[block]
        return going

    def forget(self, blocks: Collection[int]) -> None:
        """Take the hashes from blocks; those without references are free then."""
        for block in blocks:
            entry = self.known.pop(block, None)
            if entry is not None:
                del self.by_hash[entry.prefix.hash]
            self.released.pop(block, None)

    def retain(self, blocks: Collection[int]) -> None:
        """Add a reference to each of some blocks, free ones included."""
        for block in blocks:
            self.references[block] = self.references.get(block, 0) + 1
            self.released.pop(block, None)

    def release(self, blocks: Collection[int]) -> list[int]:
        """Take a reference from each of some blocks; return those that are free now."""
        self._clock += 1
        freed = []
        for block in blocks:
            self.references[block] -= 1
            if self.references[block]:
                continue
            del self.references[block]
            if block in self.known and self.keeps_unreferenced:
                self.released[block] = self._clock
            else:
                freed.append(block)
        self.forget(freed)
        return freed

    def register(self, block: int, prefix: Prefix, parent: int | None) -> None:
        """Make the content of a block known."""
        self.known[block] = KnownBlock(prefix, parent)
        self.by_hash[prefix.hash] = block
