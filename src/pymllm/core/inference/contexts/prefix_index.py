"""The index of registered blocks by hash, which also compares parents and tokens to be certain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pymllm.core.inference.contexts.kv_block_allocator import KVBlockAllocator
from pymllm.core.inference.contexts.live_request import LiveRequest
from pymllm.mem_cache.base_prefix_cache import hash_to_int64, hash_token_ids
from pymllm.mem_cache.cache_events import EventLog

HashPage = Callable[[Any, str | None], str]

_LARGEST: Final = 2**63 - 1


def block_hash(digest: str) -> int:
    """Return the hash of a block from the digest of its page (C3)."""
    return (hash_to_int64(digest) & _LARGEST) or 1


class PrefixIndex:
    """An index that matches prompts against registered blocks, and registers computed blocks.

    ``blocks``: keeps hashes and parents. ``block_size``: tokens per block. ``hash_page``: makes a hex digest
    of the tokens of a page and the digest of the page before, as `hash_token_ids`, which is the default. The
    tokens of registered blocks are kept, four bytes each, since equal hashes prove nothing. Laws: C3, H1, H2.
    """

    def __init__(self, blocks: KVBlockAllocator, block_size: int, hash_page: HashPage | None = None) -> None:
        if hash_page is not None and not callable(hash_page):
            raise TypeError(f"hash_page must be a callable, got {hash_page!r}")
        self._allocator = blocks
        self._block_size = block_size
        self._hash_page: HashPage = hash_token_ids if hash_page is None else hash_page
        self._tokens = np.zeros((blocks.pool_size, block_size), np.uint32)
        self._log: EventLog | None = None

    def match(self, prompt: NDArray[np.uint32]) -> tuple[list[int], list[str]]:
        """Find the longest cached prefix of a prompt, in whole blocks.

        ``prompt``: shape ``(n,)``, uint32. Cost: one digest per block found and one more. Law: C3.
        """
        blocks: list[int] = []
        digests: list[str] = []
        if not self._allocator.enable_prefix_caching:
            return blocks, digests
        parents = self._allocator.block_parents.numpy()
        for start in range(0, prompt.size - self._block_size + 1, self._block_size):
            page = prompt[start : start + self._block_size]
            digest = self._hash_page(page, digests[-1] if digests else None)
            block = self._allocator.kv_hash_to_block_id.get(block_hash(digest))
            above = blocks[-1] if blocks else -1
            if block is None or parents[block] != above:
                break
            blocks.append(block)
            digests.append(digest)
        pages = prompt[: len(blocks) * self._block_size].reshape(len(blocks), self._block_size)
        is_same = (self._tokens[blocks] == pages).all(axis=1)
        found = len(blocks) if is_same.all() else int(is_same.argmin())
        return blocks[:found], digests[:found]

    def keep_events(self, are_kept: bool) -> None:
        """Record events of registered blocks, with their tokens, in the allocator."""
        log = EventLog(self._block_size) if are_kept else None
        if log is not None:
            for block in self._allocator.kv_hash_to_block_id.values():
                log.pages[block] = self._tokens[block].tobytes()
        self._allocator._keep_events(log)
        self._log = log

    def register(self, live: LiveRequest, computed: int) -> None:
        """Register the whole blocks that a request has computed since the last call.

        From the first block on whose hash another block has, a request's blocks stay unregistered: the very
        parent of each that follows is not. Cost: one digest per block. Law: C3.
        """
        places = range(live.registered, computed // self._block_size)
        if not (places and live.is_known and self._allocator.enable_prefix_caching):
            return
        hashes = [block_hash(live.page_hashes[places.start - 1]) if places.start else 0]
        is_known = True
        taken: set[int] = set()
        for place in places:
            page = self._page(live, place)
            if place == len(live.page_hashes):
                live.page_hashes.append(self._hash_page(page, live.page_hashes[-1] if place else None))
            hashes.append(block_hash(live.page_hashes[place]))
            if hashes[-1] in self._allocator.kv_hash_to_block_id or hashes[-1] in taken:
                is_known = False
                hashes.pop()
                break
            taken.add(hashes[-1])
            self._tokens[live.blocks[place]] = page
            if self._log is not None:
                self._log.pages[live.blocks[place]] = page.tobytes()
        ids = live.blocks[places.start : places.start + len(hashes) - 1]
        self._allocator.register_kv_block_hashes(ids, hashes[1:], hashes[:-1])
        live.registered, live.is_known = places.stop, is_known

    def _page(self, live: LiveRequest, place: int) -> NDArray[np.uint32]:
        return live.tokens(place * self._block_size, (place + 1) * self._block_size)
