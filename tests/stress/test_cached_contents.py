"""A prefix cache over real keys and values: what it says is cached is read back, element by element."""

from __future__ import annotations

import random

import pytest
import torch

from pymllm.invariants import check_radix_cache
from pymllm.mem_cache import RadixCache, RadixKey
from pymllm.mem_cache.memory_pool import make_full_attention_net_mem_pool
from tests.stress.bit_patterns import stamp
from tests.stress.card import Card, Rounds

LAYERS, WIDTH, BATCH = 2, 4, 16


class Server:
    """Prompts of a few stems are matched, computed in padded batches, cached, and evicted for each other."""

    def __init__(self, card: Card, page_size: int, seed: int) -> None:
        self.device, self.page_size, self.draw = card.device, page_size, random.Random(seed)
        self.longest = 1_024 if card.is_roomy else 160
        self.size = 8 * self.longest
        self.pool, self.allocator = make_full_attention_net_mem_pool(
            self.size, LAYERS, 1, WIDTH, 1, WIDTH, card.device, torch.int64, page_size
        )
        self.cache = RadixCache(page_size=page_size, token_to_kv_pool_allocator=self.allocator)
        self.stems = [self.tokens(self.longest) for _ in range(6)]
        self.seen: list[list[int]] = []
        self.hits = self.evicted = self.read = 0

    def tokens(self, count: int) -> list[int]:
        return [self.draw.randrange(1 << 20) for _ in range(count)]

    def rows_of(self, tokens: list[int], start: int, stop: int, part: int) -> torch.Tensor:
        """Return the rows of a cold run at ``start`` to ``stop``: they depend on all tokens up to there."""
        digests, digest = [], 0
        for token in tokens[:stop]:
            digest = (digest * 1_000_003 + token + 1) % (1 << 61)
            digests.append(digest)
        return stamp(0, torch.tensor(digests[start:stop], dtype=torch.int64, device=self.device), part, WIDTH)

    def serve(self) -> None:
        """Run one prompt through the cache, as an engine does."""
        stem = self.draw.choice(self.stems)
        tokens = stem[: self.draw.randrange(self.longest // 2)] + self.tokens(self.draw.randrange(1, 40))
        hit = self.cache.match_prefix(RadixKey(tokens))
        self.cache.inc_lock_ref(hit.last_node)
        self.hits += hit.prefix_len > 0
        self.check(tokens, hit.indices)
        missing = -(-(len(tokens) - hit.prefix_len) // self.page_size) * self.page_size
        if self.allocator.available_size() < missing:
            self.evicted += self.cache.evict(missing - self.allocator.available_size()).full_evicted
        new = self.allocator.alloc(missing)
        assert new is not None
        self.compute(tokens, hit.prefix_len, new)
        slots = torch.cat([hit.indices.to(new.dtype), new])
        aligned = len(tokens) // self.page_size * self.page_size
        known = self.cache.insert(RadixKey(tokens[:aligned]), slots[:aligned]).prefix_len
        self.allocator.free(torch.cat([slots[hit.prefix_len : known], slots[aligned:]]))
        self.cache.dec_lock_ref(hit.last_node)
        self.seen = [*self.seen[-50:], tokens]

    def compute(self, tokens: list[int], start: int, slots: torch.Tensor) -> None:
        """Write what is missing, in batches that are padded with slot 0 to one size."""
        count = len(tokens) - start
        padding = -count % BATCH
        padded = torch.cat([slots[:count], slots.new_zeros(padding)])
        for layer in range(LAYERS):
            rows = [self.rows_of(tokens, start, len(tokens), 2 * layer + half) for half in (0, 1)]
            k, v = (torch.cat([each, each.new_full((padding, WIDTH), -1)])[:, None] for each in rows)
            for part in range(0, len(padded), BATCH):
                batch = slice(part, part + BATCH)
                self.pool.set_kv_buffer(layer, padded[batch], k[batch], v[batch])

    def check(self, tokens: list[int], slots: torch.Tensor) -> None:
        """Compare all that lies in slots with what a cold run of these tokens has."""
        self.read += len(slots)
        for layer in range(LAYERS):
            for half, buffer in enumerate(self.pool.get_kv_buffer(layer)):
                expected = self.rows_of(tokens, 0, len(slots), 2 * layer + half)
                assert torch.equal(buffer[slots.long()].view(-1, WIDTH), expected), (layer, half, tokens)

    def read_back(self) -> None:
        """Match everything that was served of late, and read all of it."""
        for tokens in self.seen:
            self.check(tokens, self.cache.match_prefix(RadixKey(tokens)).indices)


@pytest.mark.gpu_memory_limit("512 MiB")
@pytest.mark.parametrize("page_size", [1, 16])
def test_what_is_cached_is_what_was_computed(card: Card, rounds: Rounds, seed: int, page_size: int) -> None:
    """E1, E5, R1, R6: through hits, splits, duplicates, padding and evictions."""
    server = Server(card, page_size, seed)
    for number in rounds(150 if not card.is_roomy else 600):
        server.serve()
        if number % 50 == 49:
            server.read_back()
            check_radix_cache(server.cache)
    server.read_back()
    assert min(server.hits, server.evicted, server.read) > 0
    server.cache.reset()
    assert server.allocator.available_size() == server.size


@pytest.mark.parametrize("half", [0, 1])
def test_one_wrong_element_is_found(card: Card, seed: int, half: int) -> None:
    """The look above can fail."""
    server = Server(card, 1, seed)
    for _ in range(5):
        server.serve()
    server.read_back()
    slots = server.cache.match_prefix(RadixKey(server.seen[-1])).indices
    server.pool.get_kv_buffer(1)[half][int(slots[-1])].view(-1)[2] += 1
    with pytest.raises(AssertionError):
        server.read_back()
