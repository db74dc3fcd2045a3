"""Generate with a tiny model whose memory is RadixCache, its allocator, KVPool and ReqToTokenPool.

It is the life of one request in a serving engine, without the engine: match, hold, allocate, compute what is
missing, insert, release. The second request begins like the first, computes less, and its answer is that
without a cache. Run it: python examples/model_over_caches.py
"""

from __future__ import annotations

import torch

from pymllm.mem_cache import RadixCache, RadixKey, ReqToTokenPool, make_full_attention_net_mem_pool
from pymllm.serving.tiny_model import ARCHITECTURES, HEAD_DIM, HEADS, TinyModel

PAGE = 8


class Generator:
    """A model with the memory that its requests share."""

    def __init__(self, slots: int = 512) -> None:
        self.model = TinyModel(ARCHITECTURES["dense"], None, seed=0, device=torch.device("cpu"))
        self.kv, self.allocator = make_full_attention_net_mem_pool(
            size=slots,
            layer_num=len(self.model.layers),
            k_head_num=HEADS,
            k_head_dim=HEAD_DIM,
            v_head_num=HEADS,
            v_head_dim=HEAD_DIM,
            device="cpu",
            dtype=torch.float64,
            page_size=PAGE,
        )
        self.cache = RadixCache(page_size=PAGE, token_to_kv_pool_allocator=self.allocator)
        self.rows = ReqToTokenPool(max_reqs=4, max_context_len=256, device="cpu")
        self.computed = 0

    def generate(self, prompt: list[int], count: int) -> tuple[list[int], int]:
        """Return ``count`` greedy tokens after a prompt, and how many of its tokens were cached."""
        # The last token is computed in any case: its logits choose the first new one.
        hit = self.cache.match_prefix(RadixKey(prompt[:-1]))
        token = self.cache.inc_lock_ref(hit.last_node)  # nobody evicts the prefix while it is used
        rows = self.rows.alloc(1)
        total = len(prompt) + count - 1  # the last new token is never computed
        slots = self.allocator.alloc(-(-(total - hit.prefix_len) // PAGE) * PAGE)
        if rows is None or slots is None:
            raise MemoryError("an engine would evict or wait here")
        [row] = rows
        tokens, own = list(prompt), slots[: total - hit.prefix_len]
        self.rows.write((row, slice(0, hit.prefix_len)), hit.indices)
        self.rows.write((row, slice(hit.prefix_len, total)), own)
        start = hit.prefix_len
        while len(tokens) < len(prompt) + count:
            tokens.append(self._compute(row, tokens, start))
            start = len(tokens) - 1
        # The cache adopts whole pages that it has not; everything else goes back.
        whole = total // PAGE * PAGE
        held = self.rows.req_to_token[row, :whole]
        adopted = self.cache.insert(RadixKey(tokens[:whole]), held).adopted
        kept = sum(end - begin for begin, end in adopted)
        assert kept in (0, whole - hit.prefix_len), "one request at a time adopts all or nothing"
        self.allocator.free(slots[kept:])
        self.cache.dec_lock_ref(hit.last_node, token)
        self.rows.free(row)
        return tokens[len(prompt) :], hit.prefix_len

    def _compute(self, row: int, tokens: list[int], start: int) -> int:
        """Compute the tokens from ``start`` on, write their KV, and choose the next token."""
        slots = self.rows.req_to_token[row, : len(tokens)].long()
        hidden = self.model.embed(torch.tensor(tokens[start:]))
        for layer in range(len(self.model.layers)):
            queries, keys, values = self.model.project(layer, hidden, start)
            self.kv.set_kv_buffer(layer, slots[start:], keys.contiguous(), values.contiguous())
            known_keys, known_values = self.kv.get_kv_buffer(layer)
            hidden = self.model.attend(layer, hidden, queries, known_keys[slots], known_values[slots])
        self.computed += len(tokens) - start
        return int(self.model.logits(hidden[-1]).argmax())


def main() -> None:
    """Generate twice with one memory, and once with an empty one."""
    first = [*b"The memory of a server is right if nobody can tell that it is there."]
    second = [*first[:50], *b"could see it."]
    warm, cold = Generator(), Generator()
    warm.generate(first, 8)
    after_first = warm.computed
    answer, cached = warm.generate(second, 8)
    expected, _ = cold.generate(second, 8)
    print(f"{cached} of {len(second)} prompt tokens were cached, {warm.computed - after_first} computed")
    print(f"warm {answer}")
    print(f"cold {expected}")
    free, kept = warm.allocator.available_size(), warm.cache.evictable_size()
    print(f"{free} slots free + {kept} evictable = {free + kept}")


if __name__ == "__main__":
    main()
