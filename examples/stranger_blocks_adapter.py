"""The adapter with which pymllm examines the blocks of `stranger_blocks.py`."""

from stranger_blocks import Block, BlockStore

from pymllm.adapters.simple import BlockAdapter
from pymllm.history.outcomes import BlockBooks


class StrangerBlocks(BlockAdapter):
    """A `BlockStore`. Its caller names the parent itself, which is here looked up by its hash."""

    CONFIGURATIONS = tuple({"blocks": count, "block_size": 4, "policy": "lru"} for count in (4, 8))

    def __init__(self, name, config):
        super().__init__(name, config)
        self.reset()

    def claim(self):
        return {"pool", "callbacks", "inspect", "exact_lru"}

    def sizes(self):
        return {"pool_avail": len(self.store.free()), "evictable_blocks": len(self.store.evictable())}

    def reset(self):
        self.store = BlockStore(self.number("blocks"), self.lost)

    def alloc(self, count):
        return self.store.take(count)

    def retain(self, blocks):
        for block in blocks:
            self.store.share(block)

    def release(self, blocks):
        for block in blocks:
            self.store.drop(block)

    def register(self, blocks, hashes, parents):
        named = {}
        for block, content, above in zip(blocks, hashes, parents, strict=True):
            parent = named.get(above, self.store.by_hash.get(above))
            named[content] = block
            if parent is not None or not above:
                self.store.publish(block, content, parent)

    def stamp(self, blocks):
        for block in blocks:
            self.store.blocks[block].used = self.store.now

    def set_clock(self, clock):
        self.store.now = clock

    def books(self):
        known = [*self.store.blocks, Block()]  # with the dummy behind them
        refs, stamps = (tuple(getattr(it, what) for it in known) for what in ("refs", "used"))
        hashes = tuple(-1 if it.hash is None else it.hash for it in known)
        return BlockBooks(refs, hashes, stamps, tuple(sorted(self.store.by_hash.items())))
