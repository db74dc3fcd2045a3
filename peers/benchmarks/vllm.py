"""vLLM's block pool and its chained block hashes, used like its prefix cache manager uses them.

vLLM has no tree: a prompt is hashed block by block when its request is made, and each hash is looked up. Its
blocks are handed out least recent first, so an allocation evicts.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch

from peers.benchmarks.contender import Hit, PrefixPeer, SlotPeer
from pymllm_peers.installed import installed_version
from pymllm_peers.vllm.package import load_vllm


def missing_vllm() -> str | None:
    """Return the reason why vLLM's block pool cannot be imported, or ``None``."""
    try:
        installed_version("vllm", "bench-peers")
        load_vllm("v1.core.block_pool")
    except ImportError as error:
        return str(error)
    return None


class VllmBlocks(PrefixPeer):
    """``BlockPool`` and ``get_request_block_hasher``: a match hashes the prompt and looks its blocks up."""

    NAME: ClassVar[str] = "vllm"
    PACKAGE: ClassVar[str] = "vllm"
    FORM = "list"

    @classmethod
    def missing(cls) -> str | None:
        return missing_vllm()

    def __init__(self, page_size: int, capacity: int) -> None:
        super().__init__(page_size, capacity)
        utils = load_vllm("v1.core.kv_cache_utils")
        sha256 = load_vllm("utils.hashing").sha256
        utils.init_none_hash(sha256)
        self.hasher = utils.get_request_block_hasher(page_size, sha256)
        # One block more: the pool keeps one for itself.
        self.pool = load_vllm("v1.core.block_pool").BlockPool(
            capacity // page_size + 1, enable_caching=True, hash_block_size=page_size
        )

    def match(self, key: Any) -> Hit:
        request = SimpleNamespace(
            all_token_ids=key,
            num_tokens=len(key),
            block_hashes=[],
            mm_features=[],
            lora_request=None,
            cache_salt=None,
            prompt_embeds=None,
        )
        request.block_hashes = self.hasher(request)
        blocks: list[Any] = []
        for digest in request.block_hashes:
            found = self.pool.get_cached_block(digest, [0])
            if found is None:
                break
            blocks.append(found[0])
        return Hit(len(blocks) * self.page_size, self.slots_of(blocks), (request, blocks))

    def slots_of(self, blocks: list[Any]) -> torch.Tensor:
        """Write the table of a request, of blocks in place of our slots."""
        return torch.from_numpy(np.fromiter((block.block_id for block in blocks), np.int64, len(blocks)))

    def hold(self, hit: Hit) -> Any:
        self.pool.touch(hit.node[1])

    def release(self, hit: Hit, receipt: Any) -> None:
        self.pool.free_blocks(reversed(hit.node[1]))

    def extend(self, hit: Hit) -> None:
        """Take blocks for the rest of a held prompt, which evicts, and cache the full ones."""
        request, blocks = hit.node
        there = len(blocks)
        blocks += self.pool.get_new_blocks(-(-request.num_tokens // self.page_size) - there)
        full = request.num_tokens // self.page_size
        self.pool.cache_full_blocks(request, blocks, there, full, self.page_size, 0)

    def insert(self, key: Any, slots: torch.Tensor, before: int) -> int:
        """Play a request's whole life at once; the pool chooses the blocks, so slots mean nothing."""
        hit = self.match(key)
        self.hold(hit)
        self.extend(hit)
        self.release(hit, None)
        return hit.length

    def alloc(self, tokens: int) -> torch.Tensor:
        return torch.zeros(tokens, dtype=torch.int64)

    def free(self, slots: torch.Tensor) -> None:
        """Do nothing, since no slot was taken."""

    def available(self) -> int:
        return int(self.pool.get_num_free_blocks()) * self.page_size

    def cached(self) -> int:
        return len(self.pool.cached_block_hash_to_block) * self.page_size

    def nothing_is_lost(self) -> bool:
        """Tell whether no block is referenced, since cached blocks are free blocks with contents."""
        return self.available() == self.capacity // self.page_size * self.page_size


class VllmSlots(SlotPeer):
    """``BlockPool`` as an allocator; its pieces are lists of blocks."""

    NAME: ClassVar[str] = "vllm"
    PACKAGE: ClassVar[str] = "vllm"
    HANDS_OUT = "blocks"

    @classmethod
    def missing(cls) -> str | None:
        return missing_vllm()

    def __init__(self, size: int, page_size: int) -> None:
        self.pool = load_vllm("v1.core.block_pool").BlockPool(
            size + 1, enable_caching=True, hash_block_size=page_size
        )

    def alloc(self, count: int) -> Any:
        return self.pool.get_new_blocks(count)

    def free(self, piece: Any) -> None:
        self.pool.free_blocks(piece)

    def split(self, everything: Any, piece: int, order: list[int]) -> list[Any]:
        return [everything[at * piece : (at + 1) * piece] for at in order]

    def numbers(self, piece: Any) -> Any:
        return np.array([block.block_id for block in piece])

    def available(self) -> int:
        return int(self.pool.get_num_free_blocks())
