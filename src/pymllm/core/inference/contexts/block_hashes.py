"""Which block has the content of a hash: first registration wins, and only below a registered parent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from pymllm.core.inference.contexts.block_forest import NO_BLOCK, BlockForest
from pymllm.core.inference.contexts.host_numbers import host_integers
from pymllm.errors import UsageError

NO_HASH: Final = -1


class BlockHashes:
    """Keep the hash of each registered block, and the block of each hash.

    ``pool_size``: blocks. ``forest``: takes up what is registered; who is registered is asked there.
    ``of_block``: shape ``(pool_size,)``, int64, -1 for none. ``to_block``: exactly the inverse. Laws: C3.
    """

    def __init__(self, pool_size: int, forest: BlockForest) -> None:
        self._forest = forest
        self.of_block: NDArray[np.int64] = np.full(pool_size, NO_HASH, np.int64)
        self.to_block: dict[int, int] = {}

    def clear(self) -> None:
        """Forget every hash."""
        self.of_block[:] = NO_HASH
        self.to_block.clear()

    def check(self, blocks: list[int], hashes: list[int]) -> None:
        """Refuse another hash for a block that has one, or gets one in the same call."""
        given: dict[int, int] = {}
        for block, hash_value in zip(blocks, hashes, strict=True):
            present = given.setdefault(block, int(self.of_block[block]))
            if present == NO_HASH:
                given[block] = hash_value
            elif present != hash_value:
                raise UsageError(
                    f"block {block} has hash {present}, not {hash_value}: one block has one content"
                )

    def register_chain(self, blocks: list[int], hashes: list[int]) -> None:
        """Register blocks that follow one another, the first of them a first block."""
        parent = NO_BLOCK
        for block, hash_value in zip(blocks, hashes, strict=True):
            self._register(block, hash_value, parent)
            parent = block

    def register_below(self, blocks: list[int], hashes: list[int], parent_hashes: list[int]) -> None:
        """Register blocks below the blocks that their parents' hashes name, 0 for none."""
        # A parent among the blocks of this call is the parent that is meant, whoever else has its hash.
        named: dict[int, int] = {}
        for block, hash_value, above in zip(blocks, hashes, parent_hashes, strict=True):
            parent = named.get(above, self.to_block.get(above)) if above else NO_BLOCK
            named[hash_value] = block
            if parent is not None:
                self._register(block, hash_value, parent)

    def _register(self, block: int, hash_value: int, parent: int) -> None:
        if hash_value in self.to_block or (parent != NO_BLOCK and parent not in self._forest):
            return
        self.of_block[block] = hash_value
        self.to_block[hash_value] = block
        self._forest.add(block, parent)

    def forget(self, blocks: list[int]) -> set[int]:
        """Take the hashes from distinct blocks, registered or not, and return them."""
        hashes: set[int] = set()
        hash_of = self.of_block.item
        for block in blocks:
            hash_value = hash_of(block)
            if hash_value != NO_HASH:
                hashes.add(hash_value)
                del self.to_block[hash_value]
                self.of_block[block] = NO_HASH
        return hashes


def as_hashes(name: str, hashes: Sequence[Any] | torch.Tensor, count: int, lowest: int) -> list[int]:
    """Read one hash for each of ``count`` blocks.

    Law: X1.
    """
    values: list[int] = host_integers(name, hashes).tolist()
    if len(values) != count:
        raise ValueError(f"{len(values)} {name} for {count} blocks; give one for each")
    if values and min(values) < lowest:
        raise ValueError(f"{name} has {min(values)}: give hashes from {lowest} to 2**63 - 1")
    return values
