"""Blocks from another project: shared by counted references, found by hashes. They know nothing of pymllm."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass
class Block:
    """The record of a block, which is cached while it has a hash and no references."""

    refs: int = 0
    used: int = 0
    hash: int | None = None
    parent: int | None = None


class BlockStore:
    """Blocks 0 to ``count - 1``; the watcher is told of blocks that lost their content, and their hashes."""

    def __init__(self, count: int, watcher: Callable[[list[int], list[int]], None]) -> None:
        self.watcher, self.now = watcher, 0
        self.blocks = [Block() for _ in range(count)]
        self.by_hash: dict[int, int] = {}

    def free(self) -> list[int]:
        """Return the blocks that hold nothing."""
        return [at for at, block in enumerate(self.blocks) if not block.refs and block.hash is None]

    def evictable(self) -> list[int]:
        """Return the cached blocks without a referenced block below them, the oldest first."""
        kept: set[int | None] = set()
        for block in self.blocks:
            above = block.parent if block.refs and block.hash is not None else None
            while above is not None:
                kept.add(above)
                above = self.blocks[above].parent
        cached = [at for at, it in enumerate(self.blocks) if not it.refs and it.hash is not None]
        return sorted((at for at in cached if at not in kept), key=lambda at: self.blocks[at].used)

    def take(self, count: int) -> list[int] | None:
        """Hand out blocks, and evict as many as are missing: leaves, and the oldest of these."""
        if count > len(self.free()) + len(self.evictable()):
            return None
        gone, hashes = [], []
        while count > len(self.free()):
            parents = {block.parent for block in self.blocks}
            leaf = next(at for at in self.evictable() if at not in parents)
            hashes.append(self.forget(leaf))
            gone.append(leaf)
        if gone:
            self.watcher(gone, hashes)
        taken = self.free()[:count]
        for at in taken:
            self.blocks[at] = Block(1, self.now)
        return taken

    def forget(self, at: int) -> int:
        """Let a cached block go; return the hash that it had."""
        content = self.blocks[at].hash
        assert content is not None
        self.blocks[at] = Block(used=self.blocks[at].used)
        del self.by_hash[content]
        return content

    def share(self, at: int) -> None:
        """Count one more reference."""
        self.blocks[at].refs += 1

    def drop(self, at: int) -> None:
        """Count one reference less; an unreferenced block without a hash is free then."""
        self.blocks[at].refs -= 1
        if not self.blocks[at].refs and self.blocks[at].hash is None:
            self.watcher([at], [])

    def publish(self, at: int, content: int, above: int | None) -> None:
        """Let a block be found, by the first that comes with a hash, and below a block that is found."""
        is_below = above is None or self.blocks[above].hash is not None
        if content not in self.by_hash and is_below:
            self.by_hash[content], self.blocks[at].hash, self.blocks[at].parent = at, content, above
