"""vLLM's `BlockPool`, the pool of blocks under all of its managers, as an allocator of blocks.

A pool knows a block by its hash alone and keeps what is let go of in one queue (`trusted_hashes`, policy
``release``); it has no clock. It checks nothing, and its callers see to what it counts on: they offer no
block a second time, and reset it when nobody has a block. So does this adapter, and it learns what a pool
says as they do:

- who goes, by the events that a router is sent (``BlockRemoved``), one for each block that loses its hash; of
  which block, by who had a hash among those that were handed out;
- who is found under a hash, by ``get_cached_block``.

A reset leaves the queue in the order that it has, where ours would begin anew: blocks are numbered as they
stand in the queue, so that this does not show. With ``own_numbers`` in its configuration they keep vLLM's
numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

from pymllm.adapters.base import BaseAdapter
from pymllm.history import operations as ops
from pymllm.history import outcomes as out
from pymllm.history.files import Config
from pymllm_peers.vllm.package import load_vllm, require_version

_SMALL: Config = {"blocks": 8, "block_size": 4, "policy": "release", "caching": True}


class VllmBlocks(BaseAdapter):
    """The adapter of `BlockPool` with ``blocks`` of ``block_size``, besides the null block; one group."""

    KIND: ClassVar[str] = "blocks"
    CONFIGURATIONS: ClassVar[Sequence[Config]] = (
        _SMALL,
        {**_SMALL, "blocks": 3, "block_size": 1},
        {**_SMALL, "blocks": 80, "block_size": 256},
        {**_SMALL, "caching": False},
    )

    def __init__(self, name: str, config: Mapping[str, int | str | bool | None]) -> None:
        super().__init__(name, config)
        require_version()
        self.block_size, self.is_caching = self.number("block_size"), bool(config["caching"])
        self.pool = load_vllm("v1.core.block_pool").BlockPool(
            self.number("blocks") + 1, self.is_caching, self.block_size, enable_kv_cache_events=True
        )
        self._utils = load_vllm("v1.core.kv_cache_utils")
        self._digests: dict[bytes, int] = {}  # every hash that was registered, by what vLLM has for it
        self._held: Counter[int] = Counter()
        self._number_blocks()

    def claim(self) -> frozenset[str]:
        """Claim the order of evictions; misuse is undefined."""
        also = str(self.config.get("also", "")).split()
        return frozenset({"pool", "callbacks", "inspect", "exact_policy", "trusted_hashes", *also})

    def _number_blocks(self) -> None:
        queue = self.pool.free_block_queue.get_all_free_blocks()
        if self.config.get("own_numbers"):
            queue.sort(key=lambda block: block.block_id)
        self._blocks: list[Any] = queue
        self._numbers = {block.block_id: number for number, block in enumerate(queue)}

    def _named(self, spans: Sequence[ops.Span]) -> list[Any]:
        return [self._blocks[number] for number in self.numbers(spans)]

    def _hash_of(self, block: Any) -> int:
        known = block.block_hash
        return -1 if known is None else self._digests[self._utils.get_block_hash(known)]

    def sizes(self) -> dict[str, int]:
        """Return the sizes of the pool's queue, whose blocks with a hash are cached."""
        queue = self.pool.free_block_queue.get_all_free_blocks()
        cached = sum(block.block_hash is not None for block in queue)
        return {"pool_avail": self.pool.get_num_free_blocks() - cached, "evictable_blocks": cached}

    def do_alloc_blocks(self, step: int, operation: ops.AllocBlocks) -> out.Result:
        """Allocate blocks, after the check for enough blocks that all of vLLM's callers make."""
        if operation.count > self.pool.get_num_free_blocks():
            return out.NoRoom()
        cached = {number for number, block in enumerate(self._blocks) if block.block_hash is not None}
        blocks = self.pool.get_new_blocks(operation.count)
        taken = tuple(self._numbers[block.block_id] for block in blocks)
        self._tell([number for number in taken if number in cached])
        self._held.update(taken)
        return out.Slots(taken)

    def do_retain_blocks(self, step: int, operation: ops.RetainBlocks) -> out.Result:
        """Retain blocks, as a request that finds them does."""
        self.pool.touch(self._named(operation.blocks))
        self._held.update(self.numbers(operation.blocks))
        return out.Done()

    def do_release_blocks(self, step: int, operation: ops.ReleaseBlocks) -> out.Result:
        """Release blocks, and report those now without a hash and without a reference."""
        numbers = self.numbers(operation.blocks)
        self.pool.free_blocks(self._named(operation.blocks))
        self._held.subtract(numbers)
        blocks = {number: self._blocks[number] for number in numbers}
        self._tell([it for it, block in blocks.items() if not block.ref_cnt and block.block_hash is None])
        return out.Done()

    def do_register_blocks(self, step: int, operation: ops.RegisterBlocks) -> out.Result:
        """Register blocks as a computed request does, without those already registered."""
        if not self.is_caching:
            return out.Done()
        numbers, blocks = self.numbers(operation.blocks), self._named(operation.blocks)
        digests = [number.to_bytes(8) for number in operation.hashes]
        self._digests.update(zip(digests, operation.hashes, strict=True))
        mask = [
            block.block_hash is None and numbers.index(number) == place
            for place, (number, block) in enumerate(zip(numbers, blocks, strict=True))
        ]
        request = SimpleNamespace(
            block_hashes=digests,
            all_token_ids=[0] * (len(blocks) * self.block_size),
            lora_request=None,
            mm_features=[],
            cache_salt=None,
            prompt_embeds=None,
            session_id=None,
        )
        self.pool.cache_full_blocks(request, blocks, 0, len(blocks), self.block_size, 0, mask)
        stored = [digest for event in self.pool.take_events() for digest in event.block_hashes]
        new = [digest for digest, is_new in zip(digests, mask, strict=True) if is_new]
        if stored != [self._utils.maybe_convert_block_hash(digest) for digest in new]:
            raise RuntimeError(f"vLLM tells of {stored}")
        return out.Done()

    def do_stamp_blocks(self, step: int, operation: ops.StampBlocks) -> out.Result:
        """Do nothing: when a block was used is nothing to vLLM."""
        return out.Done()

    def do_set_clock(self, step: int, operation: ops.SetClock) -> out.Result:
        """Do nothing: there is no clock."""
        return out.Done()

    def do_reset(self, step: int, operation: ops.Reset) -> out.Result:
        """Release all blocks, and forget everything."""
        for number in self._held.elements():
            self.pool.free_blocks([self._blocks[number]])
        self._held.clear()
        if not self.pool.reset_prefix_cache():
            raise RuntimeError("vLLM refuses to reset a pool that is in use")
        self.pool.take_events()
        self._number_blocks()
        return out.Done()

    def do_inspect(self, step: int, operation: ops.Inspect) -> out.Result:
        """Show every block, and look up every hash ever registered; the dummy is not shown."""
        found = [
            (number, self._numbers[blocks[0].block_id])
            for digest, number in self._digests.items()
            if (blocks := self.pool.get_cached_block(digest, [0]))
        ]
        blocks = [*self._blocks, self.pool.null_block]
        return out.BlockBooks(
            tuple(block.ref_cnt for block in blocks),
            tuple(self._hash_of(block) for block in blocks),
            (),
            tuple(sorted(found)),
        )

    def _tell(self, gone: Sequence[int]) -> None:
        """Report newly freed blocks, with the hashes that vLLM says were removed."""
        events = self.pool.take_events()
        external = {self._utils.maybe_convert_block_hash(digest): it for digest, it in self._digests.items()}
        removed = sorted(external[digest] for event in events for digest in event.block_hashes)
        if gone or removed:
            self.effects.append(out.Effect("callback", tuple(gone), tuple(removed)))
